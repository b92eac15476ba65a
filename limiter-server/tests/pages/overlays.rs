//! Planned suspensions, and blocks of parts of keys and of networks.

use serde_json::json;

use crate::support::admin::{AdminClient, policy, with_sqlite};
use crate::support::browser::Browser;
use crate::support::http;
use crate::support::server::{Server, wait_until};

const SUSPENDED: &str = "/e/default/suspended";

fn check(server: &Server, key: &serde_json::Value) -> u16 {
    let body = json!({ "policy": "search", "key": key }).to_string();
    http::post(server.http(), "/v1/check", &[], &body).unwrap().status
}

#[test]
fn suspension_is_planned_and_cancelled() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let mut browser = Browser::signed_in(&server, "root");
    let fields = [
        ("scope", "policy:search"),
        ("enforcement", "deny"),
        ("start", "2090-12-31T18:00"),
        ("until", "2090-12-31T20:00:00Z"),
        ("reason", "maintenance"),
    ];
    let confirm =
        format!("{SUSPENDED}/confirm?scope=policy:search&enforcement=deny&hours=2&start=2090-12-31T18:00");
    let page = browser.get(&confirm).body;
    assert!(
        page.contains("2090-12-31 18:00 UTC") && page.contains("2090-12-31 20:00 UTC"),
        "{page}"
    );
    assert_eq!(browser.post(SUSPENDED, &fields).status, 303);
    let listed = root.get("/namespaces/default/suspensions").json();
    let planned = &listed["suspensions"][0];
    assert_eq!(
        (&planned["active"], &planned["from"]),
        (&json!(false), &json!(3_818_426_400_000_000_u64))
    );
    let page = browser.get(SUSPENDED).body;
    assert!(page.contains("Planned") && page.contains(">Cancel<"), "{page}");
    assert!(
        !page.contains("End in 1 h"),
        "a planned suspension is not extended: {page}"
    );
    assert!(!page.contains("<strong>Suspended:"), "no banner: {page}");
    wait_until(|| check(&server, &json!("ann")) == 200, || server.log());
    let id = planned["id"].as_str().unwrap();
    assert_eq!(browser.post(&format!("{SUSPENDED}/{id}/end"), &[]).status, 303);
    assert!(browser.get(SUSPENDED).body.contains("No policy is suspended."));
    let wrong = [
        &fields[..2],
        &[("start", "Friday"), ("until", "2090-12-31T20:00"), ("reason", "")],
    ]
    .concat();
    assert_eq!(browser.post(SUSPENDED, &wrong).status, 422);
}

/// The list contains ended suspensions, and their policies must not be suspended again by one
/// click.
#[test]
fn ended_suspension_is_not_extended() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let browser = Browser::signed_in(&server, "root");
    let path = "/namespaces/default/suspensions";
    let body = json!({ "scope": "policy:search", "enforcement": "deny", "for_seconds": 1 });
    let created = root.send("POST", path, &[], &body).json();
    assert_eq!(created["active"], json!(true));
    let is_active = || root.get(path).json()["suspensions"][0]["active"] == json!(true);
    wait_until(|| !is_active(), || server.log());
    let page = browser.get(SUSPENDED).body;
    assert!(page.contains(">Ended<") && !page.contains("End in 1 h"), "{page}");
}

/// The banner of an open page offers an extension by one hour. It keeps a later end that another
/// user has set since.
#[test]
fn extension_of_the_banner_keeps_a_later_end() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 5, "shop"));
    let mut browser = Browser::signed_in(&server, "root");
    let path = "/namespaces/default/suspensions";
    let body = json!({ "scope": "policy:search", "enforcement": "off", "for_seconds": 60 });
    let created = root.send("POST", path, &[], &body).json();
    let page = browser.get(SUSPENDED).body;
    assert!(page.contains("name=\"keeps_later\" value=\"1\""), "{page}");
    let id = created["id"].as_str().unwrap();
    let end = || root.get(path).json()["suspensions"][0]["until"].as_i64().unwrap();
    let extend = format!("{SUSPENDED}/{id}/extend");
    let of_banner = [("keeps_later", "1")];
    assert_eq!(browser.post(&extend, &of_banner).status, 303);
    assert!(end() > created["until"].as_i64().unwrap());
    let later = root.send(
        "PUT",
        &format!("{path}/{id}"),
        &[],
        &json!({ "for_seconds": 86_400 }),
    );
    let later = later.json()["until"].as_i64().unwrap();
    assert_eq!(browser.post(&extend, &of_banner).status, 303);
    assert_eq!(end(), later);
    assert_eq!(browser.post(&extend, &[]).status, 303);
    assert!(end() < later, "the button of the list sets the end");
}

#[test]
fn part_of_keys_and_network_are_blocked() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    root.put_policy("search", 0, &policy("search", 50, "shop"));
    root.add_user("vera", &[("shop", "viewer")]);
    let mut browser = Browser::signed_in(&server, "root");
    let parts = json!(["tenant", "acme", "ann"]);
    wait_until(|| check(&server, &parts) == 200, || server.log());
    let block = |kind: &'static str, value: &'static str| {
        [
            ("kind", kind),
            ("key", value),
            ("app", ""),
            ("until", ""),
            ("reason", "abuse"),
        ]
    };
    assert_eq!(
        browser
            .post("/e/default/blocks", &block("part", "tenant=acme"))
            .status,
        303
    );
    wait_until(|| check(&server, &parts) == 403, || server.log());
    assert_eq!(check(&server, &json!(["tenant", "other", "ann"])), 200);
    assert_eq!(
        browser
            .post("/e/default/blocks", &block("network", "10.0.0.0/8"))
            .status,
        303
    );
    wait_until(|| check(&server, &json!("10.1.2.3")) == 403, || server.log());
    let page = browser.get(SUSPENDED).body;
    assert!(
        page.contains("keys with tenant=acme") && page.contains("network 10.0.0.0/8"),
        "{page}"
    );
    let wrong = browser.post("/e/default/blocks", &block("network", "ten"));
    assert_eq!(wrong.status, 422, "{}", wrong.body);
    // The page of a key sends no kind. A client chose this key.
    let of_client = browser.post("/e/default/blocks", &block("", "tenant / *"));
    assert_eq!(of_client.status, 422, "{}", of_client.body);
    assert!(
        of_client.body.contains("The key tenant / * ends with *"),
        "{}",
        of_client.body
    );
    let viewer = Browser::signed_in(&server, "vera").get(SUSPENDED).body;
    assert!(!viewer.contains("Block keys"), "{viewer}");
}
