//! Results of calls while Redis rejects, is gone, is slow, or returns errors: a typed error within
//! the deadline.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod support;

#[path = "faults/outage_log.rs"]
mod outage_log;
#[path = "faults/shadow_limits.rs"]
mod shadow_limits;

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use limiter_core::{Limiter, OnStoreFailure, Origin, Policy, Rejection, StoreErrorKind};
use limiter_testing::RedisServer;
use tokio::task::JoinSet;

use support::{SLACK, answers_again, limiter, patient, policy};

fn kind(rejection: Rejection) -> StoreErrorKind {
    match rejection {
        Rejection::Unavailable { error, .. } => error.kind(),
        other => panic!("expected a failure of the store: {other}"),
    }
}

/// Makes a call under each failure mode, and returns the kind of the failure.
async fn failure_mode_of_policy_applies(limits: &Limiter) -> StoreErrorKind {
    let started = Instant::now();
    let Err(Rejection::Unavailable { error, .. }) = limits.check(&policy(OnStoreFailure::Error), "k").await
    else {
        panic!("the call must fail");
    };
    let open = limits
        .check(&policy(OnStoreFailure::FailOpen), "k")
        .await
        .unwrap();
    assert_eq!(
        (open.is_allowed(), open.origin(), open.remaining()),
        (true, Origin::FailedOpen, 0)
    );
    assert_eq!(open.store_error().unwrap().kind(), error.kind());
    let closed = limits
        .check(&policy(OnStoreFailure::FailClosed), "k")
        .await
        .unwrap();
    assert_eq!(
        (closed.is_allowed(), closed.origin(), closed.retry_after()),
        (false, Origin::FailedClosed, None)
    );
    assert!(matches!(closed.require(), Err(Rejection::Unavailable { .. })));
    assert!(
        started.elapsed() < 3 * Policy::DEFAULT_DEADLINE + SLACK,
        "{:?}",
        started.elapsed()
    );
    error.kind()
}

#[tokio::test]
async fn refused_connection_fails_immediately() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let limits = limiter(format!("redis://{free}/"));
    assert_eq!(
        failure_mode_of_policy_applies(&limits).await,
        StoreErrorKind::Connection
    );
    assert_eq!(
        limits.ready().await.unwrap_err().kind(),
        StoreErrorKind::Connection
    );
    let waited = limits
        .acquire(&policy(OnStoreFailure::FailClosed), "k")
        .timeout(Duration::from_secs(60))
        .await;
    assert!(
        matches!(waited, Err(Rejection::Unavailable { .. })),
        "the end of the outage is unknown: {waited:?}"
    );
}

#[tokio::test]
async fn silent_server_is_a_timeout() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let limits = limiter(format!("redis://{}/", silent.local_addr().unwrap()));
    assert_eq!(
        failure_mode_of_policy_applies(&limits).await,
        StoreErrorKind::Timeout
    );
}

#[tokio::test]
async fn reply_received_during_stall_is_used() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    limits.check(&patient(), "k").await.unwrap().require().unwrap();
    // The call has been sent when the only thread stops for longer than the deadline.
    let stall = async || {
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        std::thread::sleep(2 * Policy::DEFAULT_DEADLINE);
    };
    for _ in 0..5 {
        let policy = policy(OnStoreFailure::Error);
        let (decision, ()) = tokio::join!(biased; limits.check(&policy, "k"), stall());
        assert_eq!(decision.unwrap().origin(), Origin::Redis);
    }
}

#[tokio::test]
async fn stopped_server_times_out_until_it_resumes() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    assert!(limits.check(&patient(), "k").await.unwrap().is_allowed());
    server.pause();
    let mut observed = Vec::new();
    for _ in 0..5 {
        observed.push(failure_mode_of_policy_applies(&limits).await);
    }
    assert_eq!(observed.first(), Some(&StoreErrorKind::Timeout));
    // Soon the circuit breaker opens.
    assert!(observed.contains(&StoreErrorKind::CircuitOpen), "{observed:?}");
    server.resume();
    answers_again(&limits, Duration::from_millis(500)).await;
}

#[tokio::test]
async fn calls_above_the_cap_are_not_sent() {
    let server = RedisServer::start();
    let limits = Limiter::redis(server.url())
        .namespace(support::namespace())
        .max_in_flight(8)
        .build()
        .unwrap();
    limits.check(&patient(), "k").await.unwrap().require().unwrap();
    server.pause();
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let limits = limits.clone();
        calls.spawn(async move {
            let policy = policy(OnStoreFailure::Error);
            limits.check(&policy, "k").await.unwrap_err()
        });
    }
    let kinds: Vec<_> = calls.join_all().await.into_iter().map(kind).collect();
    let count = |wanted| kinds.iter().filter(|kind| **kind == wanted).count();
    assert_eq!(
        (count(StoreErrorKind::Timeout), count(StoreErrorKind::Overloaded)),
        (8, 42)
    );
    server.resume();
    answers_again(&limits, Duration::from_millis(500)).await;
}

#[tokio::test]
async fn killed_server_fails_and_restarted_server_decides() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    let policy = patient();
    for _ in 0..10 {
        assert!(limits.check(&policy, "k").await.unwrap().is_allowed());
    }
    server.kill();
    assert_eq!(
        failure_mode_of_policy_applies(&limits).await,
        StoreErrorKind::Connection
    );
    server.restart();
    assert_eq!(
        limits.check(&policy, "k").await.unwrap().remaining(),
        99,
        "the server kept no data"
    );
    // The connection detects that the server has closed it as soon as its task has run; until then
    // a call fails.
    server.kill();
    server.restart();
    answers_again(&limits, Duration::from_millis(500)).await;
}

#[tokio::test]
async fn server_error_has_kind_refused_and_charges_nothing() {
    let server = RedisServer::builder()
        .arg("maxmemory", "1")
        .arg("maxmemory-policy", "noeviction")
        .start();
    assert_eq!(
        failure_mode_of_policy_applies(&limiter(server.url())).await,
        StoreErrorKind::Refused
    );
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    let decision = limiter(server.url()).check(&patient(), "k").await.unwrap();
    assert_eq!(decision.remaining(), 99);
}

#[tokio::test]
async fn wrong_password_error_hides_password() {
    let server = RedisServer::builder().arg("requirepass", "right").start();
    let limits = limiter(server.url_as(":wrong"));
    let Err(Rejection::Unavailable { error, .. }) = limits.check(&patient(), "k").await else {
        panic!("the call must fail");
    };
    let observed = format!("{error} {error:?} {limits:?}");
    assert!(
        observed.contains("WRONGPASS") || observed.contains("AuthenticationFailed"),
        "{observed}"
    );
    assert!(
        !observed.contains(":wrong@") && !observed.contains("\"wrong\""),
        "{observed}"
    );
    let limits = limiter(server.url_as(":right"));
    assert!(limits.check(&patient(), "k").await.unwrap().is_allowed());
}

#[tokio::test]
async fn lost_script_is_sent_again() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    limits.ready().await.unwrap();
    // A policy without a refill during the test, even on a busy machine.
    let policy = Policy::token_bucket("p").capacity(100).rate("1/h");
    let policy = policy.deadline(support::PATIENT).build().unwrap();
    for left in (0..100).rev() {
        server.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(limits.check(&policy, "k").await.unwrap().remaining(), left);
    }
}

#[tokio::test]
async fn deadline_of_policy_applies() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let limits = limiter(format!("redis://{}/", silent.local_addr().unwrap()));
    let patient = Policy::funnel("p")
        .capacity(1)
        .rate(1)
        .deadline(Duration::from_millis(300))
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap();
    let started = Instant::now();
    assert!(limits.check(&patient, "k").await.is_err());
    let waited = started.elapsed();
    assert!(
        waited >= Duration::from_millis(300) && waited < Duration::from_millis(300) + SLACK,
        "{waited:?}"
    );
}
