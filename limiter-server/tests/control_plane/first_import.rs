//! With a database, a policy file is an import at the first start only.

use serde_json::{Value, json};

use crate::support::admin::{AdminClient, policy_of_all, with_database};
use crate::support::http;
use crate::support::server::{Directory, Server, wait_until};

const POLICIES: &str = "/namespaces/default/policies";

/// The limit of a policy at the gateway; `None` if it is not in force.
fn limit(server: &Server, policy: &str) -> Option<u64> {
    let body = json!({ "policy": policy, "key": "ann" }).to_string();
    let answer = http::post(server.http(), "/v1/peek", &[], &body).ok()?;
    answer.json()["limits"][0]["limit"].as_u64()
}

#[test]
fn policy_file_fills_an_empty_database_and_is_ignored_afterwards() {
    let directory = Directory::new();
    let two = [policy_of_all("search", 3), policy_of_all("mail", 4)].concat();
    let file = directory.write("policies.toml", &two);
    let file = file.to_str().unwrap().to_owned();
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let mut server = with_database(directory, &url, &["--policies", &file]);
    let root = AdminClient::set_up(&server);
    for (name, capacity) in [("search", 3), ("mail", 4)] {
        wait_until(|| limit(&server, name) == Some(capacity), || server.log());
    }
    let history = root.get(&format!("{POLICIES}/search/history")).json();
    assert_eq!(history["revisions"][0]["author"], "import", "{history}");

    let saved = root.put_policy("search", 1, &policy_of_all("search", 9));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let deleted = root.send(
        "DELETE",
        &format!("{POLICIES}/mail"),
        &[("if-match", "1")],
        &Value::Null,
    );
    assert_eq!(deleted.status, 200, "{}", deleted.body);
    server.kill();

    // The file has another policy, and all policies of the first start.
    let three = [two, policy_of_all("upload", 5)].concat();
    server.directory().write("policies.toml", &three);
    let server = server.restart(&["--admin", "127.0.0.1:0", "--policies", &file]);
    server.wait_for_log("the policy file is not imported");
    let root = AdminClient::new(server.admin(), root.credentials);
    wait_until(|| root.get("/session").status == 200, || server.log());
    wait_until(|| limit(&server, "search") == Some(9), || server.log());
    assert_eq!((limit(&server, "mail"), limit(&server, "upload")), (None, None));
    assert_eq!(root.get(&format!("{POLICIES}/search")).json()["revision"], 2);
    for absent in ["mail", "upload"] {
        assert_eq!(root.get(&format!("{POLICIES}/{absent}")).status, 404, "{absent}");
    }
}

/// The deletion of all policies is a state of its own and no empty database.
#[test]
fn policy_file_does_not_revive_the_only_policy_after_its_deletion() {
    let directory = Directory::new();
    let file = directory.write("policies.toml", &policy_of_all("search", 3));
    let file = file.to_str().unwrap().to_owned();
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let mut server = with_database(directory, &url, &["--policies", &file]);
    let root = AdminClient::set_up(&server);
    let path = format!("{POLICIES}/search");
    let deleted = root.send("DELETE", &path, &[("if-match", "1")], &Value::Null);
    assert_eq!(deleted.status, 200, "{}", deleted.body);
    server.kill();
    let server = server.restart(&["--admin", "127.0.0.1:0", "--policies", &file]);
    wait_until(|| server.get("/readyz").status == 200, || server.log());
    assert_eq!(limit(&server, "search"), None);
    let root = AdminClient::new(server.admin(), root.credentials);
    wait_until(|| root.get("/session").status == 200, || server.log());
    assert_eq!(root.get(&path).status, 404);
}

/// A policy of another system, as the guide exports it.
const EXPORTED: &str = "
[policy.search]
algorithm = 'token_bucket'
capacity = 20
rate = '10/s'
apps = ['checkout', 'mobile']
created_by = 'ann'
created_at = 2024-02-01T10:00:00Z
updated_by = 'dave'
updated_at = 2025-06-30T15:04:05Z
note = 'agreed with the search team'

[policy.created]
algorithm = 'token_bucket'
capacity = 1
rate = '1/s'
created_by = 'ann'
created_at = 2024-02-01T10:00:00Z

[policy.plain]
algorithm = 'token_bucket'
capacity = 1
rate = '1/s'
";
/// The times of the file in microseconds.
const CREATED: i64 = 1_706_781_600_000_000;
const UPDATED: i64 = 1_751_295_845_000_000;

#[test]
fn first_revision_keeps_authors_times_and_note_of_the_file() {
    let directory = Directory::new();
    let file = directory.write("policies.toml", EXPORTED);
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let server = with_database(directory, &url, &["--policies", file.to_str().unwrap()]);
    let root = AdminClient::set_up(&server);
    let fields = |name: &str| {
        let policy = root.get(&format!("{POLICIES}/{name}")).json();
        ["created_by", "created_at", "updated_by", "updated_at", "note"].map(|field| policy[field].clone())
    };
    let note = "agreed with the search team";
    assert_eq!(
        fields("search"),
        [
            json!("ann"),
            json!(CREATED),
            json!("dave"),
            json!(UPDATED),
            json!(note)
        ]
    );
    assert_eq!(
        fields("created"),
        [
            json!("ann"),
            json!(CREATED),
            json!("ann"),
            json!(CREATED),
            Value::Null
        ]
    );
    let [created_by, created_at, updated_by, ..] = fields("plain");
    assert_eq!((&created_by, &updated_by), (&json!("import"), &json!("import")));
    assert!(created_at.as_i64().unwrap() > UPDATED);
    let history = root.get(&format!("{POLICIES}/search/history")).json();
    let first = &history["revisions"][0];
    assert_eq!(
        (&first["author"], &first["created_at"]),
        (&json!("dave"), &json!(UPDATED))
    );
    // The audit records the import, now.
    let audit = root.get("/namespaces/default/audit?object=search").json();
    let entry = &audit["entries"][0];
    assert_eq!(
        (&entry["actor"], &entry["action"]),
        (&json!("import"), &json!("policy.create"))
    );
    assert!(entry["at"].as_i64().unwrap() > UPDATED);
    // An edit keeps the creation.
    let saved = root.put_policy("created", 1, &policy_of_all("created", 2));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let [created_by, created_at, updated_by, ..] = fields("created");
    assert_eq!(
        (created_by, created_at, updated_by),
        (json!("ann"), json!(CREATED), json!("root"))
    );
}
