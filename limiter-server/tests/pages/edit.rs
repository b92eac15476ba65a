//! The pages on which policies change.

use limiter_server::admin::api::routes::ROUTES;
use limiter_server::admin::pages::forms::FORMS;
use serde_json::json;

use crate::support::admin::{AdminClient, policy, with_sqlite};
use crate::support::browser::Browser;
use crate::support::server::wait_until;

pub(super) const SEARCH: &str = "/e/default/policies/search";

/// The fields of the form of a token bucket.
pub(super) fn bucket<'a>(requests: &'a str, burst: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("algorithm", "token_bucket"),
        ("requests", requests),
        ("per", "1h"),
        ("burst", burst),
        ("enforcement", "enforce"),
        ("apps", "shop"),
    ]
}

/// The value of a hidden field, without HTML escapes.
pub(super) fn hidden(page: &str, name: &str) -> String {
    let marker = format!("<input type=\"hidden\" name=\"{name}\" value=\"");
    let (_, rest) = page
        .split_once(&marker)
        .unwrap_or_else(|| panic!("{name}: {page}"));
    let value = rest.split('"').next().unwrap_or_default();
    [
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&#60;", "<"),
        ("&#62;", ">"),
        ("&#38;", "&"),
    ]
    .iter()
    .fold(value.to_owned(), |value, (escape, plain)| {
        value.replace(escape, plain)
    })
}

/// Previews a form and saves the previewed text.
fn save(browser: &mut Browser, path: &str, name: &str, fields: &[(&str, &str)]) -> String {
    let preview = browser.post(path, fields);
    assert_eq!(preview.status, 200, "{}", preview.body);
    let text = hidden(&preview.body, "text");
    let revision = hidden(&preview.body, "revision");
    let fields = [("text", &*text), ("revision", &*revision), ("reason", "a sale")];
    let saved = browser.post(&format!("/e/default/policies/{name}/save"), &fields);
    assert_eq!(saved.status, 303, "{}", saved.body);
    saved.header("location").unwrap().to_owned()
}

#[test]
fn policy_is_created_changed_and_restored_without_scripts() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let mut browser = Browser::signed_in(&server, "root");
    let new = [vec![("name", "search")], bucket("100", "20")].concat();
    let page = save(&mut browser, "/e/default/new", "search", &new);
    assert_eq!(page, "/e/default/policies/search?notice=saved");
    let page = browser.get(&page).body;
    let sentence = "Each key may make 100 requests an hour, with bursts of 20.";
    assert!(page.contains(sentence) && page.contains("Saved."), "{page}");
    wait_until(|| browser.get(SEARCH).body.contains("In force"), || server.log());
    let edit = browser.get(&format!("{SEARCH}/edit"));
    assert!(edit.body.contains("value=\"100\""), "{}", edit.body);
    save(
        &mut browser,
        &format!("{SEARCH}/edit"),
        "search",
        &bucket("50", "5"),
    );
    let page = browser.get(SEARCH).body;
    assert!(
        page.contains("50 requests an hour") && page.contains("a sale"),
        "{page}"
    );
    let old = browser.get(&format!("{SEARCH}/history/1")).body;
    assert!(old.contains("100 requests an hour"), "{old}");
    let fields = [("number", "1"), ("newest", "2")];
    assert_eq!(browser.post(&format!("{SEARCH}/restore"), &fields).status, 303);
    assert!(browser.get(SEARCH).body.contains("100 requests an hour"));
    let current = root.get("/namespaces/default/policies/search").json();
    assert_eq!(
        (&current["revision"], &current["updated_by"]),
        (&json!(3), &json!("root"))
    );
    let deleted = browser.post(&format!("{SEARCH}/delete"), &[("revision", "3")]);
    assert_eq!(deleted.status, 303, "{}", deleted.body);
    let page = browser.get(SEARCH);
    assert_eq!(
        page.header("location"),
        Some("/e/default/policies/search/history/4")
    );
    let page = browser.get("/e/default/policies/search/history/4").body;
    assert!(page.contains("Restore revision 3"), "{page}");
}

#[test]
fn declared_parts_of_keys_are_fields() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let mut browser = Browser::signed_in(&server, "root");
    let fields = [vec![("key_parts", "tenant, user")], bucket("100", "20")].concat();
    save(&mut browser, &format!("{SEARCH}/edit"), "search", &fields);
    let page = browser.get(SEARCH).body;
    let sentence = "Each tenant and user may make 100 requests an hour, with bursts of 20.";
    assert!(page.contains(sentence), "{page}");
    assert!(page.contains("tenant <input name=\"part_0\"") && page.contains("user <input name=\"part_1\""));
    let quota = [
        ("part_0", "acme:eu"),
        ("part_1", "ann"),
        ("requests", "9"),
        ("per", "1h"),
        ("burst", "90"),
        ("until", ""),
    ];
    let set = browser.post(&format!("{SEARCH}/quotas"), &quota);
    assert_eq!(set.status, 303, "{}", set.body);
    let toml = root.get("/namespaces/default/policies/search").json()["toml"].to_string();
    // The library escapes a colon in a part.
    assert!(toml.contains("acme%3Aeu:ann"), "{toml}");
}

#[test]
fn wrong_values_are_shown_beside_the_form() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let mut browser = Browser::signed_in(&server, "root");
    for (requests, expected) in [("many", "expected a number"), ("0", "expected")] {
        let page = browser.post(&format!("{SEARCH}/edit"), &bucket(requests, "5"));
        assert_eq!(page.status, 422, "{}", page.body);
        assert!(page.body.contains(expected), "{}", page.body);
        assert!(
            page.body.contains(&format!("value=\"{requests}\"")),
            "{}",
            page.body
        );
    }
    let page = browser.post("/e/default/new", &bucket("1", "5"));
    assert!(page.body.contains("A name is missing"), "{}", page.body);
    let fields = [vec![("name", "search")], bucket("1", "5")].concat();
    let page = browser.post("/e/default/new", &fields);
    assert!(page.body.contains("exists"), "{}", page.body);
}

#[test]
fn conflict_shows_both_versions() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let mut browser = Browser::signed_in(&server, "root");
    let path = format!("{SEARCH}/edit");
    let fields = [vec![("revision", "1")], bucket("70", "7")].concat();
    let preview = browser.post(&path, &fields).body;
    let text = hidden(&preview, "text");
    // Another author saves between the preview and the save.
    let other = root.put_policy("search", 1, &policy("search", 6, "shop"));
    assert_eq!(other.status, 200, "{}", other.body);
    let fields = [("text", &*text), ("revision", "1"), ("reason", "a sale")];
    let conflict = browser.post(&format!("{SEARCH}/save"), &fields);
    assert_eq!(conflict.status, 409, "{}", conflict.body);
    assert!(
        conflict.body.contains("bursts of 6") && conflict.body.contains("70/h"),
        "{}",
        conflict.body
    );
    assert!(hidden(&conflict.body, "reason") == "a sale", "{}", conflict.body);
    // The author continues on top of the newer revision.
    let fields = [("text", &*text), ("revision", "2")];
    save(&mut browser, &path, "search", &fields);
    assert!(browser.get(SEARCH).body.contains("70 requests an hour"));
}

#[test]
fn editor_changes_numbers_and_proposes_larger_ones() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let bounds = json!({ "bounds": { "max_capacity": 10 } });
    root.send("PUT", "/namespaces/default/apps/shop", &[], &bounds);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    root.add_user("eve", &[("shop", "editor")]);
    root.add_user("olga", &[("shop", "owner")]);
    root.add_user("vera", &[("shop", "viewer")]);
    let mut editor = Browser::signed_in(&server, "eve");
    let page = editor.get(&format!("{SEARCH}/edit")).body;
    assert!(!page.contains("type=\"radio\""), "an editor changes numbers only");
    let saved = save(
        &mut editor,
        &format!("{SEARCH}/edit"),
        "search",
        &bucket("1", "9"),
    );
    assert!(saved.ends_with("notice=saved"), "{saved}");
    let proposed = save(
        &mut editor,
        &format!("{SEARCH}/edit"),
        "search",
        &bucket("1", "50"),
    );
    assert!(proposed.ends_with("notice=proposed"), "{proposed}");
    let page = editor.get(SEARCH).body;
    assert!(page.contains("Proposed by eve") && page.contains("Withdraw") && !page.contains("Approve"));
    let mut owner = Browser::signed_in(&server, "olga");
    let page = owner.get(SEARCH).body;
    let (_, rest) = page.split_once("/proposals/").unwrap();
    let id = rest.split('/').next().unwrap();
    let approve = format!("/e/default/proposals/{id}/approve");
    assert_eq!(editor.post(&approve, &[("policy", "search")]).status, 403);
    assert_eq!(owner.post(&approve, &[("policy", "search")]).status, 303);
    assert!(owner.get(SEARCH).body.contains("bursts of 50"));
    // A later change leaves a proposal that can only be rejected.
    let edit = format!("{SEARCH}/edit");
    let proposed = save(&mut editor, &edit, "search", &bucket("1", "60"));
    assert!(proposed.ends_with("notice=proposed"), "{proposed}");
    assert!(owner.get(SEARCH).body.contains("<button>Approve</button>"));
    save(&mut owner, &edit, "search", &bucket("1", "8"));
    let page = owner.get(SEARCH).body;
    assert!(page.contains("cannot be approved") && page.contains("<button>Reject</button>"));
    assert!(!page.contains("<button>Approve</button>"));
    let mut viewer = Browser::signed_in(&server, "vera");
    let page = viewer.get(SEARCH).body;
    assert!(
        !page.contains("/edit") && !page.contains("/quotas") && !page.contains("/delete"),
        "{page}"
    );
    assert_eq!(viewer.get(&format!("{SEARCH}/edit")).status, 403);
    let text = policy("search", 7, "shop");
    let fields = [("text", &*text), ("revision", "3")];
    assert_eq!(viewer.post(&format!("{SEARCH}/save"), &fields).status, 403);
}

#[test]
fn quota_of_a_key_is_set_and_removed() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let mut browser = Browser::signed_in(&server, "root");
    let quota = |revision: &'static str, key: &'static str, form: &'static str| {
        vec![
            ("revision", revision),
            ("key", key),
            ("form", form),
            ("requests", "9"),
            ("per", "1h"),
            ("burst", "90"),
            ("until", "2090-12-31T18:00"),
        ]
    };
    let path = format!("{SEARCH}/quotas");
    let set = browser.post(&path, &quota("1", "acme", "text"));
    assert_eq!(set.status, 303, "{}", set.body);
    let page = browser.get(SEARCH).body;
    assert!(
        page.contains("acme") && page.contains("bursts of 90") && page.contains("2090-12-31"),
        "{page}"
    );
    let set = browser.post(&path, &quota("2", "a:b\r\nc", "parts"));
    assert_eq!(set.status, 303, "{}", set.body);
    let toml = root.get("/namespaces/default/policies/search").json()["toml"].to_string();
    assert_eq!(toml.matches("[[override]]").count(), 2, "{toml}");
    let key = hidden(&browser.get(SEARCH).body, "key");
    let fields = [("revision", "3"), ("key", &*key)];
    assert_eq!(browser.post(&format!("{path}/remove"), &fields).status, 303);
    let toml = root.get("/namespaces/default/policies/search").json()["toml"].to_string();
    assert_eq!(toml.matches("[[override]]").count(), 1, "{toml}");
}

/// The list shows both keys as one text.
#[test]
fn quota_of_a_key_is_removed_beside_one_with_an_equal_text() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let quota = |key: &str, capacity: u32| {
        format!("[[override]]\npolicy = 'search'\n{key}\ncapacity = {capacity}\nrate = '1/h'\n")
    };
    let quotas = quota("key = 'acme in eu'", 41) + &quota("key = 'acme'\ngroup = 'eu'", 42);
    let text = policy("search", 5, "shop") + &quotas;
    assert_eq!(root.put_policy("search", 0, &text).status, 200);
    let mut browser = Browser::signed_in(&server, "root");
    let page = browser.get(SEARCH).body;
    let (_, form) = page.split_once("quotas/remove\"").unwrap();
    let sentence = form.split("</p>").next().unwrap();
    let kept = if sentence.contains("41") { "42" } else { "41" };
    let fields = [("revision", "1"), ("key", &*hidden(form, "key"))];
    let removed = browser.post(&format!("{SEARCH}/quotas/remove"), &fields);
    assert_eq!(removed.status, 303, "{}", removed.body);
    let toml = root.get("/namespaces/default/policies/search").json()["toml"].to_string();
    assert_eq!(toml.matches("[[override]]").count(), 1, "{toml}");
    assert!(toml.contains(&format!("capacity = {kept}")), "{toml}");
}

#[test]
fn texts_of_users_are_escaped() {
    const ATTACK: &str = "<script>alert(1)</script>\"'&x";
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let mut browser = Browser::signed_in(&server, "root");
    let fields = [
        vec![("name", ATTACK), ("note", ATTACK)],
        bucket("100", "20")
            .into_iter()
            .map(|(name, value)| match name {
                "apps" => (name, ATTACK),
                name => (name, value),
            })
            .collect(),
    ]
    .concat();
    let preview = browser.post("/e/default/new", &fields);
    assert!(!preview.body.contains("<script>a"), "{}", preview.body);
    let text = hidden(&preview.body, "text");
    let name = crate::support::browser::encode(ATTACK);
    let path = format!("/e/default/policies/{name}");
    let fields = [("text", &*text), ("revision", "0"), ("reason", ATTACK)];
    let saved = browser.post(&format!("{path}/save"), &fields);
    assert_eq!(saved.status, 303, "{}", saved.body);
    let quota = [
        ("revision", "1"),
        ("key", ATTACK),
        ("form", "text"),
        ("requests", "1"),
        ("per", "1h"),
        ("burst", "1"),
        ("until", ""),
    ];
    assert_eq!(browser.post(&format!("{path}/quotas"), &quota).status, 303);
    let app = format!("/e/default/apps/{name}");
    for page in [
        path.clone(),
        format!("{path}/edit"),
        format!("{path}/edit?as=toml"),
        format!("{path}/delete"),
        format!("{path}/history/1"),
        app,
        "/e/default/apps".to_owned(),
        format!("/e/default/search?q={name}"),
        format!("/signin?next=/{name}"),
        format!("/setup?token={name}"),
        format!("{path}?notice={name}"),
    ] {
        let answer = browser.get(&page);
        assert!(matches!(answer.status, 200 | 303), "{page}: {}", answer.status);
        assert!(!answer.body.contains("<script>a"), "{page}");
        assert!(!answer.body.contains("\"'&x"), "{page}");
    }
    drop(root);
}

#[test]
fn each_form_uses_a_route_of_the_api() {
    for form in FORMS {
        let is_route = |route: &&limiter_server::admin::api::routes::Route| {
            route.method == form.method && route.path == form.api
        };
        assert!(ROUTES.iter().any(|route| is_route(&route)), "{form:?}");
    }
}

#[test]
fn each_form_of_the_pages_is_listed() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let browser = Browser::signed_in(&server, "root");
    for page in crate::PAGES {
        let answer = browser.get(page);
        assert_eq!(answer.status, 200, "{page}: {}", answer.body);
        for rest in answer.body.split("<form ").skip(1) {
            let tag = rest.split('>').next().unwrap_or_default();
            let Some((_, action)) = tag.split_once("action=\"") else {
                panic!("{page}: {tag}");
            };
            let action = action.split('"').next().unwrap_or_default();
            if tag.contains("method=\"get\"") {
                continue;
            }
            assert!(
                FORMS.iter().any(|form| matches(form.action, action)),
                "{page}: {action}"
            );
        }
    }
}

/// Returns whether a path has the form of a pattern with parameters in braces.
pub(super) fn matches(pattern: &str, path: &str) -> bool {
    let (pattern, path): (Vec<_>, Vec<_>) = (pattern.split('/').collect(), path.split('/').collect());
    let same = |(of, part): (&&str, &&str)| of.starts_with('{') || of == part;
    pattern.len() == path.len() && pattern.iter().zip(&path).all(same)
}
