//! Saves of a policy that are repeated or refused.

use super::edit::{SEARCH, bucket, hidden};
use crate::support::admin::{AdminClient, policy, with_sqlite};
use crate::support::browser::Browser;

/// A browser sends a form again when the author presses the button twice.
#[test]
fn repeated_save_leads_to_the_saved_policy() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let mut browser = Browser::signed_in(&server, "root");
    for (path, name, revision) in [
        ("/e/default/new", "mail", "0"),
        (&format!("{SEARCH}/edit"), "search", "1"),
    ] {
        let new = [("name", name), ("revision", revision)];
        let preview = browser
            .post(path, &[&new, bucket("70", "7").as_slice()].concat())
            .body;
        let text = hidden(&preview, "text");
        let fields = [("text", &*text), ("revision", revision)];
        let save = format!("/e/default/policies/{name}/save");
        for _ in 0..2 {
            let saved = browser.post(&save, &fields);
            assert_eq!(saved.status, 303, "{}", saved.body);
        }
        let history = root
            .get(&format!("/namespaces/default/policies/{name}/history"))
            .json();
        let count = history["revisions"].as_array().unwrap().len();
        assert_eq!(
            count.to_string(),
            if name == "mail" { "1" } else { "2" },
            "{history}"
        );
    }
}

#[test]
fn refused_save_keeps_the_text_and_the_reason() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let mut browser = Browser::signed_in(&server, "root");
    let text = policy("search", 6, "shop");
    for (name, revision) in [("search", "1"), ("mail", "0")] {
        let text = text.replace("search", name);
        let fields = [("text", &*text), ("revision", revision), ("reason", "a\0sale")];
        let refused = browser.post(&format!("/e/default/policies/{name}/save"), &fields);
        assert_eq!(refused.status, 422, "{}", refused.body);
        for kept in ["role=\"alert\"", "name=\"reason\" value=\"a", "capacity = 6"] {
            assert!(refused.body.contains(kept), "{name}: {kept}: {}", refused.body);
        }
    }
}
