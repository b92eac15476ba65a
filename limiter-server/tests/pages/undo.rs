//! Every form that changes production states the state before and after, and its undo. Pages have
//! at most one primary button.

use crate::support::admin::{AdminClient, policy, with_sqlite};
use crate::support::browser::Browser;
use crate::support::server::Server;

use super::edit::{SEARCH, bucket, matches};

/// Forms without a state before and after, with the reason.
const OTHERS: [(&str, &str); 19] = [
    ("/setup", "creates the first user"),
    ("/setup/environment", "changes the look of pages"),
    ("/setup/example", "creates an object"),
    ("/setup/import", "shows a preview"),
    ("/signin", "changes no limit"),
    ("/signout", "changes no limit"),
    ("/account/password", "changes no limit"),
    ("/settings/environments/{name}", "changes the look of pages"),
    ("/settings/users", "creates an object"),
    ("/settings/users/{name}/password", "changes no limit"),
    ("/e/{environment}/apps", "creates an object"),
    ("/e/{environment}/apps/{app}/connect/test", "sends calls"),
    ("/e/{environment}/new", "shows a preview"),
    ("/e/{environment}/policies/{name}/edit", "shows a preview"),
    ("/e/{environment}/rules/preview", "shows a preview"),
    (
        "/e/{environment}/suspended/{id}/extend",
        "the row states the consequence",
    ),
    (
        "/e/{environment}/suspended/{id}/end",
        "is the undo of a suspension",
    ),
    ("/e/{environment}/blocks/{id}/end", "is the undo of a block"),
    ("/e/{environment}/proposals/{id}/reject", "changes no limit"),
];

/// The forms of a page: action, and the panel that contains the form, or the form.
fn forms(page: &str) -> Vec<(String, String)> {
    let starts = page.match_indices("<form ").map(|(at, _)| at);
    let forms = starts.filter_map(|at| {
        let (before, rest) = page.split_at(at);
        let tag = rest.split('>').next()?;
        if !tag.contains("method=\"post\"") {
            return None;
        }
        let action = tag.split_once("action=\"")?.1.split('"').next()?;
        let section = before.rfind("<section").unwrap_or_default();
        let is_in_panel = section > before.rfind("</section>").unwrap_or_default()
            && before[section..].starts_with("<section class=\"panel\"");
        let region = match is_in_panel {
            true => page[section..].split("</section>").next()?,
            false => rest.split("</form>").next()?,
        };
        Some((action.to_owned(), region.to_owned()))
    });
    forms.collect()
}

/// A server with objects for all forms, and the browser of its administrator.
pub(super) fn with_objects() -> (Server, Browser) {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let bounds = serde_json::json!({ "bounds": { "max_capacity": 10 } });
    root.send("PUT", "/namespaces/default/apps/shop", &[], &bounds);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    root.add_user("eve", &[("shop", "editor")]);
    let mut browser = Browser::signed_in(&server, "root");
    let quota = [
        ("key", "acme"),
        ("form", "text"),
        ("requests", "9"),
        ("per", "1h"),
        ("burst", "9"),
        ("until", ""),
    ];
    assert_eq!(browser.post(&format!("{SEARCH}/quotas"), &quota).status, 303);
    let token = [("name", "ci"), ("scopes", "check:app=shop"), ("days", "9")];
    assert_eq!(browser.post("/e/default/tokens", &token).status, 200);
    let proposed = serde_json::json!({ "toml": policy("search", 50, "shop") });
    let editor = root.sign_in("eve");
    let path = "/namespaces/default/policies/search";
    let sent = editor.send("PUT", path, &[("if-match", "2")], &proposed);
    assert_eq!(sent.status, 202, "{}", sent.body);
    (server, browser)
}

/// The pages of a server with objects for all forms: those of all tests, and previews.
fn pages() -> Vec<(String, String)> {
    let (_server, mut browser) = with_objects();
    let rules = "[[rule]]\ndomain = 'edge'\nmatch = ['customer']\npolicy = 'search'\n";
    let yaml = "domain: edge\ndescriptors:\n  - key: customer\n    rate_limit:\n      unit: minute\n      \
                requests_per_unit: 5\n";
    let posts = [
        (format!("{SEARCH}/edit"), bucket("1", "9")),
        (
            "/e/default/rules/preview".to_owned(),
            vec![("toml", rules), ("revision", "0"), ("reason", "")],
        ),
        ("/setup/import".to_owned(), vec![("yaml", yaml)]),
    ];
    let mut pages = Vec::new();
    for (path, fields) in posts {
        let page = browser.post(&path, &fields);
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        pages.push((format!("preview of {path}"), page.body));
    }
    for path in crate::PAGES {
        pages.push(((*path).to_owned(), browser.get(path).body));
    }
    let trial = [
        ("revision", "2"),
        ("requests", "1"),
        ("per", "1h"),
        ("burst", "2"),
        ("until", "2090-12-31T18:00"),
        ("reason", ""),
    ];
    let started = browser.post(&format!("{SEARCH}/trial"), &trial);
    assert_eq!(started.status, 303, "{}", started.body);
    pages.push(("with a trial".to_owned(), browser.get(SEARCH).body));
    pages
}

#[test]
fn every_form_that_changes_production_states_before_after_and_undo() {
    let mut stated = Vec::new();
    for (page, body) in pages() {
        for (action, region) in forms(&body) {
            if OTHERS.iter().any(|(pattern, _)| matches(pattern, &action)) {
                continue;
            }
            for expected in ["Before", "After", "Undo"] {
                assert!(
                    region.contains(expected),
                    "{page}: {action}: no {expected}: {region}"
                );
            }
            stated.push(action);
        }
    }
    for expected in [
        "/save",
        "/e/default/rules",
        "/setup/import/save",
        "/delete",
        "/restore",
        "/quotas",
        "/quotas/remove",
        "/customers/raise",
        "/customers/reset",
        "/trial",
        "/trial/adopt",
        "/trial/drop",
        "/approve",
        "/blocks",
        "/suspended",
        "/people",
        "/people/remove",
        "/bounds",
        "/rotate",
        "/revoke",
        "/tokens",
        "/settings/users/root",
        "/settings/users/root/remove",
    ] {
        assert!(
            stated.iter().any(|of| of.ends_with(expected)),
            "{expected}: {stated:?}"
        );
    }
}

#[test]
fn pages_have_at_most_one_primary_button() {
    let mut primary = 0;
    for (page, body) in pages() {
        let count =
            body.matches("class=\"primary\"").count() + body.matches("class=\"button primary\"").count();
        assert!(count <= 1, "{page}: {count} primary buttons");
        primary += count;
    }
    assert!(primary > 10, "{primary}");
}

#[test]
fn ends_of_blocks_and_trials_are_instants_before_they_are_saved() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let browser = Browser::signed_in(&server, "root");
    for page in ["/e/default/customers?key=acme", "/e/default/suspended", SEARCH] {
        let body = browser.get(page).body;
        let (_, option) = body
            .split_once("data-name=\"1 day\"")
            .unwrap_or_else(|| panic!("{page}: {body}"));
        let text = option.split(['>', '<']).nth(1).unwrap();
        assert!(
            text.starts_with("1 day: ") && text.ends_with(" UTC"),
            "{page}: {text}"
        );
    }
    // The saved end is the confirmed one.
    let confirm = "/e/default/suspended/confirm?scope=policy:search&enforcement=off&hours=1";
    let page = browser.get(confirm).body;
    let (_, until) = page.split_once("name=\"until\" value=\"").unwrap();
    let until = until.split('"').next().unwrap();
    let shown = until.replace('T', " ");
    assert!(page.contains(&format!("{} UTC", &shown[..16])), "{page}");
    let fields = [
        ("scope", "policy:search"),
        ("enforcement", "off"),
        ("until", until),
    ];
    assert_eq!(browser.clone().post("/e/default/suspended", &fields).status, 303);
    let listed = browser.get("/e/default/suspended").body;
    assert!(listed.contains(&format!("datetime=\"{until}\"")), "{listed}");
}
