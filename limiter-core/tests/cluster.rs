//! A cluster with moving slots: redirections are followed without an error for the caller, and no
//! call is charged twice.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod support;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use limiter_core::{Key, LimitRequest, Limiter, OnStoreFailure, Policy, Rejection, StoreErrorKind};
use limiter_testing::log::Warnings;
use limiter_testing::{Proxy, RedisCluster, RespValue};
use support::{PATIENT, SLACK, answers_again, namespace};

const CAPACITY: u64 = 10_000;

fn policy() -> Policy {
    policy_of(PATIENT)
}

fn policy_of(deadline: Duration) -> Policy {
    // The refill takes longer than the test.
    Policy::token_bucket("p")
        .capacity(CAPACITY)
        .rate("1/d")
        .deadline(deadline)
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap()
}

fn limiter(cluster: &RedisCluster, namespace: &str) -> Limiter {
    // One seed suffices: the other nodes are discovered through it.
    Limiter::redis_cluster(cluster.urls().into_iter().take(1))
        .namespace(namespace)
        .build()
        .unwrap()
}

#[tokio::test]
async fn each_node_owns_keys_and_has_script() {
    let cluster = RedisCluster::shared();
    let limits = limiter(cluster, &namespace());
    limits.ready().await.unwrap();
    let mut owners = HashSet::new();
    for key in 0..100_u32 {
        assert!(limits.check(&policy(), key).await.unwrap().is_allowed());
        owners.insert(cluster.owner_of(cluster.slot_of(key.to_string())));
    }
    assert_eq!(owners.len(), 3);
}

/// A node that was disconnected still returns its outdated slot map.
#[tokio::test]
async fn slot_owners_are_not_read_from_nearest_node_alone() {
    let cluster = RedisCluster::shared();
    let mistaken = RedisCluster::builder().primaries(1).start();
    let far: Vec<Proxy> = cluster
        .nodes()
        .iter()
        .map(|node| Proxy::start(node.port()))
        .collect();
    let urls = far.iter().map(|proxy| {
        proxy.set_delay(Duration::from_millis(5));
        proxy.url()
    });
    let limits = Limiter::redis_cluster(mistaken.urls().into_iter().chain(urls))
        .namespace(namespace())
        .build()
        .unwrap();
    for key in 0..30_u32 {
        assert!(limits.check(&policy(), key).await.unwrap().is_allowed());
    }
    assert_eq!(mistaken.node(0).command(&["DBSIZE"]).integer(), 0);
}

/// No node received the call, although the query of the slot map got no reply.
#[tokio::test]
async fn call_without_known_owner_is_not_charged() {
    let cluster = RedisCluster::builder().primaries(1).start();
    let slot = cluster.slot_of("k").to_string();
    cluster.node(0).command(&["CLUSTER", "DELSLOTS", &slot]);
    let limits = limiter(&cluster, &namespace());
    let failure = async || match limits.check(&policy(), "k").await {
        Err(Rejection::Unavailable { error, .. }) => error,
        result => panic!("no node owns the slot: {result:?}"),
    };
    assert_eq!(failure().await.kind(), StoreErrorKind::Refused);
    cluster.node(0).pause();
    let paused = Instant::now();
    loop {
        let error = failure().await;
        if error.kind() == StoreErrorKind::Timeout {
            assert!(!error.may_have_been_charged(), "{error:?}");
            break;
        }
        assert!(paused.elapsed() < PATIENT, "{error:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn silent_seed_does_not_block_other_seeds() {
    let silent = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut urls = RedisCluster::shared().urls();
    let node = RedisCluster::shared().node(0).port().to_string();
    let port = silent.local_addr().unwrap().port().to_string();
    urls.insert(0, urls.first().unwrap().replace(&node, &port));
    let limits = Limiter::redis_cluster(urls)
        .namespace(namespace())
        .build()
        .unwrap();
    assert!(limits.check(&policy(), "k").await.unwrap().is_allowed());
}

/// Without a map of slots, no breaker of a node rejects calls.
#[tokio::test]
async fn unreachable_cluster_does_not_delay_each_call() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let proxy = Proxy::start(RedisCluster::shared().node(0).port());
    proxy.set_black_hole(true);
    let limits = Limiter::redis_cluster([proxy.url()]);
    let limits = limits.namespace(namespace()).build().unwrap();
    limits.ready().await.unwrap_err();
    let deadline = Duration::from_millis(50);
    let (started, mut calls, mut delayed) = (Instant::now(), 0, 0);
    while started.elapsed() < Duration::from_secs(1) {
        let called = Instant::now();
        assert!(limits.check(&policy_of(deadline), "k").await.is_err());
        calls += 1;
        delayed += u32::from(called.elapsed() >= deadline / 2);
        tokio::task::yield_now().await;
    }
    // One call for each refresh.
    assert!(calls > 100 && delayed <= 8, "{delayed} of {calls} calls");
    let logged = warnings.about("cannot read the slots");
    assert_eq!(logged.len(), 1, "{logged:?}");
    proxy.set_black_hole(false);
    answers_again(&limits, Duration::from_secs(1)).await;
}

#[test]
fn invalid_or_contradictory_cluster_urls_are_named() {
    for (urls, message) in [
        (
            &["redis://h:1/3"] as &[&str],
            "`redis://h:1/3`, expected no database, since a cluster has none but 0",
        ),
        (
            &["unix:///run/redis.sock"],
            "a host and a port of a cluster's node",
        ),
        (
            &["redis://user:secret@a:1/", "redis://user:other@b:1/"],
            "`redis://…@b:1/`, expected the user and the password of the first URL of the cluster",
        ),
        (
            &["redis://user:secret@a:1/", "redis://b:1/"],
            "`redis://b:1/`, expected the user",
        ),
    ] {
        let builder = Limiter::redis_cluster(urls.iter().copied());
        let result = builder.namespace("n").build().unwrap_err().to_string();
        assert!(result.contains(message), "{result}");
        assert!(
            !result.contains("secret") && !result.contains("other@"),
            "{result}"
        );
    }
    let same = ["redis://user:secret@a:1/", "redis://user:secret@b:1/0"];
    assert!(Limiter::redis_cluster(same).namespace("n").build().is_ok());
}

#[tokio::test]
async fn limits_of_one_key_or_group_share_a_slot() {
    let limits = limiter(RedisCluster::shared(), &namespace());
    let burst = Policy::token_bucket("burst")
        .capacity(2)
        .rate("1/d")
        .deadline(PATIENT)
        .build()
        .unwrap();
    let daily = Policy::sliding_window("daily")
        .limit(5)
        .window("1d")
        .deadline(PATIENT)
        .build()
        .unwrap();
    for key in ["", "a", "user:7", "{}", "x}y{z"] {
        let decision = limits
            .check_all([LimitRequest::new(&burst, key), LimitRequest::new(&daily, key)])
            .await
            .unwrap();
        assert_eq!(
            decision
                .limits()
                .iter()
                .map(|limit| limit.remaining().whole())
                .collect::<Vec<_>>(),
            [1, 4]
        );
    }
    let user = || Key::from("user:7").in_group("tenant:3");
    let tenant = || Key::from("tenant:3");
    for left in [1, 0] {
        let decision = limits
            .check_all([
                LimitRequest::new(&burst, user()),
                LimitRequest::new(&daily, tenant()),
            ])
            .await
            .unwrap();
        assert_eq!(decision.remaining(), left);
    }
    assert!(
        !limits
            .check_all([
                LimitRequest::new(&burst, user()),
                LimitRequest::new(&daily, tenant())
            ])
            .await
            .unwrap()
            .is_allowed()
    );
    assert_eq!(limits.peek(&daily, tenant()).await.unwrap().remaining(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_slot_charges_each_call_once() {
    let cluster = RedisCluster::start();
    let namespace = namespace();
    let slot = cluster.slot_of("hot");
    let limits: Vec<Limiter> = (0..3).map(|_| limiter(&cluster, &namespace)).collect();
    let charged = 2 * 1_500;
    let callers = tokio::task::JoinSet::from_iter(limits.iter().take(2).cloned().map(|limits| async move {
        for _ in 0..1_500 {
            assert!(limits.check(&policy(), "hot").await.unwrap().is_allowed());
        }
    }));
    // The slot moves to each node twice. During each move it is partly migrated for a while, so
    // that the nodes reply with ASK.
    let moved = tokio::task::spawn_blocking(move || {
        for _ in 0..6 {
            let to = (cluster.owner_of(slot) + 1) % cluster.nodes().len();
            let migration = cluster.begin_migration(slot, to);
            std::thread::sleep(Duration::from_millis(20));
            migration.move_keys();
            std::thread::sleep(Duration::from_millis(20));
            migration.finish();
        }
        cluster
    });
    callers.join_all().await;
    let cluster = moved.await.unwrap();
    // A limiter that has an outdated slot map.
    let left = limits
        .last()
        .unwrap()
        .peek(&policy(), "hot")
        .await
        .unwrap()
        .remaining();
    assert_eq!(left, CAPACITY - charged);
    drop(cluster);
}

/// A node has given up a slot, and the other one does not serve it yet: both redirect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_waits_while_two_nodes_redirect_to_each_other() {
    let cluster = RedisCluster::start();
    let limits = limiter(&cluster, &namespace());
    limits.ready().await.unwrap();
    let slot = cluster.slot_of("moved");
    let from = cluster.owner_of(slot);
    let to = (from + 1) % cluster.nodes().len();
    let id = cluster.node(to).command(&["CLUSTER", "MYID"]).text();
    let (text, id) = (slot.to_string(), id.as_str());
    let assign = ["CLUSTER", "SETSLOT", &text, "NODE", id];
    cluster.node(from).command(&assign);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            std::thread::sleep(Duration::from_millis(15));
            cluster.node(to).command(&assign);
        });
        let decision = tokio::runtime::Handle::current();
        let decided =
            tokio::task::block_in_place(|| decision.block_on(limits.check(&policy(), "moved").into_future()));
        assert!(decided.unwrap().is_allowed());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promoted_replica_charges_each_call_once() {
    let cluster = RedisCluster::builder().replicas(1).start();
    let namespace = namespace();
    let limits = limiter(&cluster, &namespace);
    limits.ready().await.unwrap();
    // A key on each shard.
    let key_of = |place: usize| {
        let on_it = |key: &String| cluster.owner_of(cluster.slot_of(key)) == place;
        (0..).map(|key: u32| key.to_string()).find(on_it).unwrap()
    };
    let keys: Vec<String> = (0..3).map(key_of).collect();
    let over = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = keys
        .iter()
        .enumerate()
        .map(|(place, key)| {
            let (limits, key, over) = (limits.clone(), key.clone(), Arc::clone(&over));
            // Nodes that exchange roles may report for a moment that the cluster is down, and
            // charge nothing; the third node does not.
            let may_be_down = place < 2;
            tokio::spawn(async move {
                let mut charged = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    match limits.check(&policy(), &key).await {
                        Ok(decision) => {
                            assert!(decision.is_allowed());
                            charged += 1;
                        }
                        Err(Rejection::Unavailable { error, .. })
                            if may_be_down && error.kind() == StoreErrorKind::Refused => {}
                        Err(rejection) => unreachable!("{rejection:?}"),
                    }
                    // Slowly enough that permits last until the end.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                charged
            })
        })
        .collect();
    let cluster = tokio::task::spawn_blocking(move || {
        cluster.fail_over(0);
        cluster.fail_over(1);
        cluster
    });
    let cluster = cluster.await.unwrap();
    over.store(true, Ordering::Relaxed);
    let newcomer = limiter(&cluster, &namespace);
    for (key, caller) in keys.iter().zip(callers) {
        let charged: u64 = caller.await.unwrap();
        let left = newcomer.peek(&policy(), key).await.unwrap().remaining();
        assert_eq!((charged > 0, left), (true, CAPACITY - charged));
    }
}

/// A silent node does not close connections: the calls run into their deadlines, and then find the
/// breaker open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limiter_leaves_silent_primary_for_promoted_replica() {
    // Intervals between calls: short as on a busy server, and long enough that the breaker does not
    // open.
    for pause in [2, 700].map(Duration::from_millis) {
        let cluster = RedisCluster::builder()
            .replicas(1)
            .arg("cluster-node-timeout", "1000")
            .start();
        let limits = Limiter::redis_cluster(cluster.urls())
            .namespace(namespace())
            .build()
            .unwrap();
        limits.ready().await.unwrap();
        let key = (0..)
            .map(|key: u32| key.to_string())
            .find(|key| cluster.owner_of(cluster.slot_of(key)) == 0)
            .unwrap();
        let (settled, caller) = (Arc::new(OnceLock::new()), limits.clone());
        let result = Arc::clone(&settled);
        let answered = tokio::spawn(async move {
            loop {
                let started = Instant::now();
                let answer = caller.check(&policy_of(Duration::from_millis(100)), &key).await;
                if answer.is_ok() && result.get().is_some_and(|settled| started >= *settled) {
                    return Instant::now();
                }
                tokio::time::sleep(pause).await;
            }
        });
        let cluster = tokio::task::spawn_blocking(move || {
            let old = cluster.primary_of(0);
            old.pause();
            cluster.await_fail_over(0, old);
            settled.set(Instant::now()).unwrap();
            (cluster, settled)
        });
        let (cluster, settled) = cluster.await.unwrap();
        // Calls in flight at that time, and one more, may be lost.
        let healed = Duration::from_millis(500) + pause * 2 + SLACK;
        let answered = tokio::time::timeout(healed * 2, answered).await.unwrap().unwrap();
        let took = answered.saturating_duration_since(*settled.get().unwrap());
        assert!(took < healed, "{took:?}, called every {pause:?}");
        drop(cluster);
    }
}

#[tokio::test]
async fn moved_slot_causes_redirections() {
    let cluster = RedisCluster::start();
    let limits = limiter(&cluster, &namespace());
    let slot = cluster.slot_of("k");
    let answered = |code: &str| -> i64 {
        let lines = cluster
            .nodes()
            .iter()
            .map(|node| node.command(&["INFO", "errorstats"]).text().to_owned());
        let counts = lines.flat_map(|lines| {
            let counts = lines
                .lines()
                .filter_map(|line| line.strip_prefix(&format!("errorstat_{code}:count=")));
            counts
                .map(|count| count.trim().parse::<i64>().unwrap())
                .collect::<Vec<_>>()
        });
        counts.sum()
    };
    assert!(limits.check(&policy(), "k").await.unwrap().is_allowed());

    let to = (cluster.owner_of(slot) + 1) % cluster.nodes().len();
    let migration = cluster.begin_migration(slot, to);
    migration.move_keys();
    assert!(limits.check(&policy(), "k").await.unwrap().is_allowed());
    assert!(
        answered("ASK") > 0,
        "the key has moved to the target, the slot has not"
    );
    migration.finish();
    assert!(limits.check(&policy(), "k").await.unwrap().is_allowed());
    assert!(answered("MOVED") > 0, "the slot map of the limiter is outdated");
    assert_eq!(
        limits.peek(&policy(), "k").await.unwrap().remaining(),
        CAPACITY - 3
    );
}

#[tokio::test]
async fn dead_node_fails_only_its_own_keys() {
    let cluster = RedisCluster::builder()
        .arg("cluster-require-full-coverage", "no")
        .start();
    let limits = limiter(&cluster, &namespace());
    limits.ready().await.unwrap();
    let dead = 2;
    cluster.node(dead).kill();
    let policy = Policy::token_bucket("p")
        .capacity(5)
        .rate(1)
        .on_store_failure(OnStoreFailure::Error)
        .deadline(PATIENT)
        .build()
        .unwrap();
    let (mut failed, mut served) = (0, 0);
    for key in 0..60_u32 {
        let on_dead_node = cluster_owner(&cluster, &key.to_string()) == dead;
        let answer = limits.check(&policy, key).await;
        assert_eq!(answer.is_err(), on_dead_node, "{key}: {answer:?}");
        if on_dead_node { failed += 1 } else { served += 1 }
    }
    assert!(failed > 0 && served > 0);

    // Calls that fail at once rarely cause slot map queries.
    let result = |place: usize| -> i64 {
        let stats = cluster
            .node(place)
            .command(&["INFO", "commandstats"])
            .text()
            .to_owned();
        // Before Redis 7 all subcommands of CLUSTER share one line.
        let line = ["cmdstat_cluster|slots:", "cmdstat_cluster:"]
            .iter()
            .find_map(|name| stats.lines().find(|line| line.starts_with(name)))
            .map(str::to_owned);
        let calls = line.and_then(|line| line.split_once("calls=")?.1.split_once(',')?.0.parse().ok());
        calls.unwrap_or_default()
    };
    let key = (0..60_u32)
        .find(|key| cluster_owner(&cluster, &key.to_string()) == dead)
        .unwrap();
    let before = result(0);
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(900) {
        assert!(limits.check(&policy, key).await.is_err());
        tokio::task::yield_now().await;
    }
    let rounds = result(0) - before;
    assert!((1..=7).contains(&rounds), "{rounds}");
}

/// The owner according to the first node; needs no reply from the dead node.
fn cluster_owner(cluster: &RedisCluster, key: &str) -> usize {
    let slot = i64::from(cluster.slot_of(key));
    let ranges = cluster.node(0).command(&["CLUSTER", "SLOTS"]);
    let range = ranges.items().iter().map(RespValue::items).find(|range| {
        matches!(range, [RespValue::Integer(first), RespValue::Integer(last), ..] if (*first..=*last).contains(&slot))
    });
    let primary = range.and_then(|range| range.get(2)).unwrap().items();
    let port = primary.get(1).unwrap().integer();
    cluster
        .nodes()
        .iter()
        .position(|node| i64::from(node.port()) == port)
        .unwrap()
}
