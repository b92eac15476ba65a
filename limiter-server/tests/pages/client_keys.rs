//! Keys that clients choose so that an action on a page would affect other keys.

use serde_json::json;

use super::attacks::unescape;
use super::truth::{check, with_policy};
use crate::support::admin::policy;
use crate::support::browser::{Browser, encode};
use crate::support::server::wait_until;

/// The query of the link to the customer of the first denied key.
fn customer_link(page: &str) -> String {
    let (_, rest) = page
        .split_once("<th scope=\"row\"><a href=\"/e/default/customers")
        .unwrap_or_else(|| panic!("{page}"));
    unescape(rest.split('"').next().unwrap_or_default())
}

/// The value of the hidden field of the key.
fn shown_key(page: &str) -> String {
    let (_, rest) = page
        .split_once("<input type=\"hidden\" name=\"key\" value=\"")
        .unwrap_or_else(|| panic!("{page}"));
    unescape(rest.split('"').next().unwrap_or_default())
}

fn block(browser: &mut Browser, key: &str) -> u16 {
    browser.post("/e/default/blocks", &[("key", key)]).status
}

#[test]
fn key_like_a_part_is_one_key() {
    let text = policy("search", 2, "shop");
    let (server, root, mut browser) = with_policy(&text);
    let of_tenants = policy("login", 9, "shop") + "key = ['tenant']\n";
    assert_eq!(root.put_policy("login", 0, &of_tenants).status, 200);
    let key = json!("tenant=acme");
    wait_until(|| check(&server, &key) == 429, || server.log());
    let link = customer_link(&browser.get("/e/default/now").body);
    let page = browser.get(&format!("/e/default/customers{link}")).body;
    assert!(page.contains("<h2>tenant=acme</h2>"), "{link}: {page}");
    assert!(!page.contains("name=\"kind\" value=\"part\""), "{page}");
    let explain = "/e/default/explain?policy=search&key=tenant%3Dacme";
    let explained = browser.get(explain).body;
    assert!(explained.contains("key=tenant%3Dacme&#38;whole=1"), "{explained}");
    // The page after a change shows the key that was changed.
    let fields = [("policy", "search"), ("key", "tenant=acme")];
    let numbers = [("requests", "1"), ("per", "1h"), ("burst", "10"), ("until", "")];
    let raise = [fields.as_slice(), &numbers].concat();
    for (form, fields) in [("reset", fields.as_slice()), ("raise", &raise)] {
        let changed = browser.post(&format!("/e/default/customers/{form}"), fields);
        let location = changed.header("location").unwrap_or_default();
        assert!(location.contains("whole=1"), "{form}: {location}");
    }
}

#[test]
fn key_with_outer_spaces_is_another_key() {
    let (server, root, mut browser) = with_policy(&policy("search", 2, "shop"));
    let (padded, plain) = (json!(" acme "), json!("acme"));
    wait_until(|| check(&server, &padded) == 429, || server.log());
    let now = browser.get("/e/default/now").body;
    let page = browser
        .get(&format!("/e/default/customers{}", customer_link(&now)))
        .body;
    assert!(page.contains("Nothing left"), "{page}");
    assert_eq!(shown_key(&page), " acme ");
    let (_, explain) = now
        .split_once("href=\"/e/default/explain?policy=search&#38;key=")
        .unwrap();
    let explain = unescape(explain.split('"').next().unwrap());
    let page = browser.get(&format!("/e/default/explain?policy=search&key={explain}"));
    assert!(page.body.contains("denied call"), "{}", page.body);
    // The page of a customer links to Explain without a time.
    let page = browser.get(&format!("/e/default/customers{}", customer_link(&now)));
    let links = page.body.split("href=\"/e/default/explain?").skip(1);
    let mut links = links.map(|rest| unescape(rest.split('"').next().unwrap()));
    let link = links.find(|link| !link.contains("&at=")).unwrap();
    let page = browser.get(&format!("/e/default/explain?{link}"));
    assert!(
        page.body.contains("name=\"key\" value=\" acme \""),
        "{}",
        page.body
    );
    let preview = json!({ "toml": policy("search", 3, "shop"), "key": " acme " });
    let preview = root.send(
        "POST",
        "/namespaces/default/policies/search/preview",
        &[],
        &preview,
    );
    let effects = preview.json()["effects"].clone();
    let of_key = effects
        .as_array()
        .unwrap()
        .iter()
        .find(|of| of["key"] == " acme ");
    assert_eq!(of_key.unwrap()["before"]["left"], 0, "{effects}");
    assert_eq!(block(&mut browser, " acme "), 303);
    wait_until(|| check(&server, &padded) == 403, || server.log());
    assert_eq!(check(&server, &plain), 200, "another key");
}

#[test]
fn key_like_a_network_is_not_blocked_as_one() {
    let (server, _root, mut browser) = with_policy(&policy("search", 50, "shop"));
    for network in ["0.0.0.0/0", "10.0.0.0/8", "::/0", "2001 / db8 / :/32"] {
        let refused = browser.post("/e/default/blocks", &[("key", network)]);
        assert_eq!(refused.status, 422, "{network}: {}", refused.body);
        assert!(
            refused.body.contains("is a network"),
            "{network}: {}",
            refused.body
        );
    }
    assert_eq!(block(&mut browser, "10.1.2.3"), 303);
    wait_until(|| check(&server, &json!("10.1.2.3")) == 403, || server.log());
    assert_eq!(check(&server, &json!("10.1.2.4")), 200);
}

#[test]
fn long_key_is_recorded_as_its_beginning_without_actions() {
    let (server, _root, browser) = with_policy(&policy("search", 2, "shop"));
    let beginning = "k".repeat(300);
    let (one, other) = (format!("{beginning}1"), format!("{beginning}2"));
    for key in [&one, &other] {
        wait_until(|| check(&server, &json!(key)) == 429, || server.log());
    }
    let now = browser.get("/e/default/now").body;
    assert!(now.contains(&"k".repeat(200)), "{now}");
    assert_eq!(now.matches("The key is longer").count(), 2, "{now}");
    assert!(
        !now.contains("customers?key=kkk"),
        "no action affects another key: {now}"
    );
    let explain = |key: &str| {
        let path = format!("/e/default/explain?policy=search&key={}", encode(key));
        browser.get(&path).body
    };
    let page = explain(&one);
    assert!(page.contains("1 denied call, the last at"), "{page}");
    assert!(
        explain(&beginning).contains("none among the most denied keys"),
        "{page}"
    );
    let page = browser.get(&format!("/e/default/customers?key={}", encode(&one)));
    assert!(page.body.contains("Nothing left"), "{}", page.body);
    assert_eq!(shown_key(&page.body), one);
    assert!(page.body.contains("Denied in the last hour"), "{}", page.body);
    // The text of the record is not the key.
    let (_, cut) = now.split_once("<th scope=\"row\">k").unwrap();
    let cut = format!("k{}", cut.split(' ').next().unwrap());
    let page = browser
        .get(&format!("/e/default/customers?key={}", encode(&cut)))
        .body;
    assert!(
        page.contains("Enter the whole key") && !page.contains("Block key"),
        "{page}"
    );
}
