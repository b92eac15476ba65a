//! Pages state the mode in force, blocks, and the facts behind a denial.

use serde_json::{Value, json};

use crate::support::admin::{AdminClient, policy, policy_of_all, with_sqlite};
use crate::support::browser::Browser;
use crate::support::http;
use crate::support::server::{Server, wait_until};

const SEARCH: &str = "/e/default/policies/search";

pub(super) fn check(server: &Server, key: &Value) -> u16 {
    let body = json!({ "policy": "search", "key": key }).to_string();
    http::post(server.http(), "/v1/check", &[], &body).unwrap().status
}

pub(super) fn with_policy(text: &str) -> (Server, AdminClient, Browser) {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    assert_eq!(root.put_policy("search", 0, text).status, 200);
    wait_until(|| check(&server, &json!("first")) == 200, || server.log());
    let browser = Browser::signed_in(&server, "root");
    (server, root, browser)
}

pub(super) fn now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(now.unwrap().as_micros()).unwrap()
}

#[test]
fn suspended_policy_is_not_shown_as_enforced() {
    let (_server, root, browser) = with_policy(&policy("search", 5, "shop"));
    let pages = [SEARCH, "/e/default/apps/shop", "/e/default/search?q=search"];
    let enforced = "<span class=\"state ok\">Enforced</span>";
    for page in pages {
        assert!(browser.get(page).body.contains(enforced), "{page}");
    }
    let body = json!({ "scope": "app:shop", "enforcement": "off", "for_seconds": 600 });
    let suspended = root.send("POST", "/namespaces/default/suspensions", &[], &body);
    assert_eq!(suspended.status, 200, "{}", suspended.body);
    for page in pages {
        let body = browser.get(page).body;
        assert!(
            body.contains("<span class=\"state bad\">Suspended</span>"),
            "{page}\n{body}"
        );
        assert!(!body.contains(enforced), "{page}\n{body}");
    }
    let page = browser.get(SEARCH).body;
    assert!(
        page.contains("Suspended: All calls pass and use no permits."),
        "{page}"
    );
    let page = browser.get("/e/default/customers?key=acme").body;
    assert!(
        page.contains("<span class=\"state bad\">Suspended</span>"),
        "{page}"
    );
}

#[test]
fn policy_shows_the_blocks_that_apply_to_it() {
    let (_server, root, browser) = with_policy(&policy("search", 5, "shop"));
    let page = browser.get(SEARCH).body;
    assert!(page.contains("No block applies to this policy."), "{page}");
    for body in [
        json!({ "network": "10.0.0.0/8", "reason": "flood" }),
        json!({ "key": "eve", "app": "shop" }),
        json!({ "part": "tenant=mallory", "app": "bank" }),
    ] {
        let blocked = root.send("POST", "/namespaces/default/blocks", &[], &body);
        assert_eq!(blocked.status, 200, "{}", blocked.body);
    }
    let page = browser.get(SEARCH).body;
    assert!(
        page.contains("network 10.0.0.0/8") && page.contains("root: flood"),
        "{page}"
    );
    assert!(page.contains("key eve"), "{page}");
    assert!(!page.contains("tenant=mallory"), "a block of another app: {page}");
    let sentence = "The suspension takes precedence: no block applies before its end.";
    assert!(!page.contains(sentence), "{page}");
    let body = json!({ "scope": "app:shop", "enforcement": "off", "for_seconds": 600 });
    let suspended = root.send("POST", "/namespaces/default/suspensions", &[], &body);
    assert_eq!(suspended.status, 200, "{}", suspended.body);
    let page = browser.get(SEARCH).body;
    assert!(page.contains(sentence), "{page}");
}

#[test]
fn suspension_of_an_app_names_the_mode_in_other_programs() {
    let text = policy_of_all("search", 5) + "enforcement = 'shadow'\n";
    let (_server, root, browser) = with_policy(&text);
    let body = json!({ "scope": "app:shop", "enforcement": "deny", "for_seconds": 600 });
    let suspended = root.send("POST", "/namespaces/default/suspensions", &[], &body);
    assert_eq!(suspended.status, 200, "{}", suspended.body);
    let page = browser.get(SEARCH).body;
    let expected =
        "Suspended in app shop: All calls are denied. In other programs the policy is in shadow mode.";
    assert!(page.contains(expected), "{page}");
}

#[test]
fn explanation_names_the_block_of_a_key() {
    let (_server, root, browser) = with_policy(&policy("search", 5, "shop"));
    let blocks = [
        (json!({ "key": "eve" }), "key eve", "eve", "adam"),
        (json!({ "key": "bot*" }), "key bot*", "bot-7", "robot"),
        (json!({ "key": "a:b" }), "key a:b", "a / b", "a / c"),
        (
            json!({ "network": "10.0.0.0/8" }),
            "network 10.0.0.0/8",
            "10.1.2.3",
            "11.1.2.3",
        ),
        (
            json!({ "network": "2001:db8::/32" }),
            "network 2001:db8::/32",
            "2001:db8::7",
            "2001:db9::7",
        ),
        (
            json!({ "part": "tenant=acme" }),
            "keys with tenant=acme",
            "tenant / acme / ann",
            "tenant / other / acme",
        ),
        (
            json!({ "key": "mallory", "app": "shop" }),
            "key mallory",
            "mallory",
            "trudy",
        ),
    ];
    for (body, ..) in &blocks {
        let blocked = root.send("POST", "/namespaces/default/blocks", &[], body);
        assert_eq!(blocked.status, 200, "{}", blocked.body);
    }
    let of_other_app = json!({ "key": "oscar", "app": "bank" });
    root.send("POST", "/namespaces/default/blocks", &[], &of_other_app);
    let at = now();
    let explain = |key: &str, at: i64| {
        let key = key.replace(' ', "%20");
        let path = format!("/e/default/explain?policy=search&key={key}&at={at}");
        browser.get(&path).body
    };
    for (_, target, key, other) in blocks {
        let expected = format!("Blocked: {target}, by root");
        let page = explain(key, at);
        assert!(page.contains(&expected), "{key}: {page}");
        let page = explain(other, at);
        assert!(!page.contains("Blocked:"), "{other}: {page}");
        assert!(page.contains("none applied"), "{other}: {page}");
    }
    let page = explain("oscar", at);
    assert!(!page.contains("Blocked:"), "a block of another app: {page}");
    // Without a key, the page does not state that no block was active.
    let page = explain("", at);
    assert!(
        page.contains("7 blocks were active") && !page.contains("none applied"),
        "{page}"
    );
    let page = explain("eve", at - 3_600_000_000);
    assert!(!page.contains("Blocked:"), "{page}");
}

#[test]
fn revisions_of_policy_and_registry_are_named() {
    let (server, root, browser) = with_policy(&policy_of_all("search", 1));
    // Further publications move the registry away from the revision of the policy.
    for name in ["one", "two"] {
        assert_eq!(root.put_policy(name, 0, &policy_of_all(name, 1)).status, 200);
    }
    let key = json!("acme");
    wait_until(|| check(&server, &key) == 429, || server.log());
    let denied = || {
        let keys = root.get("/namespaces/default/keys/activity?policy=search").json();
        keys["keys"][0]["revision"].as_u64()
    };
    let revision = denied().unwrap();
    let page = browser.get("/e/default/explain?policy=search&key=acme").body;
    assert!(
        page.contains("<dt>Revision of the policy</dt>\n  <dd>1"),
        "{page}"
    );
    assert!(
        page.contains(&format!(", registry revision {revision}")),
        "{page}"
    );
    assert!(!page.contains(", revision "), "{page}");
}

#[test]
fn changes_are_found_behind_many_other_entries() {
    let (_server, root, browser) = with_policy(&policy("search", 5, "shop"));
    root.put_policy("login", 0, &policy("login", 5, "bank"));
    let login = "/namespaces/default/policies/login";
    for _ in 0..80 {
        assert_eq!(root.get("/namespaces/default/keys?key=acme").status, 200);
    }
    let delete = root.send("DELETE", login, &[("if-match", "1")], &Value::Null);
    assert_eq!(delete.status, 200, "{}", delete.body);
    let row = "<th scope=\"row\"><a href=\"/e/default/policies/search\">search</a></th>";
    for page in ["/e/default/apps/shop/changes", "/e/default/changes"] {
        let body = browser.get(page).body;
        assert!(body.contains(row), "{page}\n{body}");
        assert!(!body.contains("looked at a key"), "{page}\n{body}");
        assert!(
            !body.contains("Older changes"),
            "there is no older change: {page}\n{body}"
        );
    }
    let bank = browser.get("/e/default/apps/bank/changes").body;
    assert!(
        !bank.contains(row) && bank.contains("deleted the policy"),
        "{bank}"
    );
    // Each page is full, and the last one has no link to an empty page.
    let mut before = i64::MAX;
    let mut objects = Vec::new();
    loop {
        let path = format!("/namespaces/default/audit?limit=1&app=bank&changes=true&before={before}");
        let page = root.get(&path).json();
        let entries = page["entries"].as_array().unwrap();
        assert_eq!(entries.len(), 1, "{page}");
        objects.push(entries[0]["action"].as_str().unwrap().to_owned());
        match page["next"].as_i64() {
            Some(next) => before = next,
            None => break,
        }
    }
    assert_eq!(objects, ["policy.delete", "policy.create"]);
}

#[test]
fn pages_with_numbers_state_their_age() {
    let (server, _root, browser) = with_policy(&policy("search", 1, "shop"));
    wait_until(|| check(&server, &json!("acme")) == 429, || server.log());
    for page in [
        "/e/default/now",
        "/e/default/apps",
        "/e/default/apps/shop",
        "/e/default/apps/shop/connect",
        "/e/default/search?q=search",
        "/e/default/explain?policy=search&key=acme",
        "/e/default/customers?key=acme",
        SEARCH,
    ] {
        let body = browser.get(page).body;
        assert!(body.contains("data-age"), "{page}\n{body}");
    }
}

#[test]
fn numbers_lead_to_their_evidence() {
    let (server, root, browser) = with_policy(&policy_of_all("search", 1));
    let key = json!(["acme", "ann"]);
    wait_until(|| check(&server, &key) == 429, || server.log());
    let keys = root.get("/namespaces/default/keys/activity?policy=search").json();
    let at = keys["keys"][0]["last_at"].as_i64().unwrap();
    // Without a key, the denied keys lead to their explanation and to their state.
    let page = browser
        .get(&format!("/e/default/explain?policy=search&at={at}"))
        .body;
    for href in [
        format!("/e/default/explain?policy=search&#38;key=acme%20%2F%20ann&#38;at={at}"),
        "/e/default/customers?key=acme%20%2F%20ann".to_owned(),
    ] {
        assert!(page.contains(&format!("href=\"{href}\"")), "{href}\n{page}");
    }
    // The rows of the table in place of the plot lead to the minute with the denials.
    let usage = "/namespaces/default/policies/search/usage?span=minute";
    let denied = || {
        let points = root.get(usage).json()["points"].as_array().cloned().unwrap();
        points
            .iter()
            .find(|of| of["denied"].as_i64() > Some(0))
            .map(|of| of["at"].as_i64().unwrap())
    };
    wait_until(|| denied().is_some(), || server.log());
    let minute = denied().unwrap();
    let page = browser.get(SEARCH).body;
    let href = format!("href=\"/e/default/explain?policy=search&amp;at={minute}\"");
    assert_eq!(page.matches(&href).count(), 2, "{href}\n{page}");
}

#[test]
fn utilisation_is_that_of_one_minute() {
    let (server, _root, browser) = with_policy(&policy("search", 10, "shop"));
    // A minute can end between the calls and the page, so several rounds are tried.
    let mut round = 0;
    let mut pages = Vec::new();
    let mut is_stated = || {
        round += 1;
        for (key, calls) in [("full", 9), ("used", 6), ("idle", 1)] {
            let key = json!(format!("{key} {round}"));
            for _ in 0..calls {
                assert_eq!(check(&server, &key), 200);
            }
        }
        let page = browser.get(SEARCH).body;
        let (_, rest) = page.split_once("id=\"utilisation\">").unwrap();
        let text = rest.split("</p>").next().unwrap().to_owned();
        let keys = ["1 key used more", "2 keys used more", "3 keys used more"];
        let is_stated = text.contains("the fullest key <a href=\"/e/default/customers?key=full%20")
            && text.contains("</a> used 90 % of its limit")
            && keys.iter().any(|keys| text.contains(keys));
        pages.push(text);
        is_stated
    };
    let is_shown = (0..3).any(|_| is_stated());
    assert!(is_shown, "{pages:#?}");
    assert!(
        pages.last().unwrap().contains("in the minute of <time"),
        "{pages:#?}"
    );
    for number in 0..25 {
        for _ in 0..10 {
            check(&server, &json!(format!("many {number}")));
        }
    }
    let page = browser.get(SEARCH).body;
    assert!(page.contains("at least 20 keys used more than 80 %"), "{page}");
}
