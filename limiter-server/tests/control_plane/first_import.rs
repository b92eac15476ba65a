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
