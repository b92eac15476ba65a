//! A name of a deleted policy belongs to the app that uses it next.

use limiter_server::store::{Store, UsageKind, UsageTotals, now_micros};
use serde_json::{Value, json};

use crate::support::admin::{AdminClient, policy, with_sqlite};
use crate::support::databases::block_on;
use crate::support::http;
use crate::support::server::wait_until;

const SEARCH: &str = "/namespaces/default/policies/search";

#[test]
fn conflict_with_a_deleted_policy_of_another_app_shows_no_version() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let text = format!("{}note = 'secret'\n", policy("search", 7, "shop"));
    let saved = root.put_policy("search", 0, &text);
    assert_eq!(saved.status, 200, "{}", saved.body);
    let deleted = root.send("DELETE", SEARCH, &[("if-match", "1")], &Value::Null);
    assert_eq!(deleted.status, 200, "{}", deleted.body);
    let owner = root.add_user("fred", &[("mobile", "owner")]);
    assert_eq!(owner.get(&format!("{SEARCH}/history")).status, 404);
    let refused = owner.put_policy("search", 9, &policy("search", 5, "mobile"));
    assert_eq!(refused.status, 409, "{}", refused.body);
    assert_eq!(refused.json()["current"], Value::Null, "{}", refused.body);
    assert!(!refused.body.contains("revision is 2"), "{}", refused.body);
    // Users with a role in the app see the deleted version.
    let refused = root.put_policy("search", 9, &policy("search", 5, "shop"));
    assert_eq!(refused.json()["current"]["revision"], 2, "{}", refused.body);
    let created = owner.put_policy("search", 0, &policy("search", 5, "mobile"));
    assert_eq!(created.status, 200, "{}", created.body);
}

#[test]
fn denied_keys_of_a_deleted_policy_are_hidden_from_the_next_app() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, &policy("search", 1, "shop"));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let check = |key: &str| {
        let body = json!({ "policy": "search", "key": key }).to_string();
        http::post(server.http(), "/v1/check", &[], &body).unwrap().status
    };
    wait_until(|| check("customer of shop") == 429, || server.log());
    let paths = ["denials?policy=search", "keys/activity?policy=search"];
    let found = |client: &AdminClient, key: &str| {
        paths.map(|path| {
            let answer = client.get(&format!("/namespaces/default/{path}"));
            assert_eq!(answer.status, 200, "{}", answer.body);
            let lists = [answer.json()["denials"].clone(), answer.json()["keys"].clone()];
            lists.iter().any(|list| list.to_string().contains(key))
        })
    };
    wait_until(|| found(&root, "customer of shop") == [true; 2], || server.log());
    let deleted = root.send("DELETE", SEARCH, &[("if-match", "1")], &Value::Null);
    assert_eq!(deleted.status, 200, "{}", deleted.body);
    let viewer = root.add_user("vera", &[("mobile", "viewer")]);
    let saved = root.put_policy("search", 0, &policy("search", 1, "mobile"));
    assert_eq!(saved.status, 200, "{}", saved.body);
    wait_until(|| check("customer of mobile") == 429, || server.log());
    wait_until(
        || found(&viewer, "customer of mobile") == [true; 2],
        || server.log(),
    );
    assert_eq!(found(&viewer, "customer of shop"), [false; 2]);
}

#[test]
fn decisions_of_a_deleted_policy_are_hidden_from_the_next_app() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, &policy("search", 5, "shop"));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let path = server.directory().path().join("limiter.db");
    let add = |minutes_ago: i64, allowed: i64| {
        let totals = UsageTotals {
            allowed,
            ..UsageTotals::default()
        };
        let at = now_micros() - minutes_ago * 60_000_000;
        block_on(async {
            let store = Store::open(&format!("sqlite:{}", path.display())).await.unwrap();
            let counts = [("search".to_owned(), totals)];
            store
                .add_usage("default", UsageKind::Policy, at, &counts)
                .await
                .unwrap();
        });
    };
    add(3, 700);
    let calls = |client: &AdminClient| {
        let points = client.get(&format!("{SEARCH}/usage")).json()["points"].clone();
        let policies = client.get("/namespaces/default/usage").json()["policies"].clone();
        [points, policies].map(|list| {
            let counts = list.as_array().unwrap().iter();
            counts.map(|of| of["allowed"].as_i64().unwrap()).sum::<i64>()
        })
    };
    assert_eq!(calls(&root), [700, 700]);
    let deleted = root.send("DELETE", SEARCH, &[("if-match", "1")], &Value::Null);
    assert_eq!(deleted.status, 200, "{}", deleted.body);
    assert_eq!(calls(&root), [700, 700], "of the last app");
    let viewer = root.add_user("vera", &[("mobile", "viewer")]);
    let saved = root.put_policy("search", 0, &policy("search", 5, "mobile"));
    assert_eq!(saved.status, 200, "{}", saved.body);
    assert_eq!(calls(&viewer), [0, 0]);
    // The counts of the minute of the deletion are those of both apps.
    add(-1, 9);
    let to = now_micros() + 5 * 60_000_000;
    let usage = viewer.get(&format!("{SEARCH}/usage?to={to}")).json();
    assert_eq!(usage["points"][0]["allowed"], 9, "{usage}");
}

#[test]
fn fullest_key_and_last_call_of_a_deleted_policy_are_hidden_from_the_next_app() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, &policy("search", 1, "shop"));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let check = || {
        let body = json!({ "policy": "search", "key": "customer of shop" }).to_string();
        http::post(server.http(), "/v1/check", &[], &body).unwrap().status
    };
    wait_until(|| check() == 429, || server.log());
    let utilisation = |client: &AdminClient| {
        let answer = client
            .get("/namespaces/default/keys/activity?policy=search")
            .json();
        answer["utilisation"].clone()
    };
    assert_eq!(utilisation(&root)["fullest"], "customer of shop");
    let seen = |client: &AdminClient, app: &str| {
        let answer = client.get(&format!("/namespaces/default/connect?app={app}"));
        answer.json()["seen"].clone()
    };
    assert_eq!(seen(&root, "shop")["policy"], "search");
    let deleted = root.send("DELETE", SEARCH, &[("if-match", "1")], &Value::Null);
    assert_eq!(deleted.status, 200, "{}", deleted.body);
    let viewer = root.add_user("vera", &[("mobile", "viewer")]);
    let saved = root.put_policy("search", 0, &policy("search", 1, "mobile"));
    assert_eq!(saved.status, 200, "{}", saved.body);
    assert_eq!(utilisation(&viewer), Value::Null);
    assert_eq!(seen(&viewer, "mobile"), Value::Null);
    let toml = policy("search", 7, "mobile");
    let preview = viewer.send(
        "POST",
        &format!("{SEARCH}/preview"),
        &[],
        &json!({ "toml": toml }),
    );
    assert_eq!(preview.status, 200, "{}", preview.body);
    assert!(!preview.body.contains("customer of shop"), "{}", preview.body);
}
