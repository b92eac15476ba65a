//! `OnStoreFailure::Local`: in an outage each replica admits its share and no more.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use std::time::{Duration, Instant};

use limiter_core::{
    Key, LimitRequest, Limiter, ManualClock, OnStoreFailure, Origin, Policy, Rejection, StoreErrorKind,
    window_limiter,
};
use limiter_testing::log::Warnings;
use limiter_testing::{RedisCluster, RedisServer};
use support::{namespace, secs};

/// A replica of a program, on a clock that the test moves.
fn replica(server: &RedisServer, namespace: &str, clock: &ManualClock) -> Limiter {
    Limiter::redis(server.url())
        .namespace(namespace)
        .clock(clock)
        .build()
        .unwrap()
}

/// One replica with a configured number of `replicas`.
fn one_of(replicas: u32, server: &RedisServer, clock: &ManualClock) -> Limiter {
    Limiter::redis(server.url())
        .namespace(namespace())
        .clock(clock)
        .replicas(replicas)
        .build()
        .unwrap()
}

/// Long enough for a busy machine while Redis replies; a dead server refuses connections at once.
const DEADLINE: Duration = secs(10);

fn bucket(capacity: u32, rate: &str) -> Policy {
    Policy::token_bucket("bucket")
        .capacity(capacity)
        .rate(rate)
        .deadline(DEADLINE)
        .build()
        .unwrap()
}

fn window(limit: u32, window: &str) -> Policy {
    Policy::sliding_window("window")
        .limit(limit)
        .window(window)
        .deadline(DEADLINE)
        .build()
        .unwrap()
}

fn funnel(capacity: u32, rate: &str) -> Policy {
    Policy::funnel("funnel")
        .capacity(capacity)
        .rate(rate)
        .deadline(DEADLINE)
        .build()
        .unwrap()
}

/// Calls until one is denied. Returns the number of admitted calls, all by the local fallback.
async fn admitted_locally(limits: &Limiter, policy: &Policy, key: &str) -> u32 {
    let mut admitted = 0;
    loop {
        let decision = limits.check(policy, key).await.unwrap();
        assert_eq!(decision.origin(), Origin::LocalFallback);
        assert!(decision.store_error().is_some());
        if !decision.is_allowed() {
            assert!(matches!(decision.require(), Err(Rejection::Limited(_))));
            return admitted;
        }
        admitted += 1;
    }
}

async fn use_up(limits: &Limiter, policy: &Policy, key: &str, count: u32) {
    for _ in 0..count {
        let decision = limits.check(policy, key).await.unwrap();
        assert_eq!((decision.is_allowed(), decision.origin()), (true, Origin::Redis));
    }
}

/// Waits until a replica counts this number of replicas.
async fn until_counted(limits: &Limiter, count: u32) {
    let started = Instant::now();
    while limits.replicas() != count {
        assert!(
            started.elapsed() < secs(10),
            "{} replicas are counted",
            limits.replicas()
        );
        tokio::time::sleep(support::millis(1)).await;
    }
}

#[tokio::test]
async fn share_of_key_starts_with_its_last_known_remaining() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limits = one_of(4, &server, &clock);
    for policy in [bucket(10, "1/h"), funnel(10, "1/h"), window(10, "1h")] {
        use_up(&limits, &policy, "some", 5).await;
        use_up(&limits, &policy, "all", 10).await;
    }
    server.kill();
    for (policy, part_of_five) in [
        (bucket(10, "1/h"), 1),
        (funnel(10, "1/h"), 1),
        (window(10, "1h"), 2),
    ] {
        assert_eq!(admitted_locally(&limits, &policy, "new").await, 3, "{policy}");
        assert_eq!(
            admitted_locally(&limits, &policy, "some").await,
            part_of_five,
            "{policy}"
        );
        assert_eq!(admitted_locally(&limits, &policy, "all").await, 0, "{policy}");
    }
}

#[tokio::test]
async fn share_is_refilled_at_its_part_of_rate() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limits = one_of(2, &server, &clock);
    let (bucket, window) = (bucket(4, "1/s"), window(4, "10s"));
    use_up(&limits, &window, "k", 1).await;
    clock.advance(secs(3));
    use_up(&limits, &window, "k", 3).await;
    clock.advance(secs(3));
    server.kill();

    assert_eq!(admitted_locally(&limits, &bucket, "k").await, 2);
    let denied = limits.check(&bucket, "k").await.unwrap();
    assert_eq!(denied.retry_after(), Some(secs(2)), "half a permit a second");
    clock.advance(secs(2));
    assert_eq!(admitted_locally(&limits, &bucket, "k").await, 1);

    // The newest permit in Redis was given at second 3.
    assert_eq!(admitted_locally(&limits, &window, "k").await, 0);
    let denied = limits.check(&window, "k").await.unwrap();
    assert_eq!(denied.retry_after(), Some(secs(13 - 8)));
    clock.advance(secs(5));
    assert_eq!(admitted_locally(&limits, &window, "k").await, 2);
}

#[tokio::test]
async fn replicas_count_each_other_and_share_the_limit() {
    let (server, clock, namespace) = (RedisServer::start(), ManualClock::new(), namespace());
    let replicas: Vec<_> = (0..4).map(|_| replica(&server, &namespace, &clock)).collect();
    let policy = bucket(100, "1/h");
    for _ in 0..3 {
        for limits in &replicas {
            use_up(limits, &policy, "k", 2).await;
        }
        clock.advance(support::millis(10_000));
    }
    for limits in &replicas {
        until_counted(limits, 4).await;
    }
    server.kill();
    let mut admitted = 24;
    for limits in &replicas {
        admitted += admitted_locally(limits, &policy, "k").await;
    }
    assert!((100..=104).contains(&admitted), "{admitted}");
}

#[tokio::test]
async fn limiter_with_peeks_only_is_not_a_replica() {
    let (server, clock, namespace) = (RedisServer::start(), ManualClock::new(), namespace());
    let [worker, viewer] = [(); 2].map(|()| replica(&server, &namespace, &clock));
    let policy = bucket(100, "1/h");
    assert!(viewer.peek(&policy, "k").await.unwrap().is_allowed());
    use_up(&worker, &policy, "k", 1).await;
    until_counted(&worker, 1).await;
    for _ in 0..3 {
        assert!(viewer.peek(&policy, "k").await.unwrap().is_allowed());
        beats(&server, &namespace, &clock, 1).await;
        assert_eq!(registrations(&server, &namespace).len(), 1);
    }
    use_up(&viewer, &policy, "k", 1).await;
    beats(&server, &namespace, &clock, 2).await;
    until_counted(&worker, 2).await;
}

/// Returns the times until which the replicas are registered, in order.
fn registrations(server: &RedisServer, namespace: &str) -> Vec<u64> {
    let value = server.command(&["GET", &format!("{namespace}|replicas")]);
    if value.is_nil() {
        return Vec::new();
    }
    let entries = value.bytes().get(1..).unwrap().chunks_exact(16);
    let mut until: Vec<_> = entries
        .map(|entry| u64::from_le_bytes(entry[8..].try_into().unwrap()))
        .collect();
    until.sort_unstable();
    until
}

/// Advances the clock, and waits until this number of replicas has sent a heartbeat.
async fn beats(server: &RedisServer, namespace: &str, clock: &ManualClock, replicas: usize) {
    clock.advance(secs(5));
    let until = clock.now().after(secs(30)).as_micros();
    let started = Instant::now();
    while registrations(server, namespace)
        .iter()
        .filter(|moment| **moment == until)
        .count()
        < replicas
    {
        assert!(
            started.elapsed() < secs(10),
            "{:?}",
            registrations(server, namespace)
        );
        tokio::time::sleep(support::millis(1)).await;
    }
}

/// Two replicas that know of each other.
async fn two(server: &RedisServer, namespace: &str, clock: &ManualClock) -> [Limiter; 2] {
    let both = [(); 2].map(|()| replica(server, namespace, clock));
    for (known, limits) in (1..).zip(&both) {
        use_up(limits, &bucket(100, "100/s"), "k", 1).await;
        until_counted(limits, known).await;
    }
    beats(server, namespace, clock, 2).await;
    until_counted(&both[0], 2).await;
    both
}

#[tokio::test]
async fn idle_replica_is_counted() {
    let (server, clock, namespace) = (RedisServer::start(), ManualClock::new(), namespace());
    let both = two(&server, &namespace, &clock).await;
    for _ in 0..10 {
        beats(&server, &namespace, &clock, 2).await;
    }
    assert_eq!(both.each_ref().map(Limiter::replicas), [2, 2]);
}

#[tokio::test]
async fn leaving_replica_is_removed_after_half_a_minute() {
    let (server, clock, namespace) = (RedisServer::start(), ManualClock::new(), namespace());
    for leave in [true, false] {
        let [first, second] = two(&server, &namespace, &clock).await;
        if leave {
            second.shutdown(secs(10)).await;
            assert_eq!(registrations(&server, &namespace).len(), 1);
        }
        drop(second);
        let started = Instant::now();
        while registrations(&server, &namespace).len() > 1 {
            assert!(started.elapsed() < secs(10), "the replica was not removed");
            tokio::time::sleep(support::millis(1)).await;
        }
        let since = clock.now();
        while first.replicas() > 1 {
            beats(&server, &namespace, &clock, 1).await;
        }
        let after = clock.now().since(since);
        assert!(after >= secs(20) && after <= secs(45), "{after:?}");
        first.shutdown(secs(10)).await;
        assert!(registrations(&server, &namespace).is_empty());
    }
}

/// The task that counts replicas has ended with its runtime, or is not driven.
#[test]
fn replica_of_another_runtime_is_removed_at_shutdown() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    for has_ended in [true, false] {
        let (server, clock, namespace) = (RedisServer::start(), ManualClock::new(), namespace());
        let (limits, first) = (replica(&server, &namespace, &clock), runtime());
        first.block_on(async {
            use_up(&limits, &bucket(100, "100/s"), "k", 1).await;
            let started = Instant::now();
            while registrations(&server, &namespace).is_empty() {
                assert!(started.elapsed() < secs(10), "the replica registers");
                tokio::task::yield_now().await;
            }
            until_counted(&limits, 1).await;
            // The task receives the reply.
            beats(&server, &namespace, &clock, 1).await;
        });
        let first = (!has_ended).then_some(first);
        runtime().block_on(limits.shutdown(secs(1)));
        assert!(registrations(&server, &namespace).is_empty());
        drop(first);
    }
}

#[tokio::test]
async fn dead_replica_is_removed_from_registry() {
    let (server, clock, namespace) = (RedisServer::start(), ManualClock::new(), namespace());
    let both = two(&server, &namespace, &clock).await;
    let name = format!("{namespace}|replicas");
    let dead = clock.now().after(secs(3_600)).as_micros().to_le_bytes();
    let entry = [&b"deadbeef"[..], &dead].concat();
    server.command(&[&b"APPEND"[..], name.as_bytes(), &entry]);
    beats(&server, &namespace, &clock, 2).await;
    // However late its moment was: the server's clock may have been set back since.
    assert_eq!(registrations(&server, &namespace).len(), 3);
    until_counted(&both[0], 3).await;
    for _ in 0..6 {
        beats(&server, &namespace, &clock, 2).await;
    }
    assert_eq!(registrations(&server, &namespace).len(), 2);
    let ttl = server.command(&["PTTL", &name]).integer();
    assert!(ttl > 0, "{ttl}");
}

#[tokio::test]
async fn lost_replica_registry_does_not_enlarge_share() {
    let (server, clock, namespace) = (RedisServer::start(), ManualClock::new(), namespace());
    let both = two(&server, &namespace, &clock).await;
    server.command(&["FLUSHALL"]);
    for _ in 0..3 {
        beats(&server, &namespace, &clock, 2).await;
        assert_eq!(both.each_ref().map(Limiter::replicas), [2, 2]);
    }
    // A clock that is set back removes no replica.
    clock.step_back(secs(3_600));
    use_up(&both[0], &bucket(100, "100/s"), "k", 1).await;
    beats(&server, &namespace, &clock, 1).await;
    assert_eq!(registrations(&server, &namespace).len(), 2);
}

/// In a large fleet, replicas start and end all the time, and each beat examines all of them.
#[tokio::test]
async fn large_fleet_counts_changes_at_longer_intervals() {
    let (server, clock, namespace) = (RedisServer::start(), ManualClock::new(), namespace());
    let limits = replica(&server, &namespace, &clock);
    use_up(&limits, &bucket(100, "100/s"), "k", 1).await;
    beats(&server, &namespace, &clock, 1).await;
    let until = clock.now().after(secs(30)).as_micros().to_le_bytes();
    let others = (1..1_000_u64).flat_map(|number| [number.to_be_bytes(), until].concat());
    let others: Vec<u8> = others.collect();
    let register = format!("{namespace}|replicas");
    server.command(&[&b"APPEND"[..], register.as_bytes(), &others]);
    beats(&server, &namespace, &clock, 1).await;
    until_counted(&limits, 1_000).await;
    let registered = registrations(&server, &namespace);
    for _ in 0..16 {
        clock.advance(support::millis(250));
        tokio::time::sleep(support::millis(5)).await;
        assert_eq!(registrations(&server, &namespace).last(), registered.last());
    }
    beats(&server, &namespace, &clock, 1).await;
}

/// The registrations expire during the outage, so each replica registers in an empty register.
#[tokio::test]
async fn outage_longer_than_registrations_does_not_enlarge_share() {
    let (server, clock, namespace) = (RedisServer::start(), ManualClock::new(), namespace());
    let both = two(&server, &namespace, &clock).await;
    server.kill();
    let (policy, began) = (bucket(100, "1/h"), clock.now());
    while clock.now().since(began) < secs(40) {
        for limits in &both {
            let _local = limits.check(&policy, "k").await.unwrap();
        }
        clock.advance(secs(1));
        tokio::time::sleep(support::millis(5)).await;
    }
    server.restart();
    let restarted = Instant::now();
    while registrations(&server, &namespace).len() < 2 {
        assert!(restarted.elapsed() < secs(10), "both replicas register again");
        clock.advance(secs(1));
        tokio::time::sleep(support::millis(5)).await;
        assert_eq!(both.each_ref().map(Limiter::replicas), [2, 2]);
    }
    beats(&server, &namespace, &clock, 2).await;
    assert_eq!(both.each_ref().map(Limiter::replicas), [2, 2]);
}

#[tokio::test]
async fn replicas_are_counted_in_a_cluster_too() {
    let (clock, namespace) = (ManualClock::new(), namespace());
    let replicas = [(); 2].map(|()| {
        let cluster = Limiter::redis_cluster(RedisCluster::shared().urls());
        cluster.namespace(&namespace).clock(&clock).build().unwrap()
    });
    let policy = bucket(100, "100/s");
    for (known, limits) in (1..).zip(&replicas) {
        use_up(limits, &policy, "k", 1).await;
        until_counted(limits, known).await;
    }
}

#[tokio::test]
async fn foreign_value_at_replica_registry_is_harmless() {
    let (server, clock, namespace) = (RedisServer::start(), ManualClock::new(), namespace());
    let name = format!("{namespace}|replicas");
    let policy = bucket(100, "100/s");
    for value in ["RPUSH", "SET"] {
        server.command(&["DEL", &name]);
        server.command(&[value, &name, "not ours"]);
        let limits = replica(&server, &namespace, &clock);
        use_up(&limits, &policy, "k", 3).await;
        if value == "SET" {
            // A replica registry of another layout is created again.
            let started = Instant::now();
            while server.command(&["STRLEN", &name]).integer() != 17 {
                assert!(started.elapsed() < secs(10), "the registry was not created");
                tokio::time::sleep(support::millis(1)).await;
            }
        } else {
            limits.shutdown(secs(10)).await;
            assert_eq!(
                server.command(&["LLEN", &name]).integer(),
                1,
                "a foreign value is not changed"
            );
        }
        assert_eq!(limits.replicas(), 1);
    }
}

/// A demoted server rejects registrations until the client finds the new primary. The messages of
/// the outage report it.
#[tokio::test]
async fn failover_is_not_logged_as_missing_permission() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limits = replica(&server, &namespace(), &clock);
    use_up(&limits, &bucket(100, "100/s"), "k", 1).await;
    let calls = || -> u64 {
        let stats = server.command(&["INFO", "commandstats"]).text().to_owned();
        let mut lines = stats.lines();
        let calls = lines.find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        calls.unwrap().split_once(',').unwrap().0.parse().unwrap()
    };
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let (before, started) = (calls(), Instant::now());
    // The client has received the reply to the first one when it sends the second one.
    while calls() < before + 2 {
        assert!(started.elapsed() < secs(10), "the replica registers again");
        clock.advance(secs(1));
        tokio::time::sleep(support::millis(1)).await;
    }
    let logged = warnings.about("cannot count replicas");
    assert!(logged.is_empty(), "{logged:?}");
}

#[tokio::test]
async fn cost_above_share_is_denied_without_charge() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limits = one_of(4, &server, &clock);
    server.kill();
    for policy in [bucket(8, "1/h"), funnel(8, "1/h"), window(8, "1h")] {
        let denied = limits.check(&policy, "k").cost(3).await.unwrap();
        assert_eq!(
            (denied.is_allowed(), denied.origin()),
            (false, Origin::LocalFallback)
        );
        assert!(
            denied.retry_after().is_some_and(|retry| !retry.is_zero()),
            "{policy}"
        );
        assert_eq!(admitted_locally(&limits, &policy, "k").await, 2, "{policy}");
        assert!(limits.check(&policy, "k").cost(0).await.unwrap().is_allowed());
    }
}

#[tokio::test]
async fn local_fallback_charges_all_limits_or_none() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limits = one_of(2, &server, &clock);
    let (burst, daily) = (bucket(2, "1/s"), window(10, "1d"));
    server.kill();
    let both = async || {
        let requests = [LimitRequest::new(&burst, "k"), LimitRequest::new(&daily, "k")];
        limits.check_all(requests).await.unwrap()
    };
    assert!(both().await.is_allowed());
    for _ in 0..3 {
        assert_eq!(both().await.denied_by().unwrap().policy().name(), "bucket");
    }
    assert_eq!(admitted_locally(&limits, &daily, "k").await, 4);
}

#[tokio::test]
async fn peek_charges_nothing_and_waiter_waits_for_share() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limits = one_of(2, &server, &clock);
    let policy = bucket(4, "2/s");
    server.kill();
    assert_eq!(limits.peek(&policy, "k").await.unwrap().remaining(), 2);
    assert_eq!(admitted_locally(&limits, &policy, "k").await, 2);
    let waits = limits.acquire(&policy, "k").timeout(secs(5));
    let time = async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
            clock.advance(support::millis(10));
        }
    };
    let (permit, ()) = tokio::join!(waits.into_future(), time);
    assert_eq!(permit.unwrap().origin(), Origin::LocalFallback);
}

#[tokio::test]
async fn unreadable_value_is_an_error_and_no_outage() {
    let server = RedisServer::start();
    let limits = Limiter::redis(server.url()).namespace("ns").build().unwrap();
    let policy = bucket(100, "1/s");
    for command in ["RPUSH", "SET"] {
        server.command(&["DEL", "ns|tb|bucket|{k}"]);
        server.command(&[command, "ns|tb|bucket|{k}", "not ours"]);
        let Err(Rejection::Unavailable { error, .. }) = limits.check(&policy, "k").await else {
            unreachable!("it cannot be read")
        };
        let kinds = [StoreErrorKind::WrongType, StoreErrorKind::UnknownLayout];
        assert!(kinds.contains(&error.kind()), "{error:?}");
    }
}

#[tokio::test]
async fn reset_discards_usage_of_earlier_outage() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limits = one_of(2, &server, &clock);
    let policy = window(4, "1h");
    use_up(&limits, &policy, "k", 4).await;
    server.kill();
    assert_eq!(admitted_locally(&limits, &policy, "k").await, 0);
    server.restart();
    limits.reset(&policy, "k").await.unwrap();
    server.kill();
    assert_eq!(admitted_locally(&limits, &policy, "k").await, 2);
}

#[tokio::test]
async fn strictest_denial_handling_applies() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limits = one_of(1, &server, &clock);
    server.kill();
    let policy = |name: &str, answer| {
        Policy::token_bucket(name)
            .capacity(5)
            .rate(1)
            .on_store_failure(answer)
            .build()
            .unwrap()
    };
    let (local, open) = (
        policy("a", OnStoreFailure::Local),
        policy("b", OnStoreFailure::FailOpen),
    );
    let (closed, error) = (
        policy("c", OnStoreFailure::FailClosed),
        policy("d", OnStoreFailure::Error),
    );
    let both = async |other: &Policy| {
        let key = Key::from("k");
        limits
            .check_all([
                LimitRequest::new(&local, key.clone()),
                LimitRequest::new(other, key),
            ])
            .await
    };
    assert_eq!(both(&open).await.unwrap().origin(), Origin::LocalFallback);
    assert_eq!(both(&closed).await.unwrap().origin(), Origin::FailedClosed);
    assert!(matches!(both(&error).await, Err(Rejection::Unavailable { .. })));
}

#[tokio::test]
async fn keys_above_the_bound_are_rejected_and_others_served() {
    let server = RedisServer::start();
    let limits = Limiter::redis(server.url())
        .namespace(namespace())
        .max_local_keys(640)
        .build()
        .unwrap();
    server.kill();
    let policy = bucket(5, "1/h");
    let (mut served, mut refused) = (Vec::new(), 0);
    for key in 0..5_000_u32 {
        match limits.check(&policy, key).await {
            Ok(decision) => {
                assert!(decision.is_allowed());
                served.push(key);
            }
            Err(Rejection::Unavailable { error, .. }) => {
                assert_eq!(error.kind(), StoreErrorKind::Full);
                refused += 1;
            }
            Err(other) => unreachable!("{other}"),
        }
    }
    assert_eq!((served.len(), refused), (640, 5_000 - 640));
    for key in served {
        assert_eq!(limits.check(&policy, key).await.unwrap().remaining(), 3);
    }
}

#[tokio::test]
async fn waiter_with_short_timeout_uses_share() {
    let server = RedisServer::start();
    let limits = Limiter::redis(server.url())
        .namespace(namespace())
        .build()
        .unwrap();
    let policy = bucket(100, "1/h");
    limits.check(&policy, "k").await.unwrap().require().unwrap();
    server.pause();
    for _ in 0..5 {
        let permit = limits
            .acquire(&policy, "k")
            .timeout(support::millis(30))
            .await
            .unwrap();
        assert_eq!(permit.origin(), Origin::LocalFallback);
    }
}

#[window_limiter(name = "counted", limit = 4, window = "1h", key = "{user}", deadline = "10s", limiter = limits, count_if = |ok| !ok, fallback = limited)]
async fn counted(limits: &Limiter, user: &str, ok: bool) -> bool {
    ok
}

fn limited() -> bool {
    false
}

/// Redis never received the call, so an uncounted call is refunded to the share that was charged.
#[tokio::test]
async fn uncounted_call_is_refunded_to_share() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let limits = one_of(2, &server, &clock);
    let budget = limits.annotation("counted").unwrap().key(["ann"]).unwrap();
    server.kill();
    for _ in 0..5 {
        assert!(counted(&limits, "ann", true).await);
    }
    assert_eq!(budget.peek().await.unwrap().remaining(), 2);
    for _ in 0..2 {
        assert!(!counted(&limits, "ann", false).await);
    }
    assert!(!counted(&limits, "ann", true).await, "the share is used up");
    assert_eq!(budget.peek().await.unwrap().origin(), Origin::LocalFallback);
}
