//! A name of a deleted policy belongs to the app that uses it next.

use serde_json::Value;

use crate::support::admin::{AdminClient, policy, with_sqlite};

const SEARCH: &str = "/namespaces/default/policies/search";

#[test]
fn conflict_with_a_deleted_policy_of_another_app_shows_no_version() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let text = format!("{}note = 'secret'\n", policy("search", 7, "shop"));
    let saved = root.put_policy("search", 0, &text);
    assert_eq!(saved.status, 200, "{}", saved.body);
    let deleted = root.send("DELETE", SEARCH, &[("if-match", "1")], &Value::Null);
    assert_eq!(deleted.status, 200, "{}", deleted.body);
    let owner = root.add_user("fred", &[("mobile", "owner")]);
    assert_eq!(owner.get(&format!("{SEARCH}/history")).status, 404);
    let refused = owner.put_policy("search", 9, &policy("search", 5, "mobile"));
    assert_eq!(refused.status, 409, "{}", refused.body);
    assert_eq!(refused.json()["current"], Value::Null, "{}", refused.body);
    assert!(!refused.body.contains("revision is 2"), "{}", refused.body);
    // Users with a role in the app see the deleted version.
    let refused = root.put_policy("search", 9, &policy("search", 5, "shop"));
    assert_eq!(refused.json()["current"]["revision"], 2, "{}", refused.body);
    let created = owner.put_policy("search", 0, &policy("search", 5, "mobile"));
    assert_eq!(created.status, 200, "{}", created.body);
}
