//! The admin API: from a save to a denial at the gateway, roles on every route, conflicts.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use serde_json::{Value, json};
use support::admin::{AdminClient, Credentials, policy, policy_of_all, setup_token, with_sqlite};
use support::http;
use support::server::wait_until;

const POLICIES: &str = "/namespaces/default/policies";

fn check(server: &support::server::Server, policy: &str) -> u16 {
    let body = json!({ "policy": policy, "key": "ann" }).to_string();
    http::post(server.http(), "/v1/check", &[], &body).unwrap().status
}

#[test]
fn saved_policy_denies_at_the_gateway() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, &policy_of_all("search", 2));
    assert_eq!(saved.status, 200, "{}", saved.body);
    assert_eq!(saved.json()["revision"], 1);
    let state = || root.get(&format!("{POLICIES}/search")).json()["state"].clone();
    wait_until(|| state() == "published", || server.log());
    assert_eq!([200, 200, 429], [(); 3].map(|()| check(&server, "search")));

    let saved = root.put_policy("search", 1, &policy_of_all("search", 50));
    assert_eq!(saved.status, 200, "{}", saved.body);
    wait_until(|| state() == "published", || server.log());
    let body = json!({ "policy": "search", "key": "bob", "cost": 40 }).to_string();
    let answer = http::post(server.http(), "/v1/check", &[], &body).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);

    let path = format!("{POLICIES}/search");
    let deleted = root.send("DELETE", &path, &[("if-match", "\"2\"")], &Value::Null);
    assert_eq!(deleted.status, 200, "{}", deleted.body);
    assert!(
        deleted.body.contains("not limited from now on"),
        "{}",
        deleted.body
    );
    wait_until(|| check(&server, "search") == 404, || server.log());
    assert_eq!(root.get(&path).status, 404);
    let history = root.get(&format!("{path}/history")).json();
    assert_eq!(history["revisions"].as_array().unwrap().len(), 3);

    let restored = root.send(
        "POST",
        &format!("{path}/restore"),
        &[("if-match", "3")],
        &json!({ "revision": 1 }),
    );
    assert_eq!(restored.status, 200, "{}", restored.body);
    wait_until(|| check(&server, "search") == 429, || server.log());
}

#[test]
fn policies_survive_a_restart() {
    let mut server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 1)).status,
        200
    );
    // The save is committed; the test does not depend on its publication.
    server.kill();
    let server = server.restart(&["--admin", "127.0.0.1:0"]);
    wait_until(|| server.get("/readyz").status == 200, || server.log());
    assert_eq!([200, 429], [(); 2].map(|()| check(&server, "search")));
    let client = AdminClient::new(server.admin(), root.credentials);
    wait_until(
        || client.get(&format!("{POLICIES}/search")).status == 200,
        || server.log(),
    );
}

#[test]
fn stale_save_gets_409_with_the_current_version() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 1)).status,
        200
    );
    assert_eq!(
        root.put_policy("search", 1, &policy_of_all("search", 2)).status,
        200
    );
    for stale in [0, 1, 7] {
        let refused = root.put_policy("search", stale, &policy_of_all("search", 3));
        assert_eq!(refused.status, 409, "{}", refused.body);
        let problem = refused.json();
        assert_eq!(problem["current"]["revision"], 2);
        assert_eq!(problem["expected"], stale);
    }
    let path = format!("{POLICIES}/search");
    let body = json!({ "toml": policy_of_all("search", 3) });
    assert_eq!(root.send("PUT", &path, &[], &body).status, 428);
    let tag = root.get(&path).header("etag").unwrap_or_default().to_owned();
    assert!(tag.starts_with("\"2-"), "{tag}");
}

#[test]
fn texts_with_errors_are_rejected_with_their_places() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let wrong = root.put_policy(
        "search",
        0,
        "[policy.search]\nalgorithm = 'token_bucket'\ncapacity = 0\n",
    );
    assert_eq!(wrong.status, 422);
    assert!(wrong.body.contains("3:12"), "{}", wrong.body);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("other", 1)).status,
        422
    );
    for (content_type, body, expected) in [
        ("application/json", "{", 400),
        ("application/json", r#"{"toml":"","surplus":1}"#, 400),
        ("text/plain", "{}", 415),
    ] {
        let headers = [("content-type", content_type), ("if-none-match", "*")];
        let answer = root.send_text("PUT", &format!("{POLICIES}/search"), &headers, body);
        assert_eq!(answer.status, expected, "{body}");
    }
    let huge = json!({ "toml": "#".repeat(3 << 20) });
    let headers = [("if-none-match", "*")];
    let answer = root.send("PUT", &format!("{POLICIES}/search"), &headers, &huge);
    assert_eq!(answer.status, 413);
}

#[test]
fn setup_link_works_once() {
    let server = with_sqlite(&[]);
    let link = setup_token(&server);
    let root = AdminClient::set_up(&server);
    let anonymous = AdminClient::new(server.admin(), Credentials::None);
    let body = json!({ "token": link, "user": "eve", "password": support::admin::PASSWORD });
    assert_eq!(anonymous.send("POST", "/setup", &[], &body).status, 401);
    let session = root.get("/session").json();
    assert_eq!(
        (&session["user"], &session["admin"]),
        (&json!("root"), &json!(true))
    );
}

#[test]
fn sign_out_ends_the_session() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let other = root.sign_in("root");
    assert_eq!(root.send("DELETE", "/session", &[], &Value::Null).status, 204);
    assert_eq!(root.get("/session").status, 401);
    assert_eq!(other.get("/session").status, 200);
    let foreign = [("origin", "http://evil.example")];
    assert_eq!(
        other.send("DELETE", "/session", &foreign, &Value::Null).status,
        403
    );
    assert_eq!(other.get("/session").status, 200);
}

#[test]
fn brute_force_is_limited_and_reveals_no_names() {
    let server = with_sqlite(&[]);
    let _root = AdminClient::set_up(&server);
    let anonymous = AdminClient::new(server.admin(), Credentials::None);
    let attempt = |user: &str| {
        let body = json!({ "user": user, "password": "wrong password" });
        anonymous.send("POST", "/session", &[], &body)
    };
    let (known, unknown) = (attempt("root"), attempt("stranger"));
    assert_eq!((known.status, known.body), (unknown.status, unknown.body));
    for _ in 0..20 {
        attempt("root");
    }
    let last = attempt("root");
    assert_eq!(last.status, 429);
    assert!(last.header("retry-after").is_some());
}

#[test]
fn editor_proposes_to_exceed_bounds_and_owner_approves() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let bounds = json!({ "bounds": { "max_capacity": 10 } });
    let set = root.send("PUT", "/namespaces/default/apps/checkout", &[], &bounds);
    assert_eq!(set.status, 204, "{}", set.body);
    assert_eq!(
        root.put_policy("search", 0, &policy("search", 5, "checkout"))
            .status,
        200
    );
    let editor = root.add_user("eve", &[("checkout", "editor")]);
    assert_eq!(
        editor
            .put_policy("search", 1, &policy("search", 10, "checkout"))
            .status,
        200
    );
    let proposed = editor.put_policy("search", 2, &policy("search", 11, "checkout"));
    assert_eq!(proposed.status, 202, "{}", proposed.body);
    let id = proposed.json()["proposal"].as_str().unwrap().to_owned();
    let approve = format!("/namespaces/default/proposals/{id}/approve");
    assert_eq!(editor.send("POST", &approve, &[], &json!({})).status, 403);
    let owner = root.add_user("olga", &[("checkout", "owner")]);
    let approved = owner.send("POST", &approve, &[], &json!({}));
    assert_eq!(approved.status, 200, "{}", approved.body);
    let current = root.get(&format!("{POLICIES}/search")).json();
    assert_eq!(current["revision"], 3);
    assert!(current["toml"].as_str().unwrap().contains("capacity = 11"));
    // An editor changes numbers, and nothing else.
    let algorithm = policy("search", 11, "checkout").replace("token_bucket", "funnel");
    assert_eq!(editor.put_policy("search", 3, &algorithm).status, 403);
    let moved = policy("search", 10, "mobile");
    assert_eq!(owner.put_policy("search", 3, &moved).status, 403);
}

#[test]
fn tokens_have_their_scopes_until_they_are_revoked() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy("search", 5, "checkout"))
            .status,
        200
    );
    let tokens = "/namespaces/default/tokens";
    let body = json!({ "name": "ci", "scopes": ["admin:viewer:checkout"] });
    let created = root.send("POST", tokens, &[], &body);
    assert_eq!(created.status, 201, "{}", created.body);
    let created = created.json();
    let secret = created["secret"].as_str().unwrap().to_owned();
    assert!(secret.starts_with("lim_"));
    let token = AdminClient::new(server.admin(), Credentials::Token(secret.clone()));
    assert_eq!(token.get(&format!("{POLICIES}/search")).status, 200);
    assert_eq!(
        token
            .put_policy("search", 1, &policy("search", 6, "checkout"))
            .status,
        403
    );
    assert_eq!(token.get("/users").status, 403);
    let listed = root.get(tokens).body;
    assert!(
        listed.contains("\"valid\"") && !listed.contains(&secret),
        "{listed}"
    );
    let id = created["id"].as_str().unwrap();
    let rotated = root.send(
        "POST",
        &format!("{tokens}/{id}/rotate"),
        &[],
        &json!({ "overlap_seconds": 0 }),
    );
    assert_eq!(rotated.status, 201, "{}", rotated.body);
    assert_eq!(token.get(&format!("{POLICIES}/search")).status, 401);
    let rotated = rotated.json();
    let token = AdminClient::new(
        server.admin(),
        Credentials::Token(rotated["secret"].as_str().unwrap().to_owned()),
    );
    assert_eq!(token.get(&format!("{POLICIES}/search")).status, 200);
    let id = rotated["id"].as_str().unwrap();
    assert_eq!(
        root.send("DELETE", &format!("{tokens}/{id}"), &[], &Value::Null)
            .status,
        204
    );
    assert_eq!(token.get(&format!("{POLICIES}/search")).status, 401);
}

#[test]
fn lists_are_paginated_and_filtered() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    for (name, app) in [("a", "x"), ("b", "y"), ("c", "x"), ("d", "y"), ("e", "x")] {
        assert_eq!(root.put_policy(name, 0, &policy(name, 5, app)).status, 200);
    }
    let names = |client: &AdminClient, query: &str| {
        let list = client.get(&format!("{POLICIES}?{query}")).json();
        let names = list["policies"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|of| of["name"].as_str().unwrap().to_owned()).collect();
        (names.concat(), list["next"].as_str().map(str::to_owned))
    };
    assert_eq!(names(&root, "limit=2"), ("ab".to_owned(), Some("b".to_owned())));
    assert_eq!(
        names(&root, "limit=2&after=b"),
        ("cd".to_owned(), Some("d".to_owned()))
    );
    assert_eq!(names(&root, "limit=2&after=d"), ("e".to_owned(), None));
    assert_eq!(names(&root, "app=y"), ("bd".to_owned(), None));
    let viewer = root.add_user("vera", &[("x", "viewer")]);
    assert_eq!(names(&viewer, "limit=2"), ("ac".to_owned(), Some("c".to_owned())));
    assert_eq!(names(&viewer, "limit=2&after=c"), ("e".to_owned(), None));
}

#[test]
fn policy_of_an_app_denies_at_the_gateway() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, &policy("search", 1, "checkout"));
    assert_eq!(saved.status, 200, "{}", saved.body);
    wait_until(|| check(&server, "search") == 429, || server.log());
}

#[test]
fn decisions_are_counted_by_policy_and_minute() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let saved = root.put_policy("search", 0, &policy("search", 2, "checkout"));
    assert_eq!(saved.status, 200, "{}", saved.body);
    // Before it is in force, the policy is not configured.
    wait_until(|| check(&server, "search") == 200, || server.log());
    assert_eq!([200, 429, 429], [(); 3].map(|()| check(&server, "search")));

    let usage = || root.get(&format!("{POLICIES}/search/usage")).json();
    let sum = |usage: &Value, outcome: &str| -> i64 {
        let points = usage["points"].as_array().unwrap();
        points.iter().map(|point| point[outcome].as_i64().unwrap()).sum()
    };
    wait_until(|| sum(&usage(), "denied") == 2, || usage().to_string());
    assert_eq!(sum(&usage(), "allowed"), 2);
    let policies = root.get("/namespaces/default/usage").json()["policies"].clone();
    assert_eq!(policies[0]["policy"], "search");
    assert_eq!(policies[0]["denied"], 2);

    let foreign = root.add_user("bob", &[("mobile", "owner")]);
    assert_eq!(foreign.get(&format!("{POLICIES}/search/usage")).status, 404);
    let policies = foreign.get("/namespaces/default/usage").json()["policies"].clone();
    assert_eq!(policies, json!([]));
    let refused = root.get(&format!("{POLICIES}/search/usage?from=5&to=5"));
    assert_eq!(refused.status, 400, "{}", refused.body);
}

#[test]
fn history_of_another_app_under_a_reused_name_is_hidden() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let path = "/namespaces/default/policies/search";
    assert_eq!(
        root.put_policy("search", 0, &policy("search", 7, "bank")).status,
        200
    );
    let deleted = root.send("DELETE", path, &[("if-match", "1")], &Value::Null);
    assert_eq!(deleted.status, 200, "{}", deleted.body);
    assert_eq!(
        root.put_policy("search", 0, &policy("search", 5, "shop")).status,
        200
    );
    assert_eq!(
        root.put_policy("search", 3, &policy("search", 6, "shop")).status,
        200
    );
    let numbers = |client: &AdminClient, query: &str| -> Vec<i64> {
        let history = client.get(&format!("{path}/history{query}")).json();
        let revisions = history["revisions"].as_array().unwrap().iter();
        revisions.map(|of| of["revision"].as_i64().unwrap()).collect()
    };
    let owner = root.add_user("olga", &[("shop", "owner")]);
    assert_eq!(numbers(&owner, ""), [4, 3]);
    assert_eq!(numbers(&owner, "?before=3"), [] as [i64; 0]);
    assert_eq!(numbers(&root, ""), [4, 3, 2, 1]);
    assert_eq!(
        numbers(&root.add_user("nora", &[("*", "viewer")]), ""),
        [4, 3, 2, 1]
    );
    for (revision, status) in [(1, 404), (2, 404), (3, 200)] {
        let read = owner.get(&format!("{path}/history/{revision}"));
        assert_eq!(read.status, status, "{}", read.body);
    }
    let body = json!({ "revision": 1 });
    let restored = owner.send("POST", &format!("{path}/restore"), &[("if-match", "4")], &body);
    assert_eq!(restored.status, 404, "{}", restored.body);
    assert!(!owner.get("/namespaces/default/audit").body.contains("bank"));
    let page = owner.page("/e/default/policies/search").body;
    assert!(page.contains("shop") && !page.contains("bank"), "{page}");
}

#[test]
fn rule_cannot_name_a_concurrency_policy() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let concurrency = |name: &str| format!("[policy.{name}]\nalgorithm = 'concurrency'\nmax = 1\n");
    assert_eq!(root.put_policy("export", 0, &concurrency("export")).status, 200);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 1)).status,
        200
    );
    let path = "/namespaces/default/rules";
    let rules = |policy: &str| json!({ "toml": format!("[[rule]]\nmatch = ['a']\npolicy = '{policy}'\n") });
    let unsaved = [("if-none-match", "*")];
    let refused = root.send("PUT", path, &unsaved, &rules("export"));
    assert_eq!(refused.status, 422, "{}", refused.body);
    assert!(refused.body.contains("concurrency"), "{}", refused.body);
    assert_eq!(root.get(path).json()["revision"], 0);
    let saved = root.send("PUT", path, &unsaved, &rules("search"));
    assert_eq!(saved.status, 200, "{}", saved.body);
    // Nor can the policy of the rule become one.
    let refused = root.put_policy("search", 1, &concurrency("search"));
    assert_eq!(refused.status, 422, "{}", refused.body);
    assert!(refused.body.contains("concurrency"), "{}", refused.body);
    let preview = format!("{path}/preview");
    let refused = root.send("POST", &preview, &[], &rules("export"));
    assert_eq!(refused.status, 422, "{}", refused.body);
}
