//! Penalties in process and in Redis: the same denials block for the same time.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::time::{Duration, Instant};

use limiter_core::{Amount, Decision, Limiter, ManualClock, OnStoreFailure, Policy, Rejection};
use limiter_testing::RedisServer;
use support::{KEY, Kind, PATIENT, Subject, namespace, secs};

fn login(penalty: &str) -> Policy {
    let policy = Policy::token_bucket("login").capacity(1).rate("1/h");
    let policy = policy.penalty(penalty).deadline(PATIENT);
    policy.on_store_failure(OnStoreFailure::Error).build().unwrap()
}

/// The number of scripts that a server has run.
fn calls(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).text();
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    line.and_then(|line| line.split_once("calls=")?.1.split_once(',')?.0.parse().ok())
        .unwrap_or_default()
}

/// A denial counts from its own time, even if the store receives it later.
#[tokio::test]
async fn denials_expire_equally_in_both_stores() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let policy = login("3 in 2s: 15m");
    let in_process = Limiter::in_process().clock(&clock).build();
    let redis = Limiter::redis(server.url()).namespace(namespace()).clock(&clock);
    let redis = redis.build().unwrap();
    for limits in [&in_process, &redis] {
        assert!(limits.check(&policy, KEY).await.unwrap().is_allowed());
    }
    let blocked = async || {
        let [memory, redis] = [
            in_process.check(&policy, KEY).await.unwrap(),
            redis.check(&policy, KEY).await.unwrap(),
        ];
        assert_eq!(memory.is_blocked(), redis.is_blocked(), "at {clock:?}");
        redis.is_blocked()
    };
    for _ in 0..6 {
        let before = calls(&server);
        assert!(!blocked().await, "two denials within two seconds");
        // The report is due after a second.
        clock.advance(secs(1));
        let started = Instant::now();
        while calls(&server) <= before + 1 {
            assert!(started.elapsed() < secs(10), "no report");
            tokio::task::yield_now().await;
        }
        clock.advance(support::millis(100));
    }
    assert!(!blocked().await);
    clock.advance(support::millis(900));
    assert!(!blocked().await, "the second last denial was two seconds ago");
    clock.advance(support::millis(1_099));
    assert!(blocked().await, "three denials within two seconds");
}

/// With random pauses between denials of one replica, both stores block at the same denial.
#[tokio::test]
async fn both_stores_block_at_the_same_denial() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..30 {
        let redis = Subject::without_deny_cache(Kind::Standalone, ManualClock::new());
        let in_process = Limiter::in_process().clock(&redis.clock).build();
        let denials = random.u32(1..6);
        let policy = login(&format!("{denials} in 2s: 700ms"));
        let longest = 4_000_000 / u64::from(denials);
        for step in 0..40 {
            let mut blocked = [false; 2];
            for (blocked, limits) in blocked.iter_mut().zip([&in_process, &redis.limits]) {
                let decision = limits.check(&policy, KEY).await.unwrap();
                assert_eq!(decision.is_allowed(), step == 0);
                *blocked = decision.is_blocked();
            }
            let [in_memory, in_redis] = blocked;
            assert_eq!(
                in_memory, in_redis,
                "seed {seed}, round {round}, step {step}, {denials} denials"
            );
            redis.clock.advance(support::micros(random.u64(..longest)));
            for _ in 0..random.u32(..20) {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// If each denial blocks, no report is late, and all numbers have to agree at every time.
#[tokio::test]
async fn blocks_agree_in_process_and_redis_on_random_traces() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..40 {
        let clock = ManualClock::new();
        let subjects =
            [Kind::Memory, Kind::Standalone].map(|kind| Subject::without_deny_cache(kind, clock.clone()));
        let block = random.u32(1..4_000_000);
        let penalty = format!("1 in 1s: {block}us");
        let penalized = [
            Policy::token_bucket("a")
                .capacity(2)
                .rate("3/2s")
                .penalty(&*penalty)
                .deadline(PATIENT)
                .build(),
            Policy::sliding_window("b")
                .limit(3)
                .window("2s")
                .penalty(&*penalty)
                .deadline(PATIENT)
                .build(),
            Policy::funnel("c").capacity(2).rate(1).deadline(PATIENT).build(),
        ]
        .map(Result::unwrap);
        for step in 0..60 {
            // The clock never steps back: each store removes expired states at its own times.
            if random.bool() {
                clock.advance(support::micros(random.u64(..1_500_000)));
            }
            let checked: Vec<_> = penalized.iter().filter(|_| random.bool()).collect();
            let (cost, kind) = (random.u32(..3), random.u32(..20));
            let mut answers = Vec::new();
            for subject in &subjects {
                let requests = checked.iter().map(|policy| (*policy, KEY));
                let answer = match kind {
                    0 => {
                        subject.limits.reset(&penalized[0], KEY).await.unwrap();
                        continue;
                    }
                    1..5 => subject.limits.peek_all(requests).cost(cost).await,
                    _ => subject.limits.check_all(requests).cost(cost).await,
                };
                let mut until = Vec::new();
                for policy in &penalized {
                    until.push(subject.limits.blocked_until(policy, KEY).await.unwrap());
                }
                answers.push((facts(answer), until));
            }
            if let [memory, redis] = &answers[..] {
                assert_eq!(
                    memory, redis,
                    "seed {seed}, round {round}, step {step}: {checked:?} for {cost}"
                );
            }
        }
    }
}

type Facts = Option<(
    bool,
    bool,
    Option<Duration>,
    Vec<(bool, Amount, Duration, Duration)>,
)>;

/// All values of a decision.
fn facts(answer: Result<Decision, Rejection>) -> Facts {
    let decision = answer.ok()?;
    let limits = decision.limits().iter();
    let limits = limits.map(|limit| {
        (
            limit.is_allowed(),
            limit.remaining(),
            limit.retry_after(),
            limit.reset_after(),
        )
    });
    let limits = limits.collect();
    Some((
        decision.is_allowed(),
        decision.is_blocked(),
        decision.retry_after(),
        limits,
    ))
}
