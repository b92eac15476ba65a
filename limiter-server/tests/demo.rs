//! `limiter-server demo`: a living server within a minute.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use serde_json::Value;
use support::demo::Demo;
use support::server::wait_until;

const HOUR: i64 = 3_600_000_000;

fn denied(usage: &Value, policy: &str) -> i64 {
    let policies = usage["policies"].as_array().unwrap();
    let found = policies.iter().find(|of| of["policy"] == policy);
    found.map_or(0, |of| of["denied"].as_i64().unwrap())
}

#[test]
fn demo_serves_traffic_with_denials_and_a_history() {
    let demo = Demo::start();
    let admin = demo.sign_in("demo");
    let history = admin.get("/namespaces/default/policies/search/history").json();
    assert_eq!(history["revisions"].as_array().unwrap().len(), 3);
    let day = admin.get("/namespaces/default/policies/search/usage").json();
    assert!(day["points"].as_array().unwrap().len() > 1_000);

    // The first denials are invented. Those of the traffic come on top of them, in a range with a
    // fixed start.
    let from = day["now"].as_i64().unwrap() - 300_000_000;
    let recent = || {
        let path = format!("/namespaces/default/usage?from={from}");
        admin.get(&path).json()
    };
    let before = denied(&recent(), "login");
    wait_until(
        || denied(&recent(), "login") > before + 3,
        || recent().to_string(),
    );
    let state = admin.get("/namespaces/default/policies/search").json();
    assert_eq!(state["state"], "published");

    // Users of each role.
    let editor = demo.sign_in("eddie");
    assert_eq!(editor.get("/namespaces/default/policies/search").status, 200);
    assert_eq!(editor.get("/namespaces/default/policies/login").status, 404);
    let viewer = demo.sign_in("vera");
    assert_eq!(viewer.get("/namespaces/default/policies/login").status, 200);
    let proposals = admin.get("/namespaces/default/proposals").json();
    assert_eq!(proposals["proposals"].as_array().unwrap().len(), 1);

    // The content agrees with itself.
    let apps = admin.page("/e/default/apps").body;
    for app in ["search", "checkout", "accounts"] {
        assert!(
            apps.contains(&format!("/e/default/apps/{app}\"")),
            "{app}: {apps}"
        );
    }
    let trial = admin.get("/namespaces/default/policies/checkout/trial").json();
    assert_eq!(trial["active"], true, "{trial}");
    assert!(trial["trial"]["denied"].as_i64() > Some(0), "{trial}");
    let suspensions = admin.get("/namespaces/default/suspensions").json();
    assert_eq!(
        suspensions["suspensions"][0]["scope"], "policy:suggestions",
        "{suspensions}"
    );
    let usage = recent();
    for of in usage["policies"].as_array().unwrap() {
        let (refused, allowed) = (
            of["denied"].as_i64().unwrap() + of["would_deny"].as_i64().unwrap(),
            of["allowed"].as_i64().unwrap(),
        );
        assert!(refused * 2 < allowed, "the product is calm: {of}");
        assert!(of["policy"] != "suggestions" || refused == 0, "suspended: {of}");
    }
    // The samples of an hour that is over have the denials of its total.
    let hour = day["now"].as_i64().unwrap() / HOUR * HOUR - 2 * HOUR;
    let path = format!(
        "/namespaces/default/denials?policy=login&from={hour}&to={}",
        hour + 1
    );
    let samples = admin.get(&path).json();
    let path = format!("/namespaces/default/usage?from={hour}&to={}", hour + HOUR);
    let total = admin.get(&path).json();
    let sampled = samples["denials"][0]["denied"].as_i64();
    assert_eq!(sampled, Some(denied(&total, "login")), "{samples}");
    assert_eq!(samples["denials"][0]["key"], "203.0.113.66");

    let connect = admin.get("/namespaces/default/connect?app=search").json();
    assert_eq!(connect["seen"]["from"], "192.0.2.10", "{connect}");

    let directory = demo.stop();
    assert!(!directory.exists(), "{}", directory.display());
}
