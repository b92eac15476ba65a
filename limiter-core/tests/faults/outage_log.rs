//! The log of an outage: its cause, from the first call on.
#![expect(clippy::indexing_slicing, reason = "a test may panic")]

use std::net::{Ipv4Addr, TcpListener};

use limiter_core::{Limiter, ManualClock, OnStoreFailure, Policy};
use limiter_testing::RedisServer;

use crate::support::{PATIENT, answers_again, limiter, namespace, secs};
use limiter_testing::log::Warnings;

const ANSWERS: [OnStoreFailure; 4] = [
    OnStoreFailure::FailClosed,
    OnStoreFailure::FailOpen,
    OnStoreFailure::Error,
    OnStoreFailure::Local,
];

fn policy(answer: OnStoreFailure) -> Policy {
    let policy = Policy::token_bucket("login").capacity(100).rate("1/h");
    let policy = policy.deadline(PATIENT).on_store_failure(answer);
    policy.build().unwrap()
}

#[tokio::test]
async fn wrong_password_is_logged_at_first_call() {
    let server = RedisServer::builder().arg("requirepass", "right").start();
    for (login, logged) in [(":wrong", "WRONGPASS"), ("", "NOAUTH")] {
        for answer in ANSWERS {
            let warnings = Warnings::default();
            let _guard = tracing::subscriber::set_default(warnings.clone());
            let limits = limiter(server.url_as(login));
            let policy = policy(answer);
            let _ = limits.check(&policy, "user:7").await;
            let first = warnings.all();
            assert_eq!(first.len(), 1, "{answer:?}: {first:?}");
            let first = first.concat();
            assert!(first.contains("Redis made no decision"), "{first}");
            assert!(first.contains(logged), "{first}");
            if answer != OnStoreFailure::Local {
                assert!(
                    first.contains("login") && first.contains(&format!("{answer:?}")),
                    "{first}"
                );
            }

            for _ in 0..20 {
                let _ = limits.check(&policy, "user:7").await;
            }
            let all = warnings.all();
            assert_eq!(all.len(), 2, "a known cause is not logged again: {all:?}");
            assert!(all[1].contains("cannot connect to Redis"), "{all:?}");
            assert!(all[1].contains(logged), "{all:?}");
            let all = all.concat();
            assert!(
                !all.contains("Redis does not answer"),
                "the server replies: {all}"
            );
            assert!(!all.contains("user:7") && !all.contains(":wrong"), "{all}");
        }
    }
}

#[tokio::test]
async fn each_policy_outcome_is_counted_once() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("redis://{}/", free.local_addr().unwrap());
    drop(free);
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let limits = limiter(url);
    for _ in 0..3 {
        for answer in ANSWERS {
            let _ = limits.check(&policy(answer), "ann").await;
        }
    }
    let mut all = warnings.all();
    all.retain(|line| line.contains("Redis made no decision"));
    assert_eq!(all.len(), 4, "{all:?}");
    assert!(all[0].contains("refused"), "{all:?}");
    let waiting = limits.acquire(&policy(OnStoreFailure::FailClosed), "ann").await;
    assert!(waiting.is_err());
}

#[tokio::test]
async fn outage_is_logged_again_after_recovery() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let limits = Limiter::redis(server.url()).namespace(namespace());
    let limits = limits.clock(&clock).build().unwrap();
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let policy = policy(OnStoreFailure::FailClosed);
    for (calm, expected_count) in [(secs(9), 1), (secs(10), 1), (secs(0), 2)] {
        server.kill();
        while limits.check(&policy, "ann").await.unwrap().is_allowed() {}
        let mut logged = warnings.all();
        logged.retain(|line| line.contains("answer=FailClosed"));
        assert_eq!(logged.len(), expected_count, "{logged:?}");
        server.restart();
        answers_again(&limits, PATIENT).await;
        clock.advance(calm);
        assert!(limits.check(&policy, "ann").await.unwrap().is_allowed());
    }
}

#[tokio::test]
async fn silent_server_is_logged_as_not_answering() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let limits = limiter(format!("redis://{}/", silent.local_addr().unwrap()));
    let policy = Policy::token_bucket("login").capacity(100).rate("1/h");
    let policy = policy
        .on_store_failure(OnStoreFailure::FailClosed)
        .build()
        .unwrap();
    for _ in 0..6 {
        let _ = limits.check(&policy, "ann").await;
    }
    let all = warnings.all();
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[1].contains("Redis does not answer"), "{all:?}");
}

#[tokio::test]
async fn ready_error_contains_cause() {
    let server = RedisServer::builder().arg("requirepass", "right").start();
    let error = limiter(server.url_as(":wrong")).ready().await.unwrap_err();
    let expected_count = error.to_string();
    assert!(expected_count.contains("WRONGPASS"), "{expected_count}");
    assert!(
        expected_count.contains("no connection to Redis at") && !expected_count.contains('\n'),
        "{expected_count}"
    );
    assert!(
        std::error::Error::source(&error).is_none(),
        "the cause is contained once"
    );
}
