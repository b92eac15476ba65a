//! Concurrency limits with real time, processes and servers: crashed holders, failing servers,
//! ended runtimes.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may panic, and its child process prints its progress"
)]

#[path = "concurrency/outages.rs"]
mod outages;
#[path = "concurrency/stored_leases.rs"]
mod stored_leases;
mod support;
#[path = "concurrency/two_processes.rs"]
mod two_processes;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use limiter_core::concurrency::ConcurrencyPermit;
use limiter_core::{
    Decision, Limiter, ManualClock, OnStoreFailure, Origin, Policy, Rejection, StoreErrorKind,
};
use limiter_testing::{Proxy, RedisServer, acl};
use support::{KEY, PATIENT, SLACK, limiter, millis, namespace, secs};

fn policy(max: u32, lease: Duration) -> Policy {
    let policy = Policy::concurrency("p").max(max).lease(lease);
    policy
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap()
}

fn on(server: &RedisServer, namespace: &str) -> Limiter {
    Limiter::redis(server.url()).namespace(namespace).build().unwrap()
}

async fn remaining(limits: &Limiter, policy: &Policy) -> u64 {
    limits.peek(policy, KEY).await.unwrap().remaining()
}

async fn await_remaining(limits: &Limiter, policy: &Policy, expected: u64) {
    let comes = async {
        loop {
            match limits.peek(policy, KEY).await {
                Ok(decision) if decision.remaining() == expected => return,
                _ => tokio::time::sleep(millis(1)).await,
            }
        }
    };
    tokio::time::timeout(PATIENT, comes)
        .await
        .expect("it never comes to that");
}

fn first_lease_ends_after(denied: &Rejection) -> Duration {
    denied.decision().unwrap().denied_by().unwrap().retry_after()
}

fn expires_after(decision: &Decision) -> Duration {
    decision.limits().first().unwrap().expires_after()
}

fn on_separate_runtime<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}

/// Environment variable with the parameters of the child that holds a permit.
const HOLDER: &str = "LIMITER_TEST_HOLDER";
/// Renewed after a third. Long enough that a child that a busy machine delays by seconds keeps it.
const LEASE_OF_CHILD: Duration = secs(6);

/// Runs in the child; does nothing in the parent.
#[tokio::test]
async fn child_process_holds_permit() {
    let Ok(result) = std::env::var(HOLDER) else {
        return;
    };
    let (url, namespace) = result.split_once(' ').unwrap();
    let limits = Limiter::redis(url).namespace(namespace).build().unwrap();
    let permit = limits
        .acquire_concurrency(&policy(1, LEASE_OF_CHILD), KEY)
        .await
        .unwrap();
    println!("\nheld");
    permit.lost().await;
}

struct Holder(Child);

impl Holder {
    fn start(server: &RedisServer, namespace: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "child_process_holds_permit", "--nocapture"])
            .env(HOLDER, format!("{} {namespace}", server.url()))
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "held"));
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // On Unix this is SIGKILL, which a process cannot handle.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn permits_of_killed_process_expire_with_lease() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let limits = on(&server, &namespace);
    let policy = policy(1, LEASE_OF_CHILD);
    let holder = Holder::start(&server, &namespace);
    let held_until = Instant::now() + LEASE_OF_CHILD * 3 / 2;
    while Instant::now() < held_until {
        assert_eq!(
            remaining(&limits, &policy).await,
            0,
            "the child is alive and renews its lease"
        );
        tokio::time::sleep(millis(5)).await;
    }
    drop(holder);
    let denied = limits.acquire_concurrency(&policy, KEY).await.unwrap_err();
    let (killed, wait) = (Instant::now(), first_lease_ends_after(&denied));
    assert!(wait > LEASE_OF_CHILD / 2 && wait <= LEASE_OF_CHILD, "{wait:?}");
    let permit = limits
        .acquire_concurrency(&policy, KEY)
        .timeout(PATIENT)
        .await
        .unwrap();
    let took = killed.elapsed();
    assert!(
        took + millis(5) >= wait && took < wait + SLACK,
        "{took:?} of {wait:?}"
    );
    permit.release().await.unwrap();
}

#[tokio::test]
async fn held_permit_outlives_many_leases() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let (limits, other) = (on(&server, &namespace), on(&server, &namespace));
    let policy = policy(1, secs(1));
    let permit = limits.acquire_concurrency(&policy, KEY).await.unwrap();
    let until = Instant::now() + secs(4);
    while Instant::now() < until {
        assert!(
            other
                .acquire_concurrency(&policy, KEY)
                .await
                .unwrap_err()
                .is_limited()
        );
        tokio::time::sleep(millis(2)).await;
    }
    assert!(permit.is_valid());
    permit.release().await.unwrap();
    assert!(other.acquire_concurrency(&policy, KEY).await.is_ok());
}

/// A released permit is available to other processes at once, and their waiters get a turn.
#[tokio::test]
async fn two_processes_keep_maximum_and_both_get_turns() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let both = [on(&server, &namespace), on(&server, &namespace)];
    let policy = policy(3, secs(30));
    let (inside, until) = (Arc::new(AtomicU64::new(0)), Instant::now() + secs(4));
    let mut tasks = tokio::task::JoinSet::new();
    for (number, limits) in both.iter().enumerate() {
        for _ in 0..16 {
            let (limits, policy, inside) = (limits.clone(), policy.clone(), Arc::clone(&inside));
            tasks.spawn(async move {
                let mut times = 0_u64;
                while Instant::now() < until {
                    let permit = limits
                        .acquire_concurrency(&policy, KEY)
                        .timeout(PATIENT)
                        .await
                        .unwrap();
                    assert!(inside.fetch_add(1, Ordering::SeqCst) < 3);
                    tokio::time::sleep(millis(2)).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                    times += 1;
                }
                (number, times)
            });
        }
    }
    let mut turns = [0; 2];
    for (number, times) in tasks.join_all().await {
        *turns.get_mut(number).unwrap() += times;
    }
    assert!(turns.iter().all(|turns| *turns > 100), "{turns:?}");
    await_remaining(&both[0], &policy, 3).await;
}

/// A timeout of the caller is no failure of Redis: the local share applies only in an outage.
#[tokio::test]
async fn wait_ending_during_query_keeps_maximum() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let proxy = Proxy::start(server.port());
    let behind = Limiter::redis(proxy.url());
    let far = behind.namespace(&namespace).build().unwrap();
    let near = on(&server, &namespace);
    let local = Policy::concurrency("p")
        .max(1)
        .lease(secs(30))
        .deadline(PATIENT)
        .build()
        .unwrap();
    far.ready().await.unwrap();
    let held = near.acquire_concurrency(&local, KEY).await.unwrap();
    proxy.set_delay(millis(50));
    for timeout in [1, 5, 20, 5, 1, 20, 5, 1_000, 1_200] {
        let answer = far
            .acquire_concurrency(&local, KEY)
            .timeout(millis(timeout))
            .await;
        let Err(Rejection::TimedOut { decision, .. }) = answer else {
            panic!("{timeout} ms: {answer:?}")
        };
        let result = decision.map(|denied| (denied.origin(), denied.remaining()));
        // The first reply takes 100 ms.
        assert_eq!(
            result,
            (timeout >= 1_000).then_some((Origin::Redis, 0)),
            "{timeout} ms"
        );
    }
    let decided = far.acquire_concurrency(&local, "another").await.unwrap();
    assert_eq!(
        decided.decision().origin(),
        Origin::Redis,
        "no timeout counts as a failure of the server"
    );
    held.release().await.unwrap();
    for _ in 0..3 {
        let answer = far.acquire_concurrency(&local, KEY).timeout(millis(20)).await;
        assert!(matches!(answer, Err(Rejection::TimedOut { .. })), "{answer:?}");
    }
    await_remaining(&near, &local, 1).await;
}

/// More leases than one call can renew, all due at the same time.
#[tokio::test]
async fn reset_removes_foreign_permits_only() {
    let (server, namespace, clock) = (RedisServer::start(), namespace(), ManualClock::new());
    let limiter = || {
        let builder = Limiter::redis(server.url()).namespace(&namespace);
        builder.clock(&clock).build().unwrap()
    };
    let (limits, other) = (limiter(), limiter());
    let policy = policy(10_000, secs(30));
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for cost in [1_024_u32, 500, 1_024, 3] {
        own.push(limits.acquire_concurrency(&policy, KEY).cost(cost).await.unwrap());
        others.push(other.acquire_concurrency(&policy, KEY).cost(cost).await.unwrap());
    }
    clock.advance(millis(1));
    for cost in [7_u32, 1_000] {
        own.push(limits.acquire_concurrency(&policy, KEY).cost(cost).await.unwrap());
        others.push(other.acquire_concurrency(&policy, KEY).cost(cost).await.unwrap());
    }
    let held: u64 = 1_024 + 500 + 1_024 + 3 + 7 + 1_000;
    assert_eq!(remaining(&limits, &policy).await, 10_000 - 2 * held);
    limits.reset(&policy, KEY).await.unwrap();
    assert_eq!(remaining(&limits, &policy).await, 10_000 - held);
    assert!(own.iter().all(ConcurrencyPermit::is_valid));
    drop((own, others));
    await_remaining(&limits, &policy, 10_000).await;
}

#[tokio::test]
async fn reset_keeps_pending_local_acquisition() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let limits = on(&server, &namespace);
    let policy = policy(64, secs(30));
    let mut permits = Vec::new();
    for left in (0..64).rev() {
        // Redis admits it before the reset, and this process receives the reply afterwards.
        let entering = limits.acquire_concurrency(&policy, KEY).into_future();
        let (permit, reset) = tokio::join!(entering, limits.reset(&policy, KEY));
        reset.unwrap();
        permits.push(permit.unwrap());
        assert_eq!(remaining(&limits, &policy).await, left);
    }
    assert!(permits.iter().all(ConcurrencyPermit::is_valid));
}

#[tokio::test]
async fn peek_changes_nothing() {
    let (server, namespace, clock) = (RedisServer::start(), namespace(), ManualClock::new());
    let builder = Limiter::redis(server.url()).namespace(&namespace);
    let limits = builder.clock(&clock).build().unwrap();
    let policy = policy(3, secs(30));
    let _held = limits.acquire_concurrency(&policy, KEY).cost(2).await.unwrap();
    // Now they lie too far ahead.
    clock.step_back(secs(3_600));
    let key = format!("{namespace}|cc|p|{{k}}");
    let stored = || {
        let members = server.command(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]);
        let members = members.items().iter().map(|item| format!("{item:?}"));
        members.collect::<Vec<_>>()
    };
    let before = stored();
    let result = limits.peek(&policy, KEY).await.unwrap();
    assert_eq!(stored(), before);
    assert_eq!((result.remaining(), result.reset_after()), (1, secs(30)));
}

#[tokio::test]
async fn waiter_cancelled_during_query_holds_no_permit() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    let policy = policy(2, secs(30));
    limits.ready().await.unwrap();
    server.pause();
    for _ in 0..4 {
        let entering = limits.acquire_concurrency(&policy, KEY).into_future();
        assert!(tokio::time::timeout(millis(20), entering).await.is_err());
    }
    server.resume();
    await_remaining(&limits, &policy, 2).await;
    let permits: Vec<ConcurrencyPermit> = vec![
        limits
            .acquire_concurrency(&policy, KEY)
            .timeout(secs(10))
            .await
            .unwrap(),
        limits
            .acquire_concurrency(&policy, KEY)
            .timeout(secs(10))
            .await
            .unwrap(),
    ];
    drop(permits);
    await_remaining(&limits, &policy, 2).await;
}

#[test]
fn permit_outlives_runtime_of_acquisition() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    let policy = policy(1, millis(900));
    let permit = on_separate_runtime(async { limits.acquire_concurrency(&policy, KEY).await.unwrap() });
    on_separate_runtime(async {
        let until = Instant::now() + secs(3);
        while Instant::now() < until {
            assert!(permit.is_valid());
            assert_eq!(remaining(&limits, &policy).await, 0);
            tokio::time::sleep(millis(10)).await;
        }
    });
    // Without a runtime the release is not sent until the limiter is used again.
    drop(permit);
    on_separate_runtime(async {
        let permit = limits
            .acquire_concurrency(&policy, KEY)
            .timeout(PATIENT)
            .await
            .unwrap();
        permit.release().await.unwrap();
    });
}
