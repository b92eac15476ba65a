//! Samples of denials: from the gateway and from library processes to the database and the pages.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use std::time::Duration;

use limiter_core::usage::UsageReporting;
use limiter_core::{Limiter, ManualClock, Origin, Policy};
use limiter_server::denials::DenialRecorder;
use limiter_server::gateway::Gateway;
use limiter_server::gateway::activity::{DecidedCall, KeptCall};
use limiter_server::gateway::readiness::Readiness;
use limiter_server::settings::Settings;
use limiter_server::store::{DenialFilter, Store};
use limiter_testing::RedisServer;
use serde_json::{Value, json};
use support::access::bearer;
use support::admin::{AdminClient, policy_of_all, with_sqlite};
use support::browser::Browser;
use support::databases::{Database, block_on};
use support::descriptors::{descriptor_of, request};
use support::http;
use support::resp::encode;
use support::rls::RlsClient;
use support::server::{Directory, Server, wait_until};
use support::sockets;

const PATIENT: Duration = Duration::from_secs(20);
const RULES: &str = "[[rule]]\ndomain = 'edge'\nmatch = ['route=search', 'customer']\npolicy = 'search'\n";

fn call(server: &Server, customer: &str) {
    let descriptor = descriptor_of(&[("route", "search"), ("customer", customer)]);
    let client = RlsClient::connect(server.grpc());
    client.decide(&request(&[descriptor])).unwrap();
}

#[test]
fn denials_of_the_gateway_survive_its_end_with_rule_and_revision() {
    let mut server = with_sqlite(&["--node", "n1"]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 1)).status,
        200
    );
    let rules = root.send(
        "PUT",
        "/namespaces/default/rules",
        &[("if-none-match", "*")],
        &json!({ "toml": RULES }),
    );
    assert_eq!(rules.status, 200, "{}", rules.body);
    let read = |client: &AdminClient| -> Value {
        let answer = client.get("/namespaces/default/denials?policy=search");
        answer.json()["denials"].clone()
    };
    // The first calls can precede the publication of the rules.
    let is_recorded = || {
        call(&server, "acme");
        let denials = read(&root);
        denials[0]["denied"].as_i64().is_some_and(|denied| denied >= 3)
    };
    wait_until(is_recorded, || server.log());
    let activity = root.get("/namespaces/default/keys/activity?policy=search").json();
    let (sample, now) = (&read(&root)[0], &activity["keys"][0]);
    for of in [sample, now] {
        assert_eq!(of["key"], "acme", "{of}");
        assert_eq!(of["rule"], "edge: route=search, customer", "{of}");
        assert_eq!(of["origin"], "memory", "{of}");
        assert!(of["revision"].as_u64().unwrap() > 0, "{of}");
        assert!(of["first_at"].as_i64() <= of["last_at"].as_i64(), "{of}");
    }
    assert_eq!((&sample["node"], &sample["app"]), (&json!("n1"), &Value::Null));
    let viewer = root.add_user("vera", &[("bank", "viewer")]);
    assert_eq!(read(&viewer).as_array().unwrap().len(), 1, "a policy of all apps");

    server.kill();
    let server = server.restart(&["--admin", "127.0.0.1:0"]);
    let root = AdminClient::new(server.admin(), root.credentials);
    wait_until(|| root.get("/session").status == 200, || server.log());
    let denied = read(&root)[0]["denied"].as_i64().unwrap();
    assert!(denied >= 3, "{denied}");
    let page = Browser::signed_in(&server, "root").get("/e/default/explain?policy=search&key=acme");
    for expected in [
        "Denied calls of this key in this hour",
        "at node n1, by rule edge: route=search, customer, registry revision ",
        "decided by memory",
    ] {
        assert!(page.body.contains(expected), "{expected}\n{}", page.body);
    }
}

#[test]
fn denials_of_redis_clients_have_the_key_of_the_policy() {
    let server = with_sqlite(&["--resp", "127.0.0.1:0"]);
    let root = AdminClient::set_up(&server);
    assert_eq!(
        root.put_policy("search", 0, &policy_of_all("search", 1)).status,
        200
    );
    let throttle = ["CL.THROTTLE", "policy:search:10.0.0.1:ann", "0", "1", "1"];
    let commands = [encode(&throttle), encode(&["QUIT"])].concat();
    let is_denied = || {
        let mut stream = sockets::send(server.resp(), &commands);
        sockets::read_to_end(&mut stream).starts_with("*5\r\n:1\r\n")
    };
    wait_until(is_denied, || server.log());
    let activity = root.get("/namespaces/default/keys/activity?policy=search").json();
    assert_eq!(activity["keys"][0]["key"], "10.0.0.1:ann", "{activity}");
}

#[test]
fn acquisitions_of_permits_are_recorded() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let export = "[policy.export]\nalgorithm = 'concurrency'\nmax = 1\n";
    assert_eq!(root.put_policy("export", 0, export).status, 200);
    let token = json!({ "name": "edge", "scopes": ["acquire:*"] });
    let created = root
        .send("POST", "/namespaces/default/tokens", &[], &token)
        .json();
    let token = bearer(created["secret"].as_str().unwrap());
    let acquire = || {
        let body = json!({ "policy": "export", "key": "ann" }).to_string();
        let headers = [("authorization", &*token)];
        http::post(server.http(), "/v1/acquire", &headers, &body)
            .unwrap()
            .status
    };
    wait_until(|| acquire() == 200, || server.log());
    let activity = || root.get("/namespaces/default/keys/activity?policy=export").json();
    assert_eq!(activity()["keys"][0]["used_percent"], 100, "{}", activity());
    assert_eq!(acquire(), 429);
    let found = activity()["keys"][0].clone();
    assert_eq!(
        (&found["key"], &found["denied"]),
        (&json!("ann"), &json!(1)),
        "{found}"
    );
}

#[test]
fn denial_is_recorded_for_enforced_limits_alone() {
    let server = with_sqlite(&[]);
    let root = AdminClient::set_up(&server);
    let trial = policy_of_all("trial", 100) + "enforcement = 'shadow'\n";
    for (name, policy) in [("search", policy_of_all("search", 1)), ("trial", trial)] {
        assert_eq!(root.put_policy(name, 0, &policy).status, 200);
    }
    let both = ["trial", "search"].map(|policy| json!({"policy": policy, "key": "ann"}));
    let both = json!({ "limits": both }).to_string();
    let is_denied = || {
        let checked = http::post(server.http(), "/v1/check", &[], &both).unwrap();
        checked.status == 429
    };
    wait_until(is_denied, || server.log());
    let keys = |policy| {
        let path = format!("/namespaces/default/keys/activity?policy={policy}");
        root.get(&path).json()["keys"].clone()
    };
    assert_eq!(keys("search")[0]["denied"], 1, "{}", keys("search"));
    assert_eq!(keys("trial"), json!([]));
}

/// A policy that denies all calls of a key but the first.
fn search() -> Policy {
    let policy = Policy::token_bucket("search").capacity(1).rate("1/d");
    policy.deadline(PATIENT).build().unwrap()
}

/// Makes calls in a library process, which reports and ends.
async fn report(redis: &RedisServer, clock: &ManualClock, key: &str, calls: u32) {
    let builder = Limiter::redis(redis.url()).namespace("prod").app("shop");
    let builder = builder.usage(UsageReporting::CountsAndDeniedKeys);
    let limits = builder.clock(clock).build().unwrap();
    for _ in 0..calls {
        let _ = limits.check(&search(), key).await.unwrap();
    }
    limits.shutdown(PATIENT).await;
}

async fn samples_of_library_are_recorded_once(url: &str) {
    let (redis, clock) = (RedisServer::start(), ManualClock::new());
    let store = Store::open(url).await.unwrap();
    let reader = Limiter::redis(redis.url()).namespace("prod").clock(&clock);
    let fleet = reader.build().unwrap().fleet_usage().unwrap();
    let node = || DenialRecorder::new(store.clone(), "prod").with_library(fleet.clone());
    let now = || i64::try_from(clock.now().as_micros()).unwrap();
    let (mut first, mut second) = (node(), node());
    report(&redis, &clock, "acme:ann", 4).await;
    first.record_library(now()).await.unwrap();
    second.record_library(now()).await.unwrap();
    let read = async || {
        let filter = DenialFilter {
            namespace: "prod",
            policy: Some("search"),
            key: None,
            range: (0, i64::MAX),
            limit: 100,
        };
        store.denials(filter).await.unwrap()
    };
    let counts = async || -> Vec<(String, i64)> {
        let samples = read().await.into_iter();
        samples.map(|of| (of.key, of.denied)).collect()
    };
    assert_eq!(counts().await, [("acme / ann".to_owned(), 3)]);
    let sample = read().await.remove(0);
    assert_eq!((sample.app.as_deref(), sample.node.as_str()), (Some("shop"), ""));
    assert_eq!(sample.rule, None);
    assert_eq!(sample.origin.as_deref(), Some("deny_cache"));
    // A later report of the same minute, and a key that PostgreSQL cannot store.
    report(&redis, &clock, "acme:ann", 2).await;
    report(&redis, &clock, "nul\0", 3).await;
    second.record_library(now()).await.unwrap();
    node().record_library(now()).await.unwrap();
    first.record_library(now()).await.unwrap();
    let expected = [("acme / ann".to_owned(), 5), ("nul\u{fffd}".to_owned(), 2)];
    assert_eq!(counts().await, expected);
    // Each hour has samples of its own.
    clock.advance(Duration::from_secs(3_600));
    report(&redis, &clock, "acme:ann", 1).await;
    first.record_library(now()).await.unwrap();
    assert_eq!(counts().await.len(), 3);
}

#[test]
fn samples_are_recorded_once_in_sqlite() {
    let database = Database::sqlite();
    block_on(samples_of_library_are_recorded_once(&database.create("library")));
}

#[test]
fn samples_are_recorded_once_in_postgres() {
    let database = Database::postgres();
    block_on(samples_of_library_are_recorded_once(&database.create("library")));
}

/// A step of the clock to an earlier minute, and to an earlier hour.
#[tokio::test]
async fn samples_do_not_pause_after_the_clock_was_set_back() {
    const MINUTE: i64 = 60_000_000;
    let directory = Directory::new();
    let settings = directory.write("limiter-server.toml", "policies = 'policies.toml'\n");
    let settings = Settings::of_file(&settings).unwrap();
    let gateway = Gateway::new(Limiter::in_process().build(), &settings, Readiness::new(true));
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let store = Store::open(&url).await.unwrap();
    let recorder = DenialRecorder::new(store.clone(), "prod");
    let mut recorder = recorder.with_gateway(gateway.clone(), "n1", "process");
    let start = 1_000 * 60 * MINUTE + 30 * MINUTE;
    for (at, key, expected) in [
        (start, "ann", [1, 0]),
        (start - MINUTE, "ann", [2, 0]),
        (start - MINUTE, "bob", [2, 1]),
        (start - 45 * MINUTE, "bob", [2, 2]),
        (start + 2 * MINUTE, "ann", [3, 2]),
    ] {
        let call = DecidedCall {
            policy: "search",
            peer: None,
            is_allowed: false,
            numbers: Some((0, 1)),
            origin: Origin::Memory,
        };
        let kept = || KeptCall {
            key: key.to_owned(),
            rule: None,
            revision: 1,
        };
        gateway.activity().record(call, kept, at);
        recorder.record_gateway(at).await.unwrap();
        let filter = DenialFilter {
            namespace: "prod",
            policy: Some("search"),
            key: None,
            range: (0, i64::MAX),
            limit: 100,
        };
        let samples = store.denials(filter).await.unwrap();
        let denied = |key: &str| {
            let of_key = samples.iter().filter(|of| of.key == key);
            of_key.map(|of| of.denied).sum::<i64>()
        };
        assert_eq!(["ann", "bob"].map(denied), expected, "at {at}: {samples:?}");
    }
}

/// The database does not answer for three hours.
#[tokio::test]
async fn samples_of_an_outage_of_the_database_are_recorded_later() {
    const HOUR: i64 = 3_600_000_000;
    let directory = Directory::new();
    let settings = directory.write("limiter-server.toml", "policies = 'policies.toml'\n");
    let settings = Settings::of_file(&settings).unwrap();
    let gateway = Gateway::new(Limiter::in_process().build(), &settings, Readiness::new(true));
    let url = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let store = Store::open(&url).await.unwrap();
    let recorder = DenialRecorder::new(store.clone(), "prod");
    let mut recorder = recorder.with_gateway(gateway.clone(), "n1", "process");
    let start = gateway.activity().since() + 1;
    for number in 0..4 {
        let call = DecidedCall {
            policy: "search",
            peer: None,
            is_allowed: false,
            numbers: Some((0, 1)),
            origin: Origin::Memory,
        };
        let kept = || KeptCall {
            key: "ann".to_owned(),
            rule: None,
            revision: 1,
        };
        gateway.activity().record(call, kept, start + number * HOUR);
    }
    recorder.record_gateway(start + 3 * HOUR).await.unwrap();
    let filter = DenialFilter {
        namespace: "prod",
        policy: Some("search"),
        key: None,
        range: (0, i64::MAX),
        limit: 100,
    };
    let samples = store.denials(filter).await.unwrap();
    assert_eq!(samples.iter().map(|of| of.denied).sum::<i64>(), 4, "{samples:?}");
}
