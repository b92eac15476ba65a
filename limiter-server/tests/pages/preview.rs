//! The preview of a change: numbers, keys, warnings.

use serde_json::json;

use super::edit::{SEARCH, bucket};
use crate::support::admin::{AdminClient, policy, with_sqlite};
use crate::support::browser::Browser;
use crate::support::http;
use crate::support::server::wait_until;

#[test]
fn preview_states_the_effect_in_numbers() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 100, "shop"));
    let mut browser = Browser::signed_in(&server, "root");
    let page = browser.post(&format!("{SEARCH}/edit"), &bucket("1", "50")).body;
    let treatments = ["40 of 100", "40 of 50", "20 of 50", "50 of 50"];
    for expected in treatments.into_iter().chain(["(chosen)", "app shop"]) {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    let points = |class: &str| {
        let start = format!("<polyline class=\"{class}\" points=\"");
        let (_, rest) = page
            .split_once(&start)
            .unwrap_or_else(|| panic!("{class}: {page}"));
        rest.split('"').next().unwrap_or_default().trim().to_owned()
    };
    let (before, after) = (points("curve-before"), points("curve-after"));
    for curve in [&before, &after] {
        assert!(curve.split(' ').count() > 2, "{curve}");
    }
    assert_ne!(before, after);
    assert!(page.contains(" requests</span><span>0</span>"), "{page}");
    let page = browser.post(&format!("{SEARCH}/edit"), &bucket("1", "10")).body;
    assert!(page.contains("less than half"), "{page}");
}

#[test]
fn preview_states_the_effect_on_keys() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 10, "shop"));
    let check = |key: &str| {
        let body = json!({ "policy": "search", "key": key }).to_string();
        http::post(server.http(), "/v1/check", &[], &body).unwrap().status
    };
    wait_until(|| check("globex") == 200, || server.log());
    // The key `acme` is nearly exhausted, so it is sampled; `globex` is entered.
    assert_eq!((0..9).map(|_| check("acme")).collect::<Vec<_>>(), [200; 9]);
    let mut browser = Browser::signed_in(&server, "root");
    let fields = [vec![("key", "globex")], bucket("1", "4")].concat();
    let page = browser.post(&format!("{SEARCH}/edit"), &fields).body;
    let (_, table) = page.split_once("Left now</th>").unwrap();
    let row = |key: &str| {
        let (_, rest) = table
            .split_once(&format!("<th scope=\"row\">{key}</th>"))
            .unwrap_or_else(|| panic!("{key}: {page}"));
        rest.split("</tr>").next().unwrap_or_default().to_owned()
    };
    let acme = row("acme");
    for expected in [">1 of 10<", ">1 of 4<", ">0 of 4<", ">4 of 4<"] {
        assert!(acme.contains(expected), "{expected}: {acme}");
    }
    assert!(row("globex").contains(" of 10<"), "{page}");
    let audit = root.get("/namespaces/default/audit").body;
    assert_eq!(audit.matches("key.read").count(), 1, "{audit}");
}

#[test]
fn preview_of_rules_lists_changed_descriptors() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let mut browser = Browser::signed_in(&server, "root");
    let rules = "[[rule]]\ndomain = 'edge'\nmatch = ['route=search', 'customer']\npolicy = 'search'\n";
    let fields = [("toml", rules), ("revision", "0"), ("reason", "")];
    let page = browser.post("/e/default/rules/preview", &fields);
    assert_eq!(page.status, 200, "{}", page.body);
    assert!(
        page.body.contains("customer={customer}") && page.body.contains("search, key {customer}"),
        "{}",
        page.body
    );
    assert!(
        browser
            .get("/e/default/rules")
            .body
            .contains("There are no rules.")
    );
    assert_eq!(browser.post("/e/default/rules", &fields).status, 303);
    let same = [("toml", rules), ("revision", "1"), ("reason", "")];
    let page = browser.post("/e/default/rules/preview", &same).body;
    assert!(page.contains("No descriptor changes"), "{page}");
    let wrong = [("toml", "[[rule]]"), ("revision", "1"), ("reason", "")];
    let page = browser.post("/e/default/rules/preview", &wrong);
    assert_eq!(page.status, 422, "{}", page.body);
    assert!(page.body.contains("role=\"alert\""), "{}", page.body);
}

/// The preview keeps the revision that the user read, so the save conflicts with the rules of
/// another user. A text with errors keeps it, too.
#[test]
fn preview_of_rules_keeps_the_revision_that_was_read() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let mut browser = Browser::signed_in(&server, "root");
    let rule = |entry: &str| format!("[[rule]]\nmatch = ['{entry}']\npolicy = 'search'\n");
    let save = |condition: (&str, &str), text: &str| {
        let body = json!({ "toml": text });
        root.send("PUT", "/namespaces/default/rules", &[condition], &body)
            .status
    };
    assert_eq!(save(("if-none-match", "*"), &rule("first")), 200);
    let of_other = rule("first") + &rule("of-other");
    assert_eq!(save(("if-match", "1"), &of_other), 200);
    let mut send = |path: &str, text: &str| {
        let fields = [("toml", text), ("revision", "1"), ("reason", "")];
        let page = browser.post(path, &fields);
        let revision = page.body.split_once("name=\"revision\" value=\"").unwrap().1;
        (page.status, revision.split('"').next().unwrap().to_owned())
    };
    let preview = "/e/default/rules/preview";
    assert_eq!(send(preview, "[[rule]]"), (422, "1".to_owned()));
    assert_eq!(send(preview, &rule("mine")), (409, "2".to_owned()));
    assert_eq!(send("/e/default/rules", &rule("mine")), (409, "2".to_owned()));
}

#[test]
fn preview_warns_of_shadow_mode_and_aligned_periods() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let shadow = policy("search", 5, "shop") + "enforcement = 'shadow'\n";
    root.put_policy("search", 0, &shadow);
    let mut browser = Browser::signed_in(&server, "root");
    let page = browser.post(&format!("{SEARCH}/edit"), &bucket("1", "5")).body;
    assert!(
        page.contains("it is not known how many would be denied"),
        "{page}"
    );
    let text = "[policy.search]\nalgorithm = 'fixed_window'\nlimit = 5\nwindow = '1d'\nalign = '+02:00'\n";
    let page = browser.post(&format!("{SEARCH}/edit"), &[("text", text)]).body;
    let resets = page.split_once("Next resets:").map_or("", |(_, rest)| rest);
    let resets = resets.split("</p>").next().unwrap_or_default();
    assert_eq!(resets.matches("22:00 UTC").count(), 3, "{page}");
    assert!(page.contains("fixed offset +02:00"), "{page}");
}
