//! A limiter behind Redis Sentinel: it finds the primary, and follows when another takes its place.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use limiter_core::{Limiter, OnStoreFailure, Rejection, StoreErrorKind};
use limiter_testing::{Proxy, RedisSentinel, RedisServer};
use support::{SLACK, answers_again, bucket, namespace, patient, policy};

fn limiter(watched: &RedisSentinel) -> Limiter {
    Limiter::redis_sentinel(watched.urls(), watched.primary_url())
        .namespace(namespace())
        .build()
        .unwrap()
}

async fn failure(limits: &Limiter) -> (StoreErrorKind, String) {
    let error = limits.ready().await.unwrap_err();
    let source = error.source().map(ToString::to_string).unwrap_or_default();
    (error.kind(), format!("{error}: {source}"))
}

/// Returns the number of keys that a server reports.
fn keys(server: &RedisServer) -> i64 {
    server.command(&["DBSIZE"]).integer()
}

#[tokio::test]
async fn named_primary_decides_calls() {
    let watched = RedisSentinel::start();
    let limits = limiter(&watched);
    limits.ready().await.unwrap();
    for left in (90..100).rev() {
        assert_eq!(limits.check(&patient(), "k").await.unwrap().remaining(), left);
    }
    assert_eq!(keys(watched.primary()), 1);

    // Without a password, with an unknown name or a wrong user, the error states the cause.
    let name = watched.primary_name();
    let at = |urls: Vec<String>, primary: &str| {
        let builder = Limiter::redis_sentinel(urls, primary);
        builder.namespace("n").build().unwrap()
    };
    let (kind, result) = failure(&at(watched.urls(), "redis://limiter:limits@unknown/")).await;
    assert_eq!(kind, StoreErrorKind::Connection);
    assert!(
        result.contains("monitors a primary of this name") && result.contains("unknown"),
        "{result}"
    );
    let (_, result) = failure(&at(watched.urls(), &format!("redis://limiter:wrong@{name}/"))).await;
    assert!(
        result.contains("Authentication") || result.contains("WRONGPASS"),
        "{result}"
    );
    let unused_key = vec![
        "redis://127.0.0.1:1/".to_owned(),
        "redis://127.0.0.1:2/".to_owned(),
    ];
    let (kind, result) = failure(&at(unused_key, &watched.primary_url())).await;
    assert_eq!(kind, StoreErrorKind::Connection);
    assert!(
        result.contains("no sentinel answers") && result.contains("127.0.0.1:1"),
        "{result}"
    );
    assert!(!result.contains("limits@"), "{result}");
}

fn limiter_at(urls: impl IntoIterator<Item = String>, primary: &str) -> Limiter {
    let builder = Limiter::redis_sentinel(urls, primary);
    builder.namespace(namespace()).connections(1).build().unwrap()
}

#[tokio::test]
async fn dead_minority_of_sentinels_causes_no_delay() {
    let watched = RedisSentinel::start();
    let urls = watched.urls();
    let silent = Proxy::start(watched.sentinels()[0].port());
    silent.set_black_hole(true);
    let first_answer = async |urls: Vec<String>| {
        let limits = limiter_at(urls, &watched.primary_url());
        let started = Instant::now();
        assert!(limits.check(&patient(), "k").await.unwrap().is_allowed());
        started.elapsed()
    };
    let took = first_answer(vec![silent.url(), urls[1].clone(), urls[2].clone()]).await;
    assert!(took < Duration::from_millis(300) + SLACK, "{took:?}");
    watched.sentinels()[1].kill();
    let took = first_answer(urls.clone()).await;
    assert!(took < Duration::from_millis(300) + SLACK, "{took:?}");
    // The reply of one of three sentinels is accepted only after the timeout of the others.
    let took = first_answer(vec![silent.url(), urls[1].clone(), urls[2].clone()]).await;
    assert!(took >= Duration::from_millis(450), "{took:?}");
    assert!(took < Duration::from_millis(1_300) + SLACK, "{took:?}");
}

/// Two sentinels with newer information are farther away.
#[tokio::test]
async fn primary_is_not_read_from_nearest_sentinel_alone() {
    let (old, new) = (RedisSentinel::start(), RedisSentinel::start());
    // These keys must persist until the end.
    let lasting = bucket("lasting", 10_000, "1/d");
    let far: Vec<Proxy> = new.sentinels()[1..]
        .iter()
        .map(|sentinel| Proxy::start(sentinel.port()))
        .collect();
    let urls = || [old.sentinels()[0].url(), far[0].url(), far[1].url()];
    let set_far = |refuse: bool| {
        for proxy in &far {
            proxy.refuse(refuse);
            if refuse {
                proxy.drop_connections();
            }
            // Each way.
            proxy.set_delay(Duration::from_millis(65));
        }
    };
    set_far(false);
    let limits = limiter_at(urls(), &new.primary_url());
    assert!(limits.check(&lasting, "k").await.unwrap().is_allowed());
    assert_eq!((keys(old.primary()), keys(new.primary())), (0, 1));

    // The limiter follows the old sentinel while no other one is reachable, and not afterwards.
    set_far(true);
    let limits = limiter_at(urls(), &new.primary_url());
    assert!(limits.check(&lasting, "k").await.unwrap().is_allowed());
    assert_eq!((keys(old.primary()), keys(new.primary())), (1, 1));
    set_far(false);
    let result = Instant::now();
    while keys(new.primary()) == 1 {
        assert!(result.elapsed() < Duration::from_millis(1_500) + SLACK);
        let _ = limits.check(&lasting, "k").await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    // The nearest sentinel does not redirect callers from the primary of the majority.
    set_far(true);
    let before = keys(old.primary());
    let alone = Instant::now();
    for key in 0_u32.. {
        assert!(limits.check(&lasting, key).await.unwrap().is_allowed());
        if alone.elapsed() > Duration::from_secs(2) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(keys(old.primary()), before);
}

/// Effects of a failover on callers: the longest time without a permit, and whether a call exceeded
/// its deadline.
async fn gaps(limits: Limiter, stop: Arc<AtomicBool>) -> (Duration, Instant, Duration) {
    let (mut longest, mut slowest, mut answered) = (Duration::ZERO, Duration::ZERO, Instant::now());
    for key in 0_u32.. {
        let started = Instant::now();
        let answer = limits.check(&policy(OnStoreFailure::Error), key).await;
        slowest = slowest.max(started.elapsed());
        if answer.is_ok() {
            longest = longest.max(answered.elapsed());
            answered = Instant::now();
        } else if stop.load(Ordering::SeqCst) && answered.elapsed() > Duration::from_secs(5) {
            break;
        }
        if answer.is_ok() && stop.load(Ordering::SeqCst) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    (longest, answered, slowest)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announced_failover_is_followed_without_gap() {
    let watched = Arc::new(RedisSentinel::start());
    let limits = limiter(&watched);
    limits.ready().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let callers = tokio::spawn(gaps(limits.clone(), Arc::clone(&stop)));
    let result = Arc::clone(&watched);
    let new = tokio::task::spawn_blocking(move || result.fail_over().port())
        .await
        .unwrap();
    let new = watched
        .servers()
        .iter()
        .find(|server| server.port() == new)
        .unwrap();
    // All sentinels name it: soon calls go there, though the old one takes them for a while yet.
    let agreed = Instant::now();
    let before = keys(new);
    while keys(new) == before {
        assert!(
            agreed.elapsed() < Duration::from_secs(1) + SLACK,
            "no call reaches the new primary"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.store(true, Ordering::SeqCst);
    let (longest, _, slowest) = callers.await.unwrap();
    assert!(longest < Duration::from_millis(500) + SLACK, "{longest:?}");
    assert!(
        slowest < limiter_core::Policy::DEFAULT_DEADLINE + SLACK,
        "{slowest:?}"
    );
    answers_again(&limits, Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promoted_replica_is_used_when_announced() {
    let watched = Arc::new(RedisSentinel::start());
    let limits = limiter(&watched);
    limits.ready().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let callers = tokio::spawn(gaps(limits.clone(), Arc::clone(&stop)));
    let killed = Arc::clone(&watched);
    tokio::task::spawn_blocking(move || {
        let old = killed.kill_primary();
        killed.await_fail_over(old);
    })
    .await
    .unwrap();
    let agreed = Instant::now();
    stop.store(true, Ordering::SeqCst);
    let (_, answered, slowest) = callers.await.unwrap();
    let healed = answered.saturating_duration_since(agreed);
    assert!(healed < Duration::from_millis(500) + SLACK, "{healed:?}");
    assert!(
        slowest < limiter_core::Policy::DEFAULT_DEADLINE + SLACK,
        "{slowest:?}"
    );
    assert!(limits.check(&patient(), "k").await.unwrap().is_allowed());
}

#[tokio::test]
async fn server_without_primary_role_is_not_used() {
    let watched = RedisSentinel::builder()
        .down_after(Duration::from_secs(60))
        .start();
    // Behind the sentinels' back.
    watched.primary().command(&["REPLICAOF", "127.0.0.1", "1"]);
    let Err(Rejection::Unavailable { error, .. }) = limiter(&watched).check(&patient(), "k").await else {
        panic!("a replica cannot decide");
    };
    let result = error.source().unwrap().to_string();
    assert!(result.contains("is not a primary"), "{result}");
}

#[test]
fn invalid_urls_are_reported() {
    for (sentinels, primary, message) in [
        (&[] as &[&str], "redis://name/", "a URL of a sentinel is missing"),
        (
            &["http://user:secret@h/"],
            "redis://name/",
            "redis URL is `…`, expected a URL such as redis://",
        ),
        (
            &["redis://h:26379/"],
            "unix:///run/redis.sock",
            "the primary's name in place of a host",
        ),
    ] {
        let builder = Limiter::redis_sentinel(sentinels.iter().copied(), primary);
        let result = builder.namespace("n").build().unwrap_err().to_string();
        assert!(result.contains(message) && !result.contains("secret"), "{result}");
    }
}
