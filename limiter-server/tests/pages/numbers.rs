//! Numbers of pages have separated thousands.

use serde_json::json;

use super::edit::{SEARCH, bucket};
use crate::support::admin::{AdminClient, policy, with_sqlite};
use crate::support::browser::Browser;
use crate::support::http;
use crate::support::server::wait_until;

/// The visible text of a page, without texts that contain numbers as their authors wrote them, and
/// without times and names of nodes.
fn visible(page: &str, node: &str) -> String {
    let mut rest = page.split_once("<main").map_or(page, |(_, main)| main);
    let mut text = String::new();
    while let Some((before, tag)) = rest.split_once('<') {
        text.push_str(before);
        text.push(' ');
        let name = tag.split([' ', '>']).next().unwrap_or_default();
        let hidden = ["pre", "code", "time", "option", "textarea", "figure", "svg"];
        let end = match hidden.contains(&name) {
            true => format!("</{name}>"),
            false => ">".to_owned(),
        };
        rest = tag.split_once(&end).map_or("", |(_, rest)| rest);
    }
    text.replace(node, "")
}

/// The numbers of a text with four digits in a row.
fn ungrouped(text: &str) -> Vec<&str> {
    let words = text.split(|of: char| !of.is_ascii_alphanumeric());
    let numbers = words.filter(|of| of.len() >= 4 && of.bytes().all(|byte| byte.is_ascii_digit()));
    numbers.collect()
}

#[test]
fn numbers_have_separated_thousands() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let bounds = json!({ "bounds": { "max_capacity": 12_500, "max_rate": "80000/h" } });
    root.send("PUT", "/namespaces/default/apps/shop", &[], &bounds);
    let quota = "[[override]]\npolicy = 'search'\nkey = 'acme'\ncapacity = 31000\nrate = '7000/h'\n";
    let large =
        "[policy.search]\nalgorithm = 'token_bucket'\ncapacity = 12500\nrate = '6007/h'\napps = ['shop']\n";
    root.put_policy("search", 0, &(large.to_owned() + quota));
    root.put_policy("denied", 0, &policy("denied", 1, "shop"));
    let check = |policy: &str, key: &str| {
        let body = json!({ "policy": policy, "key": key }).to_string();
        http::post(server.http(), "/v1/check", &[], &body).unwrap().status
    };
    wait_until(|| check("search", "acme") == 200, || server.log());
    wait_until(|| check("denied", "mallory") == 429, || server.log());
    for _ in 0..1_100 {
        assert_eq!(check("denied", "mallory"), 429);
    }
    let status = root.get("/namespaces/default/status").json();
    let node = status["nodes"][0]["name"].as_str().unwrap().to_owned();
    let mut browser = Browser::signed_in(&server, "root");
    let preview = browser
        .post(&format!("{SEARCH}/edit"), &bucket("24007", "50000"))
        .body;
    for (page, expected) in [
        (
            SEARCH,
            &[
                "6,007 requests an hour, with bursts of 12,500.",
                "7,000 per 1h, bursts of 31,000",
            ][..],
        ),
        ("/e/default/apps/shop", &["6,007 requests an hour"]),
        (
            "/e/default/apps/shop/people",
            &["capacity to 12,500, rate to 80,000/h."],
        ),
        (
            "/e/default/customers?key=acme",
            &["A limit of 31,000, of which 3", "31,000 of 31,000 left."],
        ),
        (
            "/e/default/explain?policy=search&key=acme",
            &["a quota of 31,000 for this key"],
        ),
        ("/e/default/policies/denied", &["1,1"]),
        ("/e/default/now", &["1,1"]),
        ("/e/default/customers?key=mallory", &["1,1"]),
        ("/e/default/explain?policy=denied&key=mallory", &[]),
        (
            "/e/default/suspended/confirm?scope=policy:search&enforcement=off&hours=1",
            &["12,500"],
        ),
        ("/e/default/search?q=s", &["6,007 requests an hour"]),
        ("/e/default/status", &[]),
        ("/e/default/apps", &[]),
        (
            "preview",
            &[
                "24,007 requests an hour, with bursts of 50,000.",
                "50,000 of 50,000",
            ],
        ),
    ] {
        let body = match page {
            "preview" => preview.clone(),
            path => browser.get(path).body,
        };
        let text = visible(&body, &node);
        for expected in expected {
            assert!(text.contains(expected), "{page}: {expected}: {text}");
        }
        assert_eq!(ungrouped(&text), [""; 0], "{page}: {text}");
    }
    assert!(preview.contains("<span>74,007 requests</span>"), "{preview}");
}
