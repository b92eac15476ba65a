//! Batching of simultaneous calls: the number of queries, the order of replies, and calls that are
//! cancelled, fail, or are redirected.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fastrand::Rng;
use limiter_core::{Decision, Key, LimitRequest, Limiter, ManualClock, Policy, Rejection, StoreErrorKind};
use limiter_testing::{Proxy, RedisCluster, RedisServer};
use support::{Kind, PATIENT, Subject, bucket, funnel, left, limiter, micros, window};
use tokio::task::JoinSet;

/// Number of decisions that the server has executed.
fn decisions_of(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).text().to_owned();
    let calls = |name: &str| {
        let line = stats
            .lines()
            .find(|line| line.starts_with(&format!("cmdstat_{name}:")));
        let calls = line.and_then(|line| {
            line.split_once("calls=")?
                .1
                .split_once(',')?
                .0
                .parse::<u64>()
                .ok()
        });
        calls.unwrap_or_default()
    };
    calls("evalsha") + calls("eval")
}

/// A policy whose refill takes longer than the test.
fn slow(capacity: u64) -> Policy {
    bucket("p", capacity, "1/d")
}

type Call<'a> = Pin<Box<dyn Future<Output = Result<Decision, Rejection>> + 'a>>;

/// Starts a call that does not complete at its first poll. No other task of this thread runs before
/// the next await.
fn started<'a>(limits: &'a Limiter, policy: &'a Policy, key: &'a str) -> Call<'a> {
    let mut call: Call<'a> = Box::pin(limits.check(policy, key).into_future());
    let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Pending));
    call
}

#[tokio::test]
async fn single_call_is_sent_without_batch() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    limits.ready().await.unwrap();
    let before = decisions_of(&server);
    for count in 1..=50 {
        limits.check(&slow(100), "k").await.unwrap().require().unwrap();
        assert_eq!(decisions_of(&server) - before, count);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_calls_share_one_command() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    limits.ready().await.unwrap();
    let before = decisions_of(&server);
    let calls = JoinSet::from_iter((0..640_u32).map(|key| {
        let limits = limits.clone();
        async move { limits.check(&slow(100), key).await.unwrap().remaining() }
    }));
    assert!(calls.join_all().await.iter().all(|remaining| *remaining == 99));
    // Ten batches, and some that left before they were full.
    let decisions_of = decisions_of(&server) - before;
    assert!((10..100).contains(&decisions_of), "{decisions_of}");
}

#[tokio::test]
async fn calls_for_one_key_share_one_query_in_order() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    limits.ready().await.unwrap();
    let before = decisions_of(&server);
    let policy = slow(800);
    let calls: Vec<_> = (0..1_000).map(|_| started(&limits, &policy, "hot")).collect();
    for (number, call) in (0_u64..).zip(calls) {
        let decision = call.await.unwrap();
        let expected = (number < 800, 799_u64.saturating_sub(number));
        assert_eq!((decision.is_allowed(), left(&decision).whole()), expected);
    }
    assert_eq!(
        decisions_of(&server) - before,
        2,
        "the first call alone, then all others in one batch"
    );
}

/// The operation of a call.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Check,
    Peek,
    Reset,
}

/// Comparable outcomes of a decision.
type Facts = Vec<(bool, limiter_core::Amount, Duration, Duration)>;

fn facts(decision: &Decision) -> Facts {
    let limits = decision.limits().iter();
    limits
        .map(|limit| {
            let waits = (limit.retry_after(), limit.reset_after());
            (limit.is_allowed(), limit.remaining(), waits.0, waits.1)
        })
        .collect()
}

async fn execute(limits: &Limiter, operation: Operation, requests: &[(Policy, u64, u64)]) -> Option<Facts> {
    let key = |key: u64| Key::from(key).in_group("g");
    let each = requests
        .iter()
        .map(|(policy, name, cost)| LimitRequest::new(policy, key(*name)).cost(*cost));
    match operation {
        Operation::Check => Some(facts(&limits.check_all(each).await.unwrap())),
        Operation::Peek => Some(facts(&limits.peek_all(each).await.unwrap())),
        Operation::Reset => {
            let (policy, name, _) = requests.first().unwrap();
            limits.reset(policy, key(*name)).await.unwrap();
            None
        }
    }
}

#[tokio::test]
async fn batched_calls_equal_single_calls() {
    let clock = ManualClock::new();
    let together = Subject::without_deny_cache(Kind::Standalone, clock.clone());
    let one_by_one = Subject::with_clock(Kind::Memory, clock.clone());
    together.limits.ready().await.unwrap();
    let policies = [
        bucket("b", 40, "7/3s"),
        funnel("f", 30, 5),
        window("w", 25, "2s"),
        bucket("b", 45, 9),
        Policy::fixed_window("x")
            .limit(20)
            .window("1s")
            .deadline(PATIENT)
            .build()
            .unwrap(),
        Policy::counter_window("c")
            .limit(20)
            .window("1s")
            .deadline(PATIENT)
            .build()
            .unwrap(),
    ];
    let seed = fastrand::u64(..);
    let mut rng = Rng::with_seed(seed);
    for round in 0..40 {
        let mut calls = JoinSet::new();
        let mut expected = Vec::new();
        for number in 0..rng.usize(1..200) {
            let operation = match rng.u8(..12) {
                0 => Operation::Reset,
                1 => Operation::Peek,
                _ => Operation::Check,
            };
            let mut order = [0, 1, 2, 4, 5];
            rng.shuffle(&mut order);
            let count = if rng.bool() { 1 } else { rng.usize(2..4) };
            // The other version of a policy is charged alone.
            if count == 1 && rng.u8(..5) == 0 {
                order[0] = 3;
            }
            let requests: Vec<_> = order[..count]
                .iter()
                .map(|policy| {
                    let cost = if rng.u8(..4) == 0 { rng.u64(..4) } else { 1 };
                    (policies[*policy].clone(), rng.u64(..3), cost)
                })
                .collect();
            expected.push(execute(&one_by_one.limits, operation, &requests).await);
            let limits = together.limits.clone();
            // Tasks of this thread run in the order in which they were spawned.
            calls.spawn(async move { (number, operation, execute(&limits, operation, &requests).await) });
        }
        let mut answers = calls.join_all().await;
        answers.sort_by_key(|(number, ..)| *number);
        for ((number, operation, answer), expected) in answers.iter().zip(&expected) {
            assert_eq!(
                answer, expected,
                "seed {seed}, round {round}, call {number}: {operation:?}"
            );
        }
        clock.advance(micros(rng.u64(1..1_500_000)));
    }
}

#[tokio::test]
async fn call_cancelled_before_send_is_not_charged() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    limits.ready().await.unwrap();
    let policy = slow(100);
    for (key, dropped) in [("first", 0), ("second", 1), ("in the middle", 3), ("last", 5)] {
        let mut calls: Vec<_> = (0..6).map(|_| started(&limits, &policy, key)).collect();
        drop(calls.remove(dropped));
        let mut remaining = Vec::new();
        for call in calls {
            remaining.push(call.await.unwrap().remaining());
        }
        assert_eq!(remaining, [99, 98, 97, 96, 95], "{key}");
        assert_eq!(limits.peek(&policy, key).await.unwrap().remaining(), 95, "{key}");
    }
    // All callers are cancelled, so no command is sent.
    drop(
        (0..6)
            .map(|_| started(&limits, &policy, "all"))
            .collect::<Vec<_>>(),
    );
    assert_eq!(limits.check(&policy, "all").await.unwrap().remaining(), 99);
}

#[tokio::test]
async fn cancelled_call_does_not_affect_others() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    limits.ready().await.unwrap();
    let policy = slow(1_000);
    let mut decisions_of = 0;
    for turns in 0..40 {
        let calls = (0..5).map(|_| started(&limits, &policy, "k")).collect::<Vec<_>>();
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        for (number, call) in calls.into_iter().enumerate() {
            // The first one leads, the others follow.
            if number != turns % 5 {
                assert!(call.await.unwrap().is_allowed());
                decisions_of += 1;
            }
        }
    }
    let used = 1_000 - limits.peek(&policy, "k").await.unwrap().remaining();
    assert!(
        (decisions_of..=decisions_of + 40).contains(&used),
        "{used} of {decisions_of}"
    );
}

#[tokio::test]
async fn invalid_key_fails_only_its_own_calls() {
    let subject = Subject::new(Kind::Standalone);
    let (limits, server) = (&subject.limits, RedisServer::shared());
    let policy = slow(100);
    limits.check(&policy, "bad").await.unwrap().require().unwrap();
    let [name] = subject.redis_keys().try_into().unwrap();
    server.command(&["DEL", &name]);
    server.command(&["RPUSH", &name, "x"]);
    let keys = ["good", "bad", "better", "bad", "good"];
    let calls: Vec<_> = keys.iter().map(|key| started(limits, &policy, key)).collect();
    let mut result = Vec::new();
    for call in calls {
        result.push(match call.await {
            Ok(decision) => Ok(decision.remaining()),
            Err(Rejection::Unavailable { error, .. }) => Err(error.kind()),
            Err(other) => panic!("{other}"),
        });
    }
    let bad = Err(StoreErrorKind::WrongType);
    assert_eq!(result, [Ok(99), bad, Ok(99), bad, Ok(98)]);
}

#[tokio::test]
async fn lost_script_is_sent_again_for_batch() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    let policy = slow(1_000);
    for round in 1..=10 {
        server.command(&["SCRIPT", "FLUSH"]);
        let calls: Vec<_> = (0..50).map(|_| started(&limits, &policy, "k")).collect();
        for call in calls {
            assert!(call.await.unwrap().is_allowed());
        }
        assert_eq!(
            limits.peek(&policy, "k").await.unwrap().remaining(),
            1_000 - 50 * round
        );
    }
}

#[tokio::test]
async fn impatient_calls_time_out_and_others_succeed() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let url = server
        .url()
        .replace(&server.port().to_string(), &proxy.port().to_string());
    let limits = limiter(url);
    limits.ready().await.unwrap();
    proxy.set_delay(Duration::from_millis(100));
    let hasty = Policy::token_bucket("hasty")
        .capacity(10)
        .rate("1/d")
        .deadline(Duration::from_millis(30))
        .on_store_failure(limiter_core::OnStoreFailure::Error)
        .build()
        .unwrap();
    let patient = slow(100);
    let mut calls = JoinSet::new();
    for number in 0..40 {
        let (limits, policy) = (
            limits.clone(),
            if number % 2 == 0 {
                patient.clone()
            } else {
                hasty.clone()
            },
        );
        calls.spawn(async move { (number, limits.check(&policy, "k").await) });
    }
    for (number, answer) in calls.join_all().await {
        match answer {
            Ok(decision) => assert!(number % 2 == 0 && decision.is_allowed()),
            Err(Rejection::Unavailable { error, .. }) if error.kind() == StoreErrorKind::Timeout => {
                assert_eq!(number % 2, 1);
            }
            Err(other) => panic!("{number}: {other}"),
        }
    }
}

/// Two patient calls hold both slots, on a connection that is dead.
#[tokio::test]
async fn dead_connection_does_not_block_new_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let url = server
        .url()
        .replace(&server.port().to_string(), &proxy.port().to_string());
    let limits = limiter(url);
    limits.ready().await.unwrap();
    proxy.set_black_hole(true);
    let policy = slow(100);
    let _held: Vec<_> = (0..5).map(|_| started(&limits, &policy, "held")).collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    proxy.set_black_hole(false);
    support::answers_again(&limits, Duration::from_millis(500)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_slots_are_decided_while_one_moves() {
    let cluster = RedisCluster::start();
    let limits = Limiter::redis_cluster(cluster.urls())
        .namespace(support::namespace())
        .build()
        .unwrap();
    limits.ready().await.unwrap();
    let slot = cluster.slot_of("0");
    let callers = |rounds: u64| {
        JoinSet::from_iter((0..60_u64).map(|key| {
            let limits = limits.clone();
            async move {
                let policy = slow(10_000);
                for _ in 0..rounds {
                    limits.check(&policy, key % 30).await.unwrap().require().unwrap();
                }
            }
        }))
    };
    let running = callers(60);
    let moved = tokio::task::spawn_blocking(move || {
        for _ in 0..3 {
            let to = (cluster.owner_of(slot) + 1) % cluster.nodes().len();
            let migration = cluster.begin_migration(slot, to);
            migration.move_keys();
            std::thread::sleep(Duration::from_millis(20));
            migration.finish();
        }
        cluster
    });
    running.join_all().await;
    let cluster = moved.await.unwrap();
    callers(1).join_all().await;
    for key in 0..30_u64 {
        let left = limits.peek(&slow(10_000), key).await.unwrap().remaining();
        assert_eq!(left, 10_000 - 2 * 61, "{key}");
    }
    drop(cluster);
}

#[tokio::test]
async fn dead_node_fails_its_own_callers_only() {
    let cluster = RedisCluster::builder()
        .arg("cluster-require-full-coverage", "no")
        .start();
    let limits = Limiter::redis_cluster(cluster.urls())
        .namespace(support::namespace())
        .build()
        .unwrap();
    limits.ready().await.unwrap();
    let dead = |key: u64| cluster.owner_of(cluster.slot_of(key.to_string())) == 2;
    let on_dead: Vec<bool> = (0..120).map(dead).collect();
    cluster.node(2).kill();
    let mut calls = JoinSet::new();
    for key in 0..120_u64 {
        let limits = limits.clone();
        let policy = bucket("p", 5, 1);
        calls.spawn(async move { (key, limits.check(&policy, key).await) });
    }
    for (key, answer) in calls.join_all().await {
        let on_dead = on_dead[usize::try_from(key).unwrap()];
        assert_eq!(answer.is_err(), on_dead, "{key}: {answer:?}");
    }
    assert!(on_dead.contains(&true) && on_dead.contains(&false));
}
