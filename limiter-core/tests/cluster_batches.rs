//! Concurrent decisions for several slots of a cluster node share calls of the script, and each of
//! them is charged once, also while slots move.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may panic, and prints its counts"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use limiter_core::{Limiter, OnStoreFailure, Policy, Rejection, StoreErrorKind};
use limiter_testing::{RedisCluster, RedisServer};
use support::{PATIENT, namespace};
use tokio::task::JoinSet;

const CAPACITY: u64 = 1_000;
const CALLERS: u64 = 64;

/// Policies of all algorithms, whose refill takes longer than the tests.
fn policies() -> Vec<Policy> {
    let built = [
        Policy::token_bucket("bucket")
            .capacity(CAPACITY)
            .rate("1/d")
            .deadline(PATIENT)
            .build(),
        Policy::funnel("funnel")
            .capacity(CAPACITY)
            .rate("1/d")
            .deadline(PATIENT)
            .build(),
        Policy::sliding_window("sliding")
            .limit(CAPACITY)
            .window("1d")
            .deadline(PATIENT)
            .build(),
        Policy::fixed_window("fixed")
            .limit(CAPACITY)
            .window("1d")
            .deadline(PATIENT)
            .build(),
        Policy::counter_window("counter")
            .limit(CAPACITY)
            .window("1d")
            .deadline(PATIENT)
            .build(),
    ];
    built.into_iter().map(Result::unwrap).collect()
}

fn limiter(cluster: &RedisCluster, namespace: &str) -> Limiter {
    let limits = Limiter::redis_cluster(cluster.urls()).namespace(namespace);
    limits
        .default_on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap()
}

/// The successful calls of EVALSHA at all nodes.
fn script_calls(cluster: &RedisCluster) -> u64 {
    let count = |node: &RedisServer| -> u64 {
        let stats = node.command(&["INFO", "commandstats"]).text();
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    cluster.nodes().iter().map(count).sum()
}

/// Returns whether a call of a script may use keys of several slots: Redis 6.2 has no such flag.
fn calls_may_cross_slots(cluster: &RedisCluster) -> bool {
    let info = cluster.nodes()[0].command(&["INFO", "server"]).text();
    !info.lines().any(|line| line.starts_with("redis_version:6."))
}

/// Charges each of these keys of each policy `times` times, by concurrent callers.
async fn charge(limits: &Limiter, policies: &[Policy], keys: u64, times: u64) {
    let next = Arc::new(AtomicU64::new(0));
    let calls = keys * times;
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (limits, policies, next) = (limits.clone(), policies.to_vec(), Arc::clone(&next));
        callers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= calls {
                    return;
                }
                for policy in &policies {
                    let decision = limits.check(policy, number % keys).await.unwrap();
                    assert!(decision.is_allowed());
                }
            }
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
}

async fn assert_charged(limits: &Limiter, policies: &[Policy], keys: u64, times: u64) {
    for policy in policies {
        for key in 0..keys {
            let left = limits.peek(policy, key).await.unwrap().remaining();
            assert_eq!(left, CAPACITY - times, "{} of {key}", policy.name());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_for_several_slots_share_calls() {
    let cluster = RedisCluster::start();
    let limits = limiter(&cluster, &namespace());
    let policies = policies();
    limits.ready().await.unwrap();
    // Counter windows are decided by slot.
    let (apart, together) = (&policies[4..], &policies[..4]);
    charge(&limits, together, 200, 1).await;
    let before = script_calls(&cluster);
    charge(&limits, together, 200, 10).await;
    let calls = script_calls(&cluster) - before;
    let decisions = 4 * 200 * 10;
    println!("{decisions} decisions by {calls} calls");
    if calls_may_cross_slots(&cluster) {
        assert!(calls * 3 < decisions, "{calls} calls of {decisions} decisions");
    } else {
        assert!(calls <= decisions + 12, "{calls} calls of {decisions} decisions");
    }
    assert_charged(&limits, together, 200, 11).await;
    charge(&limits, apart, 50, 10).await;
    assert_charged(&limits, apart, 50, 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_slots_charge_each_call_once() {
    const KEYS: u64 = 24;
    let cluster = RedisCluster::start();
    let namespace = namespace();
    let limits = limiter(&cluster, &namespace);
    let policies = policies();
    charge(&limits, &policies, KEYS, 1).await;
    let slots: Vec<u16> = (0..KEYS).map(|key| cluster.slot_of(key.to_string())).collect();
    // Each slot moves once; during the move the node replies with ASK for some of its keys.
    let moved = tokio::task::spawn_blocking(move || {
        for slot in slots {
            let to = (cluster.owner_of(slot) + 1) % cluster.nodes().len();
            let migration = cluster.begin_migration(slot, to);
            std::thread::sleep(Duration::from_millis(5));
            migration.move_keys();
            std::thread::sleep(Duration::from_millis(5));
            migration.finish();
        }
        cluster
    });
    let mut times = 1;
    while !moved.is_finished() && times < CAPACITY - 20 {
        charge(&limits, &policies, KEYS, 10).await;
        times += 10;
    }
    let cluster = moved.await.unwrap();
    println!("{times} charges of each key");
    assert!(times > 1, "charges while slots move");
    // A limiter with the slot map after the moves.
    assert_charged(&limiter(&cluster, &namespace), &policies, KEYS, times).await;
}

/// The node of a slot reports keys that it has already moved, in calls that decide other keys too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_keys_are_decided_by_new_node() {
    const KEYS: u64 = 60;
    let cluster = RedisCluster::start();
    let limits = limiter(&cluster, &namespace());
    let policies = &policies()[..4];
    charge(&limits, policies, KEYS, 1).await;
    let slots = (0..KEYS).map(|key| cluster.slot_of(key.to_string()));
    let of_first: Vec<u16> = slots
        .filter(|slot| cluster.owner_of(*slot) == 0)
        .take(5)
        .collect();
    let moving: Vec<_> = of_first
        .iter()
        .map(|slot| cluster.begin_migration(*slot, 1))
        .collect();
    for migration in &moving {
        assert!(migration.move_keys() > 0);
    }
    charge(&limits, policies, KEYS, 10).await;
    for migration in moving {
        migration.finish();
    }
    assert_charged(&limits, policies, KEYS, 11).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_of_another_type_fails_alone() {
    let cluster = RedisCluster::start();
    let namespace = namespace();
    let limits = limiter(&cluster, &namespace);
    let policies = &policies()[..1];
    charge(&limits, policies, 100, 1).await;
    let node = cluster.node(0);
    let replaced = node.command(&["KEYS", "*bucket*"]).items()[0].text();
    let number = replaced.split(['{', '}']).nth(1).unwrap().to_owned();
    node.command(&["DEL", &replaced]);
    node.command(&["LPUSH", &replaced, "foreign"]);
    let mut callers = JoinSet::new();
    for key in 0..100_u64 {
        let (limits, policy) = (limits.clone(), policies[0].clone());
        callers.spawn(async move { (key, limits.check(&policy, key).await) });
    }
    while let Some(decided) = callers.join_next().await {
        let (key, decided) = decided.unwrap();
        if key.to_string() == number {
            assert!(
                matches!(decided, Err(Rejection::Unavailable { error, .. }) if error.kind() == StoreErrorKind::WrongType)
            );
        } else {
            assert!(decided.unwrap().is_allowed(), "{key}");
        }
    }
}

/// A primary without the replicas that it requires rejects writes, and still denies calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_rejects_writes_denies_calls() {
    const KEYS: u64 = 100;
    let cluster = RedisCluster::start();
    let limits = Limiter::redis_cluster(cluster.urls()).namespace(namespace());
    let limits = limits.default_on_store_failure(OnStoreFailure::Error);
    let limits = limits.deny_cache(Duration::ZERO).build().unwrap();
    let policy = Policy::token_bucket("bucket").capacity(1).rate("1/d");
    let policies = [policy.deadline(PATIENT).build().unwrap()];
    charge(&limits, &policies, KEYS, 1).await;
    for node in cluster.nodes() {
        node.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    }
    let mut callers = JoinSet::new();
    for key in 0..KEYS {
        let (limits, policy) = (limits.clone(), policies[0].clone());
        callers.spawn(async move { limits.check(&policy, key).await });
    }
    while let Some(decided) = callers.join_next().await {
        assert!(!decided.unwrap().unwrap().is_allowed());
    }
}
