//! The users of Redis in `docs/guide/redis.acl`: programs read the registry and use all limits,
//! servers write the registry.

use std::time::Duration;

use limiter_core::lease::LeaseReport;
use limiter_core::registry::{RedisRegistry, RegistryError};
use limiter_core::usage::UsageReporting;
use limiter_core::{LimitRequest, Limiter, Policy, StoreErrorKind};
use limiter_testing::RedisServer;
use serde_json::{Value, json};

use crate::support::admin::{AdminClient, policy_of_all, with_sqlite};
use crate::support::server::{Server, wait_until};

const ACL: &str = include_str!("../../../docs/guide/redis.acl");

/// A Redis server with the users of the file. The default user stays, for the commands of the test.
fn redis_with_users() -> RedisServer {
    let redis = RedisServer::start();
    // The user of other tests may write every key.
    redis.command(&["ACL", "DELUSER", "limiter"]);
    let lines: Vec<&str> = ACL.lines().collect();
    assert_eq!(lines[0], "user default off");
    for line in &lines[1..] {
        let rules = words(line.strip_prefix("user ").unwrap());
        redis.command(&[&["ACL".to_owned(), "SETUSER".to_owned()], rules.as_slice()].concat());
    }
    redis
}

/// The words of a line; a selector in parentheses is one word.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in line.split(' ') {
        match words.last_mut() {
            Some(selector) if selector.starts_with('(') && !selector.ends_with(')') => {
                selector.push(' ');
                selector.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

fn app_of(redis: &RedisServer) -> Limiter {
    let url = redis.url_as("limiter-app:app-secret");
    Limiter::redis(url).namespace("prod").app("web").build().unwrap()
}

fn server_on(redis: &RedisServer) -> (Server, AdminClient) {
    let url = redis.url_as("limiter-server:server-secret");
    let server = with_sqlite(&["--redis", &url, "--namespace", "prod"]);
    let root = AdminClient::set_up(&server);
    let path = "/namespaces/prod/policies/search";
    let body = json!({ "toml": policy_of_all("search", 1) });
    let saved = root.send("PUT", path, &[("if-none-match", "*")], &body);
    assert_eq!(saved.status, 200, "{}", saved.body);
    wait_until(|| !redis.command(&["GET", "prod|book"]).is_nil(), || server.log());
    (server, root)
}

/// The commands that Redis has refused to a user.
fn refused(redis: &RedisServer, user: &str) -> Vec<String> {
    let log = redis.command(&["ACL", "LOG"]);
    let field = |entry: &limiter_testing::RespValue, name: &str| {
        let mut fields = entry.items().chunks(2);
        fields.find(|field| field[0].text() == name).unwrap()[1].text()
    };
    let entries = log
        .items()
        .iter()
        .filter(|entry| field(entry, "username") == user);
    entries
        .map(|entry| format!("{} {}", field(entry, "reason"), field(entry, "object")))
        .collect()
}

/// Uses every kind of limit.
async fn use_all_limits(app: &Limiter) -> Result<(), Box<dyn std::error::Error>> {
    let bucket = Policy::token_bucket("bucket").capacity(50).rate("50/s").build()?;
    let window = Policy::sliding_window("window").limit(50).window("1m").build()?;
    assert!(app.check(&bucket, "ann").await?.is_allowed());
    assert!(app.check(&window, "ann").cost(3).await?.is_allowed());
    let both = app.check_all([
        LimitRequest::new(&bucket, "ann"),
        LimitRequest::new(&window, "ann"),
    ]);
    assert!(both.await?.is_allowed());
    app.refund(&bucket, "ann").await?;
    let slow = Policy::token_bucket("slow").capacity(1).rate("20/s").build()?;
    app.acquire(&slow, "ann").await?;
    app.acquire(&slow, "ann").timeout(Duration::from_secs(5)).await?;
    let exports = Policy::concurrency("export").max(2).lease("30s").build()?;
    let permit = app.acquire_concurrency(&exports, "ann").detached().await?;
    app.renew_permit(&exports, "ann", permit.id()).await?;
    app.release_permit(&exports, "ann", permit.id()).await?;
    drop(app.acquire_concurrency(&exports, "ann").await?);
    let reservation = app.reserve(&bucket, "ann").cost(8).await?;
    let reservation = reservation.detach(Duration::from_secs(60)).await?;
    app.settle_reservation(reservation.id(), [LimitRequest::new(&bucket, "ann").cost(3)])
        .await?;
    let leased = Policy::token_bucket("leased")
        .capacity(100)
        .rate(1)
        .lease("1m")
        .build()?;
    assert!(app.check(&leased, "ann").await?.is_allowed());
    let lease = app.token_lease(&bucket, "ann", "edge-1").read().await?;
    let report = LeaseReport::default().wanted(4_u32);
    app.token_lease(&bucket, "ann", "edge-1")
        .renew(&lease, report)
        .await?;
    app.reset(&bucket, "ann").await?;
    Ok(())
}

#[tokio::test]
async fn application_user_uses_all_limits_and_follows_the_registry() {
    let redis = redis_with_users();
    let (server, _root) = server_on(&redis);
    let app = app_of(&redis);
    app.ready().await.unwrap();
    let registry = app.redis_registry().unwrap();
    let subscription = registry.follow();
    subscription.synced().await.unwrap();
    let mut allowed = 0;
    for _ in 0..3 {
        allowed += u32::from(app.named("search").check("ann").await.unwrap().is_allowed());
    }
    assert_eq!(allowed, 1, "{}", server.log());
    use_all_limits(&app).await.unwrap();
    let subscribers = registry.subscribers().await.unwrap();
    assert!(
        subscribers.iter().any(|of| of.app.as_deref() == Some("web")),
        "{subscribers:?}"
    );
    assert_eq!(refused(&redis, "limiter-app"), ["command info"]);
}

/// The reports of usage reach the server, and its user is never refused.
#[tokio::test]
async fn application_user_reports_usage() {
    const PATIENT: Duration = Duration::from_secs(20);
    let redis = redis_with_users();
    let (server, root) = server_on(&redis);
    let app = Limiter::redis(redis.url_as("limiter-app:app-secret"))
        .namespace("prod")
        .app("web")
        .usage(UsageReporting::CountsAndDeniedKeys)
        .build()
        .unwrap();
    let search = Policy::token_bucket("search").capacity(1).rate("1/h");
    let search = search.deadline(PATIENT).build().unwrap();
    for _ in 0..3 {
        let _ = app.check(&search, "ann").await.unwrap();
    }
    app.shutdown(PATIENT).await;
    let usage = || root.get("/namespaces/prod/policies/search/usage").json();
    wait_until(|| usage()["apps"][0]["app"] == "web", || server.log());
    assert_eq!(usage()["apps"][0]["denied"], 2, "{}", usage());
    let block = json!({ "key": "eve", "for_seconds": 600 });
    let blocked = root.send("POST", "/namespaces/prod/blocks", &[], &block);
    assert_eq!(blocked.status, 200, "{}", blocked.body);
    let body = json!({ "name": "ci", "scopes": ["check:*"] });
    let token = root.send("POST", "/namespaces/prod/tokens", &[], &body);
    assert_eq!(token.status, 201, "{}", token.body);
    let id = token.json()["id"].as_str().unwrap().to_owned();
    let tokens = || redis.command(&["GET", "prod|book|tokens"]).text();
    wait_until(|| tokens().contains("[[token]]"), || server.log());
    let revoked = root.send(
        "DELETE",
        &format!("/namespaces/prod/tokens/{id}"),
        &[],
        &Value::Null,
    );
    assert_eq!(revoked.status, 204, "{}", revoked.body);
    wait_until(|| !tokens().contains("[[token]]"), || server.log());
    // The client library of Redis sends this command and ignores a refusal.
    for user in ["limiter-app", "limiter-server"] {
        let refused = refused(&redis, user);
        assert!(
            refused.iter().all(|of| of == "command info"),
            "{user}: {refused:?}"
        );
    }
}

#[tokio::test]
async fn application_user_cannot_write_the_registry() {
    let redis = redis_with_users();
    let (_server, _root) = server_on(&redis);
    let registry: RedisRegistry = app_of(&redis).redis_registry().unwrap();
    let (revision, text) = registry.read().await.unwrap().unwrap();
    let error = registry
        .publish(&policy_of_all("search", 99), revision)
        .await
        .unwrap_err();
    let RegistryError::Store(error) = error else {
        panic!("{error}");
    };
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    for command in [
        &["SET", "prod|book", ""] as &[&str],
        &["DEL", "prod|book"],
        &["SETRANGE", "prod|book", "0", "x"],
    ] {
        let words = [&["ACL", "DRYRUN", "limiter-app"], command].concat();
        assert_ne!(redis.command(&words).text(), "OK", "{command:?}");
    }
    assert_eq!(registry.read().await.unwrap().unwrap(), (revision, text));
    // The texts beside the registry: hashes of tokens, the newest change, the secret of keys.
    for document in ["tokens", "database", "key-secret"] {
        let key = format!("prod|book|{document}");
        let key = key.as_str();
        for command in [&["GET", key] as &[&str], &["SET", key, ""], &["DEL", key]] {
            let words = [&["ACL", "DRYRUN", "limiter-app"], command].concat();
            assert_ne!(redis.command(&words).text(), "OK", "{command:?}");
            let words = [&["ACL", "DRYRUN", "limiter-server"], command].concat();
            assert_eq!(redis.command(&words).text(), "OK", "{command:?}");
        }
    }
}

#[test]
fn status_names_the_users_that_can_write_the_registry() {
    let redis = redis_with_users();
    let (server, root) = server_on(&redis);
    let access = || root.get("/namespaces/prod/status").json()["registry_access"].clone();
    let open = json!({ "state": "open", "user": "limiter-server", "writers": ["default", "limiter-server"] });
    assert_eq!(access(), open, "{}", server.log());
    redis.command(&["ACL", "SETUSER", "default", "resetkeys", "%R~*"]);
    let restricted =
        json!({ "state": "restricted", "user": "limiter-server", "writers": ["limiter-server"] });
    assert_eq!(access(), restricted);
    redis.command(&["ACL", "SETUSER", "limiter-server", "-acl|dryrun"]);
    let unknown = json!({ "state": "not_known", "user": "limiter-server", "writers": Value::Null });
    wait_until(|| access() == unknown, || access().to_string());
}

/// Usage that is not recorded is visible: in the log, on the page and as a metric.
#[test]
fn usage_that_is_not_recorded_is_reported() {
    let redis = redis_with_users();
    let (server, root) = server_on(&redis);
    let usage = || root.get("/namespaces/prod/status").json()["library_usage"].clone();
    wait_until(|| usage()["state"] == "recorded", || server.log());
    let metric = "limiter_server_library_usage_up{namespace=\"prod\"}";
    assert!(server.get("/metrics").body.contains(&format!("{metric} 1")));
    redis.pause();
    server.wait_for_log("usage of library processes is not recorded");
    assert!(server.get("/metrics").body.contains(&format!("{metric} 0")));
    assert_eq!(usage()["state"], "failed", "{}", usage());
    let page = root.page("/e/prod/status").body;
    assert!(page.contains("cannot read the usage in Redis"), "{page}");
    redis.resume();
    wait_until(|| usage()["state"] == "recorded", || server.log());
}

/// A missing permission is visible: once in the log, on the page and as a metric.
#[test]
fn missing_permission_of_usage_is_reported() {
    let redis = redis_with_users();
    redis.command(&[
        "ACL",
        "SETUSER",
        "limiter-server",
        "-hget",
        "-hgetall",
        "-hmget",
        "-hset",
        "-hincrby",
    ]);
    let (server, root) = server_on(&redis);
    let usage = || root.get("/namespaces/prod/status").json()["library_usage"].clone();
    wait_until(|| usage()["state"] == "failed", || server.log());
    assert!(
        usage()["reason"].as_str().unwrap().contains("+hgetall"),
        "{}",
        usage()
    );
    let page = root.page("/e/prod/status");
    assert!(page.body.contains("+hgetall"), "{}", page.body);
    let metric = "limiter_server_library_usage_up{namespace=\"prod\"}";
    assert!(server.get("/metrics").body.contains(&format!("{metric} 0")));
    redis.command(&[
        "ACL",
        "SETUSER",
        "limiter-server",
        "+hget",
        "+hgetall",
        "+hmget",
        "+hset",
        "+hincrby",
    ]);
    wait_until(|| usage()["state"] == "recorded", || server.log());
    assert_eq!(server.log().matches("usage of library processes").count(), 1);
    assert!(server.get("/metrics").body.contains(&format!("{metric} 1")));
}
