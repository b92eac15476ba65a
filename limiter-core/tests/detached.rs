//! Detached permits and reservations where processes and outages are real.
#![cfg(feature = "redis")]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use std::process::Command;
use std::time::Duration;

use limiter_core::detached::{PermitRelease, PermitRenewal, SettlementOutcome};
use limiter_core::{Amount, LimitRequest, Limiter, ManualClock, OnStoreFailure, Origin, Policy, Rejection};
use limiter_testing::{RedisServer, acl};
use support::{KEY, PATIENT, millis, namespace, secs};

const LIFETIME: Duration = secs(600);

/// Environment variables that pass settings to the child process.
const URL: &str = "LIMITER_TEST_DETACHED_URL";
const NAMESPACE: &str = "LIMITER_TEST_DETACHED_NAMESPACE";
const PERMIT: &str = "LIMITER_TEST_DETACHED_PERMIT";
const RESERVATION: &str = "LIMITER_TEST_DETACHED_RESERVATION";

fn exports(answer: OnStoreFailure) -> Policy {
    let policy = Policy::concurrency("export").max(3).lease(secs(600));
    policy.deadline(PATIENT).on_store_failure(answer).build().unwrap()
}

fn tokens(answer: OnStoreFailure) -> Policy {
    let policy = Policy::token_bucket("tokens").capacity(1_000).rate("1/h");
    policy.deadline(PATIENT).on_store_failure(answer).build().unwrap()
}

/// The work of the child process; in the parent it does nothing.
#[tokio::test]
async fn child_releases_and_settles() {
    let found = [URL, NAMESPACE, PERMIT, RESERVATION].map(std::env::var);
    let [Ok(url), Ok(namespace), Ok(permit), Ok(reservation)] = found else {
        return;
    };
    let limits = Limiter::redis(url).namespace(namespace).build().unwrap();
    let (exports, tokens) = (exports(OnStoreFailure::Error), tokens(OnStoreFailure::Error));
    let renewed = limits.renew_permit(&exports, KEY, &permit).await.unwrap();
    assert!(matches!(renewed, PermitRenewal::Renewed { .. }));
    for expected in [PermitRelease::Released, PermitRelease::NotHeld] {
        let released = limits.release_permit(&exports, KEY, &permit).await;
        assert_eq!(released.unwrap(), expected);
    }
    for expected in [SettlementOutcome::Settled, SettlementOutcome::AlreadySettled] {
        let used = [LimitRequest::new(&tokens, KEY).cost(300)];
        let settled = limits.settle_reservation(&reservation, used).await;
        assert_eq!(settled.unwrap(), expected);
    }
}

#[tokio::test]
async fn another_process_releases_and_settles() {
    let (server, namespace) = (RedisServer::shared(), namespace());
    let limits = Limiter::redis(server.url())
        .namespace(&namespace)
        .build()
        .unwrap();
    let (exports, tokens) = (exports(OnStoreFailure::Error), tokens(OnStoreFailure::Error));
    let permit = limits
        .acquire_concurrency(&exports, KEY)
        .cost(2)
        .detached()
        .await
        .unwrap();
    let reservation = limits.reserve(&tokens, KEY).cost(800).await.unwrap();
    let reservation = reservation.detach(LIFETIME).await.unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_releases_and_settles"])
        .env(URL, server.url())
        .env(NAMESPACE, &namespace)
        .env(PERMIT, permit.id())
        .env(RESERVATION, reservation.id())
        .output()
        .unwrap();
    assert!(
        child.status.success(),
        "{}",
        String::from_utf8_lossy(&child.stdout)
    );
    assert_eq!(limits.peek(&exports, KEY).await.unwrap().remaining(), 3);
    assert_eq!(limits.peek(&tokens, KEY).await.unwrap().remaining(), 700);
    let released = limits.release_permit(&exports, KEY, permit.id()).await;
    assert_eq!(released.unwrap(), PermitRelease::NotHeld);
    let used = [LimitRequest::new(&tokens, KEY).cost(0)];
    let settled = limits.settle_reservation(reservation.id(), used).await;
    assert_eq!(settled.unwrap(), SettlementOutcome::AlreadySettled);
    assert_eq!(limits.peek(&tokens, KEY).await.unwrap().remaining(), 700);
}

/// Eight limiters settle one reservation at the same time: one of them does.
#[tokio::test]
async fn concurrent_settlements_settle_once() {
    let (server, namespace) = (RedisServer::shared(), namespace());
    // A bucket refills while the test runs, which a refund takes into account.
    let calls = Policy::sliding_window("calls").limit(1_000).window("1d");
    let calls = calls.deadline(PATIENT).build().unwrap();
    let limiters: Vec<_> = (0..8)
        .map(|_| {
            Limiter::redis(server.url())
                .namespace(&namespace)
                .build()
                .unwrap()
        })
        .collect();
    for _ in 0..20 {
        let reservation = limiters[0].reserve(&calls, KEY).cost(10).await.unwrap();
        let reservation = reservation.detach(LIFETIME).await.unwrap();
        let mut settling = tokio::task::JoinSet::new();
        for limits in &limiters {
            let (limits, calls, id) = (limits.clone(), calls.clone(), reservation.id().to_owned());
            settling.spawn(async move {
                let used = [LimitRequest::new(&calls, KEY).cost(0)];
                limits.settle_reservation(&id, used).await.unwrap()
            });
        }
        let settled = settling.join_all().await;
        let count = settled
            .iter()
            .filter(|settled| **settled == SettlementOutcome::Settled)
            .count();
        assert_eq!(count, 1, "{settled:?}");
    }
    assert_eq!(limiters[0].peek(&calls, KEY).await.unwrap().remaining(), 1_000);
}

#[tokio::test]
async fn ids_of_an_outage_are_valid_on_their_node() {
    let (server, namespace, clock) = (RedisServer::start(), namespace(), ManualClock::new());
    let limiter = || {
        let builder = Limiter::redis(server.url()).namespace(&namespace);
        builder.replicas(1).clock(&clock).build().unwrap()
    };
    let (first, second) = (limiter(), limiter());
    server.kill();
    let (exports, tokens) = (exports(OnStoreFailure::Local), tokens(OnStoreFailure::Local));
    let permit = first
        .acquire_concurrency(&exports, KEY)
        .cost(2)
        .detached()
        .await
        .unwrap();
    assert_eq!(permit.decision().origin(), Origin::LocalFallback);
    assert!(first.acquire_concurrency(&exports, KEY).cost(2).await.is_err());
    let foreign = second
        .release_permit(&exports, KEY, permit.id())
        .await
        .unwrap_err();
    assert!(matches!(foreign, Rejection::Config(_)));
    assert!(
        foreign.diagnostic().to_string().contains("another node"),
        "{foreign:?}"
    );
    // The permit expires without a release.
    clock.advance(secs(600));
    let freed = async {
        while first.acquire_concurrency(&exports, KEY).cost(3).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENT, freed).await.unwrap();
    let released = first.release_permit(&exports, KEY, permit.id()).await;
    assert_eq!(released.unwrap(), PermitRelease::NotHeld);

    let reservation = first.reserve(&tokens, KEY).cost(800).await.unwrap();
    let reservation = reservation.detach(LIFETIME).await.unwrap();
    assert_eq!(reservation.decision().origin(), Origin::LocalFallback);
    let used = || [LimitRequest::new(&tokens, KEY).cost(300)];
    assert!(matches!(
        second.settle_reservation(reservation.id(), used()).await,
        Err(Rejection::Config(_))
    ));
    for expected in [SettlementOutcome::Settled, SettlementOutcome::AlreadySettled] {
        let settled = first.settle_reservation(reservation.id(), used()).await;
        assert_eq!(settled.unwrap(), expected);
        let left = first.peek(&tokens, KEY).await.unwrap();
        assert_eq!(left.limits()[0].remaining(), Amount::from(700_u32));
    }
}

/// In an outage a task waits for the end of each permit, and a release of the permit ends the task.
#[tokio::test]
async fn released_permits_of_an_outage_leave_no_tasks() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let builder = Limiter::redis(server.url()).namespace(namespace());
    let limits = builder.replicas(1).clock(&clock).build().unwrap();
    server.kill();
    let exports = exports(OnStoreFailure::Local);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for _ in 0..200 {
        let permit = limits
            .acquire_concurrency(&exports, KEY)
            .detached()
            .await
            .unwrap();
        assert_eq!(permit.decision().origin(), Origin::LocalFallback);
        // The task of the permit starts.
        tokio::task::yield_now().await;
        let released = limits.release_permit(&exports, KEY, permit.id()).await;
        assert_eq!(released.unwrap(), PermitRelease::Released);
    }
    let ended = async {
        // The limiter has some tasks of its own.
        while tasks() > before + 20 {
            tokio::task::yield_now().await;
        }
    };
    assert!(
        tokio::time::timeout(PATIENT, ended).await.is_ok(),
        "{} tasks",
        tasks()
    );
}

/// The tasks that wait for the ends of permits end with their runtime.
#[test]
fn permits_of_an_outage_end_without_their_runtime() {
    let (server, clock) = (RedisServer::start(), ManualClock::new());
    let builder = Limiter::redis(server.url()).namespace(namespace());
    let limits = builder.replicas(1).clock(&clock).build().unwrap();
    server.kill();
    let exports = exports(OnStoreFailure::Local);
    let acquire = || async {
        let permit = limits.acquire_concurrency(&exports, KEY).detached();
        permit.await.is_ok()
    };
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let acquire_all = async {
        for allowed in [true, true, true, false] {
            assert_eq!(acquire().await, allowed);
        }
    };
    runtime().block_on(acquire_all);
    clock.advance(secs(601));
    assert!(runtime().block_on(acquire()), "the permits have expired");
}

/// A future may be dropped outside of the runtime in which its query is in flight.
#[test]
fn permit_of_future_dropped_outside_of_runtime_is_released() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let limits = Limiter::redis(server.url())
        .namespace(&namespace)
        .build()
        .unwrap();
    let exports = exports(OnStoreFailure::Error);
    runtime.block_on(limits.ready()).unwrap();
    server.pause();
    let acquire = limits.acquire_concurrency(&exports, KEY).detached();
    let mut acquiring = acquire.into_future();
    let first_poll = async { tokio::time::timeout(millis(20), &mut acquiring).await.is_err() };
    assert!(runtime.block_on(first_poll));
    drop(acquiring);
    server.resume();
    let released = async {
        while limits.peek(&exports, KEY).await.unwrap().remaining() < 3 {
            tokio::task::yield_now().await;
        }
    };
    let released = runtime.block_on(async { tokio::time::timeout(PATIENT, released).await });
    assert!(released.is_ok(), "the permit is held until its lease ends");
}

#[tokio::test]
async fn failed_release_keeps_permit_until_lease_ends() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let limits = Limiter::redis(server.url())
        .namespace(&namespace)
        .build()
        .unwrap();
    let exports = exports(OnStoreFailure::Error);
    let permit = limits
        .acquire_concurrency(&exports, KEY)
        .detached()
        .await
        .unwrap();
    server.kill();
    let released = limits.release_permit(&exports, KEY, permit.id()).await;
    assert!(released.unwrap_err().is_unavailable());
    let renewed = limits.renew_permit(&exports, KEY, permit.id()).await;
    assert!(renewed.unwrap_err().is_unavailable());
}

#[tokio::test]
async fn documented_permissions_suffice() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let keys = format!("~{namespace}|*");
    let user = ["ACL", "SETUSER", "checkout", "reset", "on", ">secret", &keys];
    server.command(&[&user[..], acl::SCRIPT, acl::CONCURRENCY].concat());
    let url = server.url_as("checkout:secret");
    let limits = Limiter::redis(url).namespace(&namespace).build().unwrap();
    let (exports, tokens) = (exports(OnStoreFailure::Error), tokens(OnStoreFailure::Error));
    let permit = limits
        .acquire_concurrency(&exports, KEY)
        .detached()
        .await
        .unwrap();
    limits.renew_permit(&exports, KEY, permit.id()).await.unwrap();
    limits.release_permit(&exports, KEY, permit.id()).await.unwrap();
    let reservation = limits.reserve(&tokens, KEY).cost(8).await.unwrap();
    let reservation = reservation.detach(LIFETIME).await.unwrap();
    let settled = limits
        .cancel_reservation(reservation.id(), [(&tokens, KEY)])
        .await;
    assert_eq!(settled.unwrap(), SettlementOutcome::Settled);
}
