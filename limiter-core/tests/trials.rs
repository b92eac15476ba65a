//! The cost of trial values: metrics, and requests to Redis.
#![cfg(feature = "metrics")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::print_stdout, reason = "a test may print its measurements")]

mod support;

use std::time::{Duration, Instant};

use limiter_core::{Limiter, Policy, Timestamp};
use limiter_testing::RedisServer;
use limiter_testing::recorder::Ledger;
use support::{PATIENT, namespace};

fn sized(capacity: u32) -> Policy {
    let builder = Policy::token_bucket("p").capacity(capacity).rate("1/h");
    builder.deadline(PATIENT).build().unwrap()
}

fn tried() -> Policy {
    with_trial(&sized(1_000))
}

fn with_trial(policy: &Policy) -> Policy {
    let end: Timestamp = (std::time::SystemTime::now() + Duration::from_secs(3_600)).into();
    policy.clone().with_trial(&sized(2), end).unwrap()
}

/// The number of executed scripts, and the microseconds that Redis spent on them.
fn scripts(server: &RedisServer) -> (u64, u64) {
    let stats = server.command(&["INFO", "commandstats"]).text();
    let line = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"))
        .unwrap();
    let field = |name: &str| {
        let (_, rest) = line.split_once(name).unwrap();
        rest.split(',').next().unwrap().parse().unwrap()
    };
    (field("calls="), field("usec="))
}

/// Under load, trials join the batches of the calls. Prints the additional cost of single calls.
#[tokio::test]
async fn trials_join_batches() {
    const CALLS: u32 = 200;
    let server = RedisServer::start();
    let limits = Limiter::redis(server.url())
        .namespace(namespace())
        // With a configured number, no heartbeats are sent: they are scripts too.
        .replicas(1)
        .build()
        .unwrap();
    limits.ready().await.unwrap();
    for policy in [sized(1_000), tried()] {
        let is_tried = policy.trial().is_some();
        // The first call loads the script.
        limits.check(&policy, "warm").await.unwrap().require().unwrap();
        let (before, started) = (scripts(&server), Instant::now());
        for call in 0..CALLS {
            let key = format!("{call}");
            limits.check(&policy, &key).await.unwrap().require().unwrap();
        }
        let (elapsed, after) = (started.elapsed() / CALLS, scripts(&server));
        let micros = (after.1 - before.1) / u64::from(CALLS);
        let (sent, calls) = (after.0 - before.0, u64::from(CALLS));
        let most = if is_tried { 2 * calls } else { calls };
        assert!((calls..=most).contains(&sent), "trial {is_tried}: {sent} scripts");
        println!("trial {is_tried}: {elapsed:?} per call, {micros} us of Redis per call");

        let before = scripts(&server);
        let calls = (0..CALLS).map(|call| {
            let (limits, policy) = (limits.clone(), policy.clone());
            tokio::spawn(async move { limits.check(&policy, format!("l{call}")).await.map(drop) })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap().unwrap();
        }
        let count = scripts(&server).0 - before.0;
        assert!(count < u64::from(CALLS) / 4, "trial {is_tried}: {count} scripts");
    }
}

/// The trials of a call with several limits do not wait for each other.
#[tokio::test]
async fn trials_of_one_call_are_sent_together() {
    let server = RedisServer::start();
    let limits = Limiter::redis(server.url()).namespace(namespace());
    let limits = limits.replicas(1).build().unwrap();
    limits.ready().await.unwrap();
    let policies = ["a", "b", "c", "d"].map(|name| {
        let policy = Policy::token_bucket(name).capacity(9).rate("1/h");
        with_trial(&policy.deadline(PATIENT).build().unwrap())
    });
    let check = async || {
        let all = limits.check_all(policies.each_ref().map(|policy| (policy, "k")));
        all.await.unwrap().require().unwrap();
    };
    check().await;
    let (before, _) = scripts(&server);
    check().await;
    let sent = scripts(&server).0 - before;
    assert!(sent <= 3, "{sent} scripts for a decision and four trials");
}

#[test]
fn trial_is_counted_by_its_outcome() {
    let recorder = Ledger::default();
    metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let limits = Limiter::in_process().build();
            let policy = tried();
            for _ in 0..5 {
                limits.check(&policy, "ann").await.unwrap().require().unwrap();
            }
            limits
                .check(&policy, "bob")
                .cost(3)
                .await
                .unwrap()
                .require()
                .unwrap();
        });
    });
    let of = |outcome: &str| {
        recorder.get(&format!(
            "limiter_trial_decisions_total{{policy=p,outcome={outcome}}}"
        ))
    };
    assert_eq!(
        (of("allowed"), of("denied")),
        (Some(2.0), Some(4.0)),
        "{:?}",
        recorder.all()
    );
}
