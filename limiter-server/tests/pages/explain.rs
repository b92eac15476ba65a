//! The page Explain states causes that are recorded: invalid requests, outages, the counted time.

use limiter_testing::RedisServer;
use serde_json::{Value, json};

use super::truth::{now, with_policy};
use crate::support::admin::{AdminClient, policy, policy_of_all, with_sqlite};
use crate::support::browser::Browser;
use crate::support::http;
use crate::support::server::{Server, wait_until};

const HOUR: i64 = 3_600_000_000;
const DAY_USAGE: &str = "/namespaces/default/policies/search/usage?span=minute";

fn status(server: &Server, body: &Value) -> u16 {
    let answer = http::post(server.http(), "/v1/check", &[], &body.to_string());
    answer.unwrap().status
}

/// The page of the newest minute whose points meet a condition.
fn explanation(root: &AdminClient, server: &Server, wanted: impl Fn(&Value) -> bool) -> String {
    let minute = || {
        let usage = root.get(DAY_USAGE).json();
        let points = usage["points"].as_array().cloned().unwrap_or_default();
        points.iter().rev().find(|of| wanted(of))?["at"].as_i64()
    };
    wait_until(|| minute().is_some(), || server.log());
    let at = minute().unwrap();
    root.page(&format!("/e/default/explain?policy=search&at={at}"))
        .body
}

#[test]
fn cost_above_the_capacity_is_no_outage() {
    let (server, root, browser) = with_policy(&policy("search", 5, "shop"));
    let body = json!({ "policy": "search", "key": "acme", "cost": 50 });
    assert_eq!(status(&server, &body), 429);
    let page = explanation(&root, &server, |point| point["failed"] == 1);
    assert!(!page.contains("did not answer"), "{page}");
    assert!(!page.contains("<span class=\"state bad\">Store</span>"), "{page}");
    assert!(page.contains("1 failed, of which 1 was invalid"), "{page}");
    let page = browser.get("/e/default/policies/search").body;
    let (_, caption) = page.split_once("<figcaption").unwrap();
    let caption = caption.split("</figcaption>").next().unwrap();
    assert!(
        caption.contains("<span class=\"state bad\">failed</span> 1"),
        "{caption}"
    );
}

/// A server whose store ends after a first call, and a policy with a failure mode.
fn with_outage(mode: &str) -> (Server, AdminClient) {
    let redis = RedisServer::start();
    let server = with_sqlite(&["--redis", &redis.url()]);
    let root = AdminClient::set_up(&server);
    let text = format!("{}on_store_failure = '{mode}'\n", policy_of_all("search", 1_000));
    assert_eq!(root.put_policy("search", 0, &text).status, 200);
    let body = json!({ "policy": "search", "key": "acme" });
    wait_until(|| status(&server, &body) == 200, || server.log());
    redis.kill();
    (server, root)
}

#[test]
fn calls_that_were_decided_without_the_store_are_an_outage() {
    for mode in ["local", "fail_open"] {
        let (server, root) = with_outage(mode);
        let body = json!({ "policy": "search", "key": "acme" });
        let decided = || {
            status(&server, &body);
            let usage = root.get(DAY_USAGE).json();
            usage["without_store"]["allowed"].as_i64() > Some(0)
        };
        wait_until(decided, || server.log());
        let usage = root.get(DAY_USAGE).json();
        let at = usage["points"].as_array().unwrap().last().unwrap()["at"].as_i64();
        let path = format!("/e/default/explain?policy=search&at={}", at.unwrap());
        let page = root.page(&path).body;
        assert!(
            page.contains("<span class=\"state bad\">Store</span>")
                && page.contains("decided without the store, by the local fallback or the failure mode"),
            "{mode}: {page}"
        );
    }
}

#[test]
fn calls_that_the_store_did_not_answer_are_an_outage() {
    let (server, root) = with_outage("error");
    let body = json!({ "policy": "search", "key": "acme" });
    wait_until(|| status(&server, &body) == 503, || server.log());
    let page = explanation(&root, &server, |point| point["failed"].as_i64() > Some(0));
    assert!(
        page.contains("failed, because the store did not answer"),
        "{page}"
    );
    assert!(!page.contains("invalid"), "{page}");
}

#[test]
fn counts_of_the_current_minute_have_a_time() {
    let (_server, _root, browser) = with_policy(&policy("search", 5, "shop"));
    // A minute can end before it has a count.
    let is_stated = || {
        let page = browser.get("/e/default/explain?policy=search").body;
        page.contains("Counted at <time")
    };
    let check = json!({ "policy": "search", "key": "acme" });
    wait_until(
        || status(&_server, &check) > 0 && is_stated(),
        || browser.get("/e/default/explain?policy=search").body,
    );
}

/// Gives the key `acme` a quota of 7.
fn give_quota(root: &AdminClient, fields: Value) {
    let mut body = json!({ "parts": ["acme"], "capacity": 7, "rate": "1/h" });
    if let (Some(body), Value::Object(fields)) = (body.as_object_mut(), fields) {
        body.extend(fields);
    }
    let path = "/namespaces/default/policies/search/quotas";
    let given = root.send("POST", path, &[("if-match", "1")], &body);
    assert_eq!(given.status, 200, "{}", given.body);
}

/// The texts of a policy contain ended quotas for 30 days.
#[test]
fn ended_quota_is_no_quota_of_the_key() {
    let (server, root, browser) = with_policy(&policy("search", 5, "shop"));
    give_quota(&root, json!({ "for_seconds": 2 }));
    let state = || root.get("/namespaces/default/keys?key=acme").json()["policies"][0]["key"].clone();
    let explained = || browser.get("/e/default/explain?policy=search&key=acme").body;
    wait_until(|| state()["has_quota"] == json!(true), || server.log());
    wait_until(|| state()["limit"] == json!(5), || server.log());
    assert_eq!(state()["has_quota"], json!(false), "{}", state());
    let page = explained();
    assert!(page.contains("no quota of its own in this revision"), "{page}");
}

/// Parts of a key are in the group of the rule that leads to the policy, and so is their quota.
#[test]
fn quota_in_the_group_of_a_rule_is_stated() {
    let (_server, root, browser) = with_policy(&policy("search", 5, "shop"));
    let rules = json!({ "toml": "[[rule]]\nmatch = ['customer']\npolicy = 'search'\ngroup = 'edge'\n" });
    let saved = root.send(
        "PUT",
        "/namespaces/default/rules",
        &[("if-none-match", "*")],
        &rules,
    );
    assert_eq!(saved.status, 200, "{}", saved.body);
    give_quota(&root, json!({}));
    let page = browser.get("/e/default/explain?policy=search&key=acme").body;
    assert!(page.contains("a quota of 7 for this key"), "{page}");
}

#[test]
fn time_outside_of_the_calendar_is_no_time() {
    let (_server, _root, browser) = with_policy(&policy("search", 5, "shop"));
    for at in [i64::MAX, i64::MIN, 300_000_000_000_000_000] {
        let path = format!("/e/default/explain?policy=search&key=0123456789abcdef&at={at}");
        let page = browser.get(&path);
        assert_eq!(page.status, 200, "{at}: {}", page.body);
        assert!(page.body.contains("The time is not like"), "{at}: {}", page.body);
    }
}

#[test]
fn plot_of_an_old_minute_contains_it() {
    let (_server, _root, browser) = with_policy(&policy("search", 5, "shop"));
    let (recent, old) = (now() - HOUR, now() - 40 * HOUR);
    let page = |at: i64| {
        browser
            .get(&format!("/e/default/explain?policy=search&at={at}"))
            .body
    };
    let shown = page(recent);
    assert!(
        shown.contains("data-end=\"0\"") && shown.contains("in the last 24 h."),
        "{shown}"
    );
    let shown = page(old);
    let end = (old + 12 * HOUR) / 1_000_000;
    assert!(
        shown.contains(&format!("data-end=\"{end}\"")) && shown.contains(" in 24 h from <time"),
        "{shown}"
    );
}

#[test]
fn app_is_not_seen_by_calls_under_policies_of_all_apps() {
    let (server, root, browser) = with_policy(&policy_of_all("search", 5));
    let path = "/namespaces/default/apps/mobile";
    assert_eq!(root.send("PUT", path, &[], &json!({})).status, 204);
    let page = || browser.get("/e/default/apps/mobile/connect").body;
    assert!(
        page().contains("Waiting</span> for the first call") && !page().contains("Seen</span>"),
        "{}",
        page()
    );
    assert!(
        page().contains("Policy search of all apps was called at <time")
            && page().contains("the caller may be another app"),
        "{}",
        page()
    );
    // A policy that names the app is evidence.
    assert_eq!(
        root.put_policy("upload", 0, &policy("upload", 5, "mobile"))
            .status,
        200
    );
    let body = json!({ "policy": "upload", "key": "acme" });
    wait_until(|| status(&server, &body) == 200, || server.log());
    assert!(page().contains("Seen</span> at <time"), "{}", page());
    let all = browser.get("/e/default/apps/*/connect").body;
    assert!(all.contains("Seen</span> at <time"), "{all}");
}

#[test]
fn keys_of_a_young_node_are_those_since_its_start() {
    let started = now();
    let server = with_sqlite(&["--node", "n1"]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 5)).status,
        200
    );
    let browser = Browser::signed_in(&server, "root");
    let since = root.get("/namespaces/default/keys/activity").json()["since"].as_i64();
    assert!(since.unwrap() >= started, "{since:?}");
    let path = format!("/namespaces/default/keys/activity?from={}", now());
    assert_eq!(root.get(&path).json()["since"], Value::Null);
    for path in ["/e/default/now", "/e/default/policies/search"] {
        let page = browser.get(path).body;
        assert!(page.contains("At node n1 since <time"), "{path}: {page}");
        assert!(page.contains("Fullest keys"), "{path}: {page}");
    }
}
