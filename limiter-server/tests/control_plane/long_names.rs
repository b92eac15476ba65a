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

/// The server adds authors and times to a text. A stored text of more than 1 MiB could not be read
/// again, and would stop the publication of the namespace.
#[test]
fn text_that_is_too_long_with_its_author_is_rejected() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let with_note = |length: usize| {
        let text = policy_of_all("search", 5);
        format!("{text}note = '{}'\n", "n".repeat(length - text.len() - 10))
    };
    let saved = root.put_policy("search", 0, &with_note(1 << 20));
    assert!(
        saved.status == 422 && saved.body.contains("expected at most 1048576"),
        "{}: {}",
        saved.status,
        saved.body
    );
    let saved = root.put_policy("search", 0, &with_note((1 << 20) - 400));
    assert_eq!(saved.status, 200, "{}", saved.body);
}

/// Names of apps are columns of 255 characters in MySQL and MariaDB, also in a grant.
#[test]
fn grant_in_an_app_with_a_long_name_is_rejected() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let grant = |app: &str| {
        let path = format!("/namespaces/default/grants/user/ann/{app}");
        root.send("PUT", &path, &[], &json!({ "role": "viewer" })).status
    };
    assert_eq!(grant(&"a".repeat(256)), 422);
    assert_eq!(grant(&"a".repeat(255)), 204);
    assert_eq!(grant("*"), 204);
}
