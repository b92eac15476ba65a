//! Names of the longest permitted length.

use serde_json::json;

use crate::support::admin::{AdminClient, Credentials, policy_of_all, with_sqlite};

const TOKENS: &str = "/namespaces/default/tokens";

/// The author of a change is a column of 255 characters in MySQL and MariaDB.
#[test]
fn author_of_a_change_by_a_token_has_at_most_255_bytes() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let create = |length: usize| {
        let body = json!({ "name": "t".repeat(length), "scopes": ["admin:admin"] });
        root.send("POST", TOKENS, &[], &body)
    };
    let refused = create(250);
    assert_eq!(refused.status, 422, "{}", refused.body);
    let created = create(249);
    assert_eq!(created.status, 201, "{}", created.body);
    let secret = created.json()["secret"].as_str().unwrap().to_owned();
    let program = AdminClient::new(server.admin(), Credentials::Token(secret));
    let saved = program.put_policy("search", 0, &policy_of_all("search", 5));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let found = root.get("/namespaces/default/policies/search").json();
    assert_eq!(found["created_by"].as_str().map(str::len), Some(255), "{found}");
}
