//! Usage that library processes report to Redis, in the database and in the admin UI.
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
use limiter_core::{Limiter, ManualClock, Policy, Timestamp};
use limiter_server::library_usage::LibraryUsageFold;
use limiter_server::store::{LibraryUsage, Store, UsageKind, UsageSpan, UsageTotals};
use limiter_testing::RedisServer;
use serde_json::{Value, json};
use support::admin::{AdminClient, policy_of_all};
use support::browser::Browser;
use support::databases::{Database, block_on};
use support::http;
use support::server::{Directory, Server, wait_until};

const PATIENT: Duration = Duration::from_secs(20);

/// A policy that denies all calls of a key but the first, and a trial that denies all but two.
fn search() -> Policy {
    let sized = |capacity: u32| Policy::token_bucket("search").capacity(capacity).rate("1/h");
    let policy = sized(1).deadline(PATIENT).build().unwrap();
    let end_of_2099 = Timestamp::from_micros(4_102_444_800_000_000);
    policy
        .with_trial(&sized(2).build().unwrap(), end_of_2099)
        .unwrap()
}

/// Makes calls in a process of an app, which reports and ends.
async fn call(redis: &RedisServer, clock: Option<&ManualClock>, app: &str, key: &str, calls: u32) {
    let builder = Limiter::redis(redis.url()).namespace("prod").app(app);
    let builder = builder.usage(UsageReporting::CountsAndDeniedKeys);
    let limits = match clock {
        Some(clock) => builder.clock(clock).build().unwrap(),
        None => builder.build().unwrap(),
    };
    for _ in 0..calls {
        let _ = limits.check(&search(), key).await.unwrap();
    }
    limits.shutdown(PATIENT).await;
}

fn row(app: &str, allowed: i64, denied: i64) -> LibraryUsage {
    LibraryUsage {
        policy: "search".to_owned(),
        app: app.to_owned(),
        totals: UsageTotals {
            allowed,
            denied,
            ..UsageTotals::default()
        },
    }
}

/// Two nodes fold the same minutes, and one of them starts again.
async fn usage_is_recorded_once(url: &str) {
    let (redis, clock) = (RedisServer::start(), ManualClock::new());
    let store = Store::open(url).await.unwrap();
    let reader = Limiter::redis(redis.url())
        .namespace("prod")
        .clock(&clock)
        .build()
        .unwrap();
    let node = || LibraryUsageFold::new(reader.fleet_usage().unwrap(), store.clone(), "prod");
    let read = async |span| {
        let usage = store.library_usage("prod", None, span, (0, i64::MAX)).await;
        usage.unwrap()
    };
    let (mut first, mut second) = (node(), node());
    call(&redis, Some(&clock), "shop", "ann", 3).await;
    first.record_minutes().await.unwrap();
    second.record_minutes().await.unwrap();
    assert_eq!(read(UsageSpan::Minute).await, [row("shop", 1, 2)]);
    call(&redis, Some(&clock), "shop", "ann", 1).await;
    call(&redis, Some(&clock), "web", "bob", 1).await;
    clock.advance(Duration::from_secs(60));
    call(&redis, Some(&clock), "web", "bob", 1).await;
    second.record_minutes().await.unwrap();
    let mut restarted = node();
    restarted.record_minutes().await.unwrap();
    first.record_minutes().await.unwrap();
    let expected = [row("shop", 1, 3), row("web", 1, 1)];
    assert_eq!(read(UsageSpan::Minute).await, expected);
    assert_eq!(read(UsageSpan::Hour).await, []);
    for fold in [&mut first, &mut second, &mut restarted] {
        fold.record_hours().await.unwrap();
    }
    assert_eq!(read(UsageSpan::Hour).await, expected);
    for span in [UsageSpan::Minute, UsageSpan::Hour] {
        let of_trial = store.usage_sum(("prod", "search"), UsageKind::Trial, span, (0, i64::MAX));
        let of_trial = of_trial.await.unwrap();
        // Four calls of `ann` and two of `bob`.
        assert_eq!((of_trial.allowed, of_trial.denied), (4, 2), "{span:?}");
    }
    let points = store.usage(
        ("prod", "search"),
        UsageKind::Policy,
        UsageSpan::Minute,
        (0, i64::MAX),
    );
    assert_eq!(points.await.unwrap().len(), 2);
}

#[test]
fn usage_is_recorded_once_in_sqlite() {
    let database = Database::sqlite();
    block_on(usage_is_recorded_once(&database.create("usage")));
}

#[test]
fn usage_is_recorded_once_in_postgres() {
    let database = Database::postgres();
    block_on(usage_is_recorded_once(&database.create("usage")));
}

/// Minutes that the database did not accept are recorded by the next pass.
#[tokio::test]
async fn failed_pass_is_repeated() {
    let (redis, clock) = (RedisServer::start(), ManualClock::new());
    call(&redis, Some(&clock), "shop", "ann", 2).await;
    let database = Database::sqlite();
    let store = Store::open(&database.create("failed_pass")).await.unwrap();
    let reader = Limiter::redis(redis.url())
        .namespace("prod")
        .clock(&clock)
        .build()
        .unwrap();
    let fleet = reader.fleet_usage().unwrap();
    let closed = Store::open(&database.create("closed")).await.unwrap();
    closed.close().await;
    let mut fold = LibraryUsageFold::new(fleet.clone(), closed, "prod");
    for _ in 0..2 {
        let error = fold.record_minutes().await.unwrap_err();
        assert!(error.contains("cannot record the usage"), "{error}");
    }
    let mut fold = LibraryUsageFold::new(fleet, store.clone(), "prod");
    fold.record_minutes().await.unwrap();
    let usage = store.library_usage("prod", Some("search"), UsageSpan::Minute, (0, i64::MAX));
    assert_eq!(usage.await.unwrap(), [row("shop", 1, 1)]);
}

/// A server whose namespace `prod` has its registry in Redis, and its administrator.
fn with_registry(redis: &RedisServer) -> (Server, AdminClient) {
    let directory = Directory::new();
    let database = format!("sqlite:{}", directory.path().join("limiter.db").display());
    let settings = format!(
        "gateway_namespace = 'prod'\n[namespace.prod]\nredis = '{}'\n",
        redis.url()
    );
    directory.write("limiter-server.toml", &settings);
    let server = Server::start(directory, &["--database", &database, "--admin", "127.0.0.1:0"]);
    wait_until(
        || http::get(server.admin(), "/healthz", &[]).is_ok_and(|answer| answer.status == 200),
        || server.log(),
    );
    let root = AdminClient::set_up(&server);
    (server, root)
}

#[test]
fn pages_show_usage_of_library_processes() {
    let redis = RedisServer::start();
    let (server, root) = with_registry(&redis);
    let body = json!({ "toml": policy_of_all("search", 1) });
    let saved = root.send(
        "PUT",
        "/namespaces/prod/policies/search",
        &[("if-none-match", "*")],
        &body,
    );
    assert_eq!(saved.status, 200);
    block_on(call(&redis, None, "shop", "acme:ann", 4));
    let usage = || root.get("/namespaces/prod/policies/search/usage").json();
    wait_until(|| usage()["apps"] != json!([]), || server.log());
    let usage = usage();
    let (app, sum) = (&usage["apps"][0], |name: &str| -> i64 {
        let points = usage["points"].as_array().unwrap().iter();
        points.map(|point| point[name].as_i64().unwrap()).sum()
    });
    assert_eq!((&app["app"], &app["denied"]), (&json!("shop"), &json!(3)));
    assert_eq!((sum("allowed"), sum("denied")), (1, 3));
    let recent = root.get("/namespaces/prod/usage").json();
    assert_eq!(recent["policies"][0]["apps"], json!(["shop"]), "{recent}");
    let keys = root.get("/namespaces/prod/keys/activity").json();
    let denied: &Value = &keys["keys"][0];
    assert_eq!(
        (
            &denied["key"],
            &denied["app"],
            &denied["denied"],
            &denied["error"]
        ),
        (&json!("acme / ann"), &json!("shop"), &json!(3), &json!(0)),
        "{keys}"
    );
    assert_eq!(denied["used_percent"], Value::Null);
    let browser = Browser::signed_in(&server, "root");
    for (page, expected) in [
        ("/e/prod/now", "library in shop"),
        ("/e/prod/now", "acme / ann"),
        ("/e/prod/policies/search", "<th scope=\"row\">shop</th>"),
        ("/e/prod/policies/search", "library in shop"),
        ("/e/prod/customers?key=acme%20/%20ann", "library in shop"),
        (
            "/e/prod/explain?policy=search&key=acme%20/%20ann",
            "by the library in shop",
        ),
    ] {
        let body = browser.get(page).body;
        assert!(body.contains(expected), "{page}: {expected}\n{body}");
    }
}

/// A program reads the trial from the registry. Its calls are compared by the API and by the pages.
#[test]
fn trial_in_library_processes_is_compared_with_the_policy() {
    const POLICY: &str = "/namespaces/prod/policies/search";
    let redis = RedisServer::start();
    let (server, root) = with_registry(&redis);
    let toml = format!("{}deadline = '20s'\n", policy_of_all("search", 3));
    let saved = root.send("PUT", POLICY, &[("if-none-match", "*")], &json!({ "toml": toml }));
    assert_eq!(saved.status, 200, "{}", saved.body);
    let numbers = json!({ "capacity": 1, "rate": "1/h", "for_seconds": 3_600 });
    let started = root.send("PUT", &format!("{POLICY}/trial"), &[("if-match", "1")], &numbers);
    assert_eq!(started.status, 200, "{}", started.body);

    block_on(async {
        let builder = Limiter::redis(redis.url()).namespace("prod").app("shop");
        let limits = builder.usage(UsageReporting::Counts).build().unwrap();
        let followed = limits.redis_registry().unwrap().follow();
        followed.synced().await.unwrap();
        let registry = limits.registry();
        let is_tried = || {
            limits
                .policy("search", "ann")
                .is_ok_and(|of| of.trial().is_some())
        };
        let published = async {
            let mut revision = registry.revision();
            while !is_tried() {
                revision = registry.changed(revision).await;
            }
        };
        tokio::time::timeout(PATIENT, published).await.unwrap();
        let mut allowed = 0;
        for _ in 0..5 {
            allowed += u32::from(limits.named("search").check("ann").await.unwrap().is_allowed());
        }
        assert_eq!(allowed, 3, "the trial affects no call");
        limits.shutdown(PATIENT).await;
    });

    let trial = || root.get(&format!("{POLICY}/trial")).json();
    let expected = (
        json!({ "allowed": 3, "denied": 2 }),
        json!({ "allowed": 1, "denied": 4 }),
    );
    wait_until(
        || {
            let found = trial();
            (&found["policy"], &found["trial"]) == (&expected.0, &expected.1)
        },
        || format!("{}\n{}", trial(), server.log()),
    );
    let browser = Browser::signed_in(&server, "root");
    let page = browser.get("/e/prod/policies/search").body;
    assert!(page.contains("would deny 80.0 % (now 40.0 %)"), "{page}");
    let now = browser.get("/e/prod/now").body;
    assert!(now.contains("would deny 80.0 %"), "{now}");
}
