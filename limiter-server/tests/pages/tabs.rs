//! The tabs of the editor of a policy, without scripts.

use super::edit::{SEARCH, bucket};
use crate::support::admin::{AdminClient, policy, with_sqlite};
use crate::support::browser::Browser;
use crate::support::server::Server;

const WINDOW: &str = "[policy.search]\nalgorithm = 'fixed_window'\nlimit = 7\nwindow = '1d'\nalign = '+02:00'\napps = ['shop']\n";

fn with_policy() -> (Server, AdminClient, Browser) {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let browser = Browser::signed_in(&server, "root");
    (server, root, browser)
}

/// The value of a field of the page, without HTML escapes.
fn value(page: &str, name: &str) -> String {
    let (_, rest) = page
        .split_once(&format!("name=\"{name}\" value=\""))
        .unwrap_or_else(|| panic!("{name}: {page}"));
    unescape(rest.split('"').next().unwrap_or_default())
}

/// The text of the page.
fn text(page: &str) -> String {
    let (_, rest) = page
        .split_once("<textarea name=\"text\"")
        .unwrap_or_else(|| panic!("{page}"));
    let (_, rest) = rest.split_once('>').unwrap();
    unescape(rest.split("</textarea>").next().unwrap_or_default())
}

fn unescape(text: &str) -> String {
    text.replace("&#34;", "\"")
        .replace("&#39;", "'")
        .replace("&#38;", "&")
}

#[test]
fn tabs_keep_the_typed_values() {
    let (_server, _root, mut browser) = with_policy();
    let path = format!("{SEARCH}/edit");
    let typed = [
        vec![
            ("as", "toml"),
            ("key", "acme"),
            ("inheritance", "reset"),
            ("revision", "1"),
        ],
        bucket("70", "7"),
    ]
    .concat();
    let page = browser.post(&path, &typed);
    assert_eq!(page.status, 200, "{}", page.body);
    let shown = text(&page.body);
    assert!(
        shown.contains("70/1h") && shown.contains("capacity = 7"),
        "{shown}"
    );
    assert_eq!(value(&page.body, "key"), "acme");
    assert!(page.body.contains("value=\"reset\" selected"), "{}", page.body);

    // The form shows the numbers of the text, and the settings beside them are not lost.
    let page = browser.post(&path, &[("as", "form"), ("text", WINDOW), ("revision", "1")]);
    assert_eq!(page.status, 200, "{}", page.body);
    assert_eq!(value(&page.body, "requests"), "7");
    let base = value(&page.body, "base");
    let form = [
        ("as", "toml"),
        ("base", base.as_str()),
        ("algorithm", "fixed_window"),
        ("requests", "8"),
        ("per", "1d"),
        ("enforcement", "enforce"),
        ("apps", "shop"),
    ];
    let shown = text(&browser.post(&path, &form).body);
    assert!(shown.contains("+02:00") && shown.contains("limit = 8"), "{shown}");
    let preview = browser.post(&path, &form[1..]).body;
    assert!(
        preview.contains("8 requests") && preview.contains("+02:00"),
        "{preview}"
    );
    assert_eq!(value(&preview, "base"), base);
}

#[test]
fn contents_without_another_form_stay_in_their_tab() {
    let (_server, _root, mut browser) = with_policy();
    let path = format!("{SEARCH}/edit");
    let page = browser.post(&path, &[vec![("as", "toml")], bucket("many", "7")].concat());
    assert_eq!(page.status, 422, "{}", page.body);
    assert_eq!(value(&page.body, "requests"), "many");
    assert!(page.body.contains("expected a number"), "{}", page.body);
    for wrong in ["[policy.search", "[policy.other]\n"] {
        let page = browser.post(&path, &[("as", "form"), ("text", wrong)]);
        assert_eq!(page.status, 422, "{}", page.body);
        assert_eq!(text(&page.body).trim(), wrong.trim());
    }
}

#[test]
fn tabs_of_a_new_policy_keep_the_typed_values() {
    let (_server, _root, mut browser) = with_policy();
    let fields = [vec![("as", "toml"), ("name", "mail")], bucket("70", "7")].concat();
    let page = browser.post("/e/default/new", &fields).body;
    let shown = text(&page);
    assert!(shown.contains("[policy.mail]"), "{shown}");
    let page = browser
        .post("/e/default/new", &[("as", "form"), ("text", &shown)])
        .body;
    assert_eq!(
        (&*value(&page, "name"), &*value(&page, "burst")),
        ("mail", "7"),
        "{page}"
    );
    // The policy has the name of the form, also if the text had another one.
    let base = value(&page, "base");
    let fields = [vec![("base", base.as_str()), ("name", "post")], bucket("70", "7")].concat();
    let page = browser.post("/e/default/new", &fields);
    assert_eq!(page.status, 200, "{}", page.body);
    let shown = value(&page.body, "text");
    assert!(
        shown.contains("[policy.post]") && !shown.contains("mail"),
        "{shown}"
    );
    // A policy without a name keeps its values.
    let page = browser.post(
        "/e/default/new",
        &[vec![("as", "toml")], bucket("70", "7")].concat(),
    );
    assert!(text(&page.body).contains("capacity = 7"), "{}", page.body);
}

#[test]
fn text_is_offered_to_owners() {
    let (server, root, owner) = with_policy();
    root.add_user("eve", &[("shop", "editor")]);
    let editor = Browser::signed_in(&server, "eve");
    for path in [format!("{SEARCH}/edit"), format!("{SEARCH}/edit?as=toml")] {
        let page = editor.get(&path).body;
        assert!(
            !page.contains("value=\"toml\"") && !page.contains("<textarea"),
            "{page}"
        );
        assert!(owner.get(&path).body.contains("value=\"toml\""), "{path}");
    }
}

#[test]
fn new_policy_keeps_an_app_with_a_comma() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let mut browser = Browser::signed_in(&server, "root");
    let page = browser.get("/e/default/new?app=shop%2C%20web").body;
    let (apps, base) = (value(&page, "apps"), value(&page, "base"));
    let fields = [
        ("name", "search"),
        ("revision", "0"),
        ("base", &base),
        ("algorithm", "token_bucket"),
        ("requests", "1"),
        ("per", "1h"),
        ("burst", "2"),
        ("enforcement", "shadow"),
        ("apps", &apps),
    ];
    let preview = browser.post("/e/default/new", &fields);
    assert_eq!(preview.status, 200, "{}", preview.body);
    let text = value(&preview.body, "text");
    let saved = browser.post(&format!("{SEARCH}/save"), &[("text", &text), ("revision", "0")]);
    assert_eq!(saved.status, 303, "{}", saved.body);
    let stored = root.get("/namespaces/default/policies/search").json();
    assert_eq!(stored["apps"], serde_json::json!(["shop, web"]), "{stored}");
}
