//! Policies of a repository: read-only in the API and on the pages, except quotas of keys. Blocks
//! and suspensions remain possible.

use serde_json::{Value, json};

use crate::support::admin::{AdminClient, policy, with_sqlite};
use crate::support::browser::Browser;
use crate::support::http;
use crate::support::server::{Server, run, wait_until};

const SEARCH: &str = "/namespaces/default/policies/search";
const PAGE: &str = "/e/default/policies/search";

/// Applies a policy file to the database of a server, as a pipeline of the repository does.
fn apply(server: &Server, text: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let file = server.directory().write("repository.toml", text);
    let database = format!(
        "sqlite:{}",
        server.directory().path().join("limiter.db").display()
    );
    let usual = [
        "policy",
        "apply",
        "-f",
        file.to_str().unwrap(),
        "--database",
        &database,
    ];
    run(&[&usual, args].concat())
}

fn check(server: &Server, key: &str) -> u16 {
    let body = json!({ "policy": "search", "key": key }).to_string();
    http::post(server.http(), "/v1/check", &[], &body).unwrap().status
}

fn with_repository() -> (Server, AdminClient, String) {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let text = policy("search", 1, "shop");
    let (code, _, errors) = apply(&server, &text, &["--managed-by", "git"]);
    assert_eq!(code, Some(0), "{errors}");
    (server, root, text)
}

#[test]
fn policy_of_a_repository_is_changed_there_only() {
    let (server, root, text) = with_repository();
    let found = root.get(SEARCH).json();
    assert_eq!(
        (&found["managed_by"], &found["revision"]),
        (&json!("git"), &json!(1))
    );
    let changed = json!({ "toml": policy("search", 2, "shop") });
    let reset = json!({ "toml": text, "inheritance": "reset" });
    let trial = json!({ "capacity": 7, "rate": "1/h", "for_seconds": 60 });
    for (method, path, body) in [
        ("PUT", "", &changed),
        ("PUT", "", &reset),
        ("DELETE", "", &Value::Null),
        ("PUT", "/trial", &trial),
    ] {
        let refused = root.send(method, &format!("{SEARCH}{path}"), &[("if-match", "1")], body);
        assert_eq!(refused.status, 409, "{method} {path}: {}", refused.body);
        assert!(refused.body.contains("is managed by git"), "{}", refused.body);
    }
    let mut browser = Browser::signed_in(&server, "root");
    let page = browser.get(PAGE).body;
    assert!(
        page.contains("The policy is managed by git. Change it there."),
        "{page}"
    );
    assert!(!page.contains("/trial\""), "no form for a trial: {page}");
    let saved = browser.post(
        &format!("{PAGE}/save"),
        &[("text", &policy("search", 2, "shop")), ("revision", "1")],
    );
    assert_eq!(saved.status, 409, "{}", saved.body);
    let deleted = browser.post(&format!("{PAGE}/delete"), &[("revision", "1")]);
    assert_eq!(deleted.status, 409, "{}", deleted.body);
    assert_eq!(root.get(SEARCH).json()["revision"], 1);
    // An editor beyond the bounds proposes nothing for it either.
    let bounds = json!({ "bounds": { "max_capacity": 1 } });
    root.send("PUT", "/namespaces/default/apps/shop", &[], &bounds);
    let editor = root.add_user("eve", &[("shop", "editor")]);
    let proposed = editor.put_policy("search", 1, &policy("search", 2, "shop"));
    assert_eq!(proposed.status, 409, "{}", proposed.body);

    let (code, _, errors) = apply(&server, &policy("search", 3, "shop"), &["--managed-by", "git"]);
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(root.get(SEARCH).json()["revision"], 2);
    // The numbers of a trial in the file are adopted there, too.
    let trial = "trial = { capacity = 7, rate = '1/h', until = 2100-01-01T00:00:00Z }\n";
    let text = format!("{}{trial}", policy("search", 3, "shop"));
    let (code, _, errors) = apply(&server, &text, &["--managed-by", "git"]);
    assert_eq!(code, Some(0), "{errors}");
    let adopt = format!("{SEARCH}/trial/adopt");
    let adopted = root.send("POST", &adopt, &[("if-match", "3")], &json!({}));
    assert_eq!(adopted.status, 409, "{}", adopted.body);
}

#[test]
fn quotas_blocks_and_suspensions_apply_to_a_policy_of_a_repository() {
    let (server, root, text) = with_repository();
    wait_until(|| check(&server, "ann") == 429, || server.log());
    let quota = json!({ "key": "ann", "capacity": 100, "rate": "100/s" });
    let path = format!("{SEARCH}/quotas");
    let set = root.send("POST", &path, &[("if-match", "1")], &quota);
    assert_eq!(set.status, 200, "{}", set.body);
    wait_until(|| check(&server, "ann") == 200, || server.log());
    assert_eq!(root.get(SEARCH).json()["managed_by"], "git");
    // The next run of the pipeline keeps the quota.
    let (code, output, errors) = apply(&server, &text, &["--managed-by", "git"]);
    assert_eq!((code, output.as_str()), (Some(0), "no changes\n"), "{errors}");
    let removed = root.send("DELETE", &path, &[("if-match", "2")], &json!({ "key": "ann" }));
    assert_eq!(removed.status, 200, "{}", removed.body);
    wait_until(|| check(&server, "ann") == 429, || server.log());

    let block = json!({ "key": "bob", "app": "shop", "for_seconds": 600 });
    let blocked = root.send("POST", "/namespaces/default/blocks", &[], &block);
    assert_eq!(blocked.status, 200, "{}", blocked.body);
    wait_until(|| check(&server, "bob") == 403, || server.log());
    let suspension = json!({ "scope": "policy:search", "enforcement": "off", "for_seconds": 600 });
    let suspended = root.send("POST", "/namespaces/default/suspensions", &[], &suspension);
    assert_eq!(suspended.status, 200, "{}", suspended.body);
    wait_until(|| check(&server, "ann") == 200, || server.log());
}
