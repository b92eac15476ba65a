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

    // The first denials are invented. Those of the traffic come on top of them.
    let recent = || admin.get("/namespaces/default/usage").json();
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

    let directory = demo.stop();
    assert!(!directory.exists(), "{}", directory.display());
}
