//! Two processes on one server, each with many tasks that acquire and release; a counter in Redis
//! counts the holders.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bb8_redis::redis;
use limiter_core::{Limiter, ManualClock};
use limiter_testing::RedisServer;

use super::support::{KEY, PATIENT, namespace, secs};
use super::{await_remaining, on, policy};

const MAX: u64 = 5;
const TASKS: usize = 32;
const CYCLES: u64 = 5_000;
const INSIDE: &str = "inside";
/// Exists as soon as all permits were held at once.
const REACHED: &str = "reached";
/// Bounds the wait for that; a read takes a round trip.
const READS: usize = 100_000;

/// Environment variables that pass settings to a child process.
const URL: &str = "LIMITER_TEST_CYCLES_URL";
const COUNTER: &str = "LIMITER_TEST_CYCLES_COUNTER";
const NAMESPACE: &str = "LIMITER_TEST_CYCLES_NAMESPACE";

fn shared() -> limiter_core::Policy {
    policy(u32::try_from(MAX).unwrap(), secs(30))
}

/// Runs in the child; does nothing in the parent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_acquires_and_releases() {
    let result = [URL, COUNTER, NAMESPACE].map(std::env::var);
    let [Ok(url), Ok(counter), Ok(namespace)] = result else {
        return;
    };
    let limits = Limiter::redis(url).namespace(namespace).build().unwrap();
    let counter = redis::Client::open(counter).unwrap();
    let counter = counter.get_multiplexed_async_connection().await.unwrap();
    let (left, most_inside) = (Arc::new(AtomicU64::new(CYCLES)), Arc::new(AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        let (limits, policy, mut counter) = (limits.clone(), shared(), counter.clone());
        let (left, most_inside) = (Arc::clone(&left), Arc::clone(&most_inside));
        tasks.spawn(async move {
            let take = |left: u64| left.checked_sub(1);
            let mut is_first = true;
            while left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                .is_ok()
            {
                let permit = limits
                    .acquire_concurrency(&policy, KEY)
                    .timeout(PATIENT)
                    .await
                    .unwrap();
                let inside: u64 = redis::cmd("INCR")
                    .arg(INSIDE)
                    .query_async(&mut counter)
                    .await
                    .unwrap();
                most_inside.fetch_max(inside, Ordering::SeqCst);
                if std::mem::take(&mut is_first) {
                    hold_until_full(&mut counter, inside).await;
                }
                let _: u64 = redis::cmd("DECR")
                    .arg(INSIDE)
                    .query_async(&mut counter)
                    .await
                    .unwrap();
                drop(permit);
            }
        });
    }
    tasks.join_all().await;
    // Reports the remaining counts too.
    limits.shutdown(PATIENT).await;
    println!("\nmost: {}", most_inside.load(Ordering::SeqCst));
}

/// Returns when all permits were held at once, in the first cycle of the tasks.
async fn hold_until_full(counter: &mut redis::aio::MultiplexedConnection, inside: u64) {
    if inside == MAX {
        let set = redis::cmd("SET").arg(REACHED).arg(1).query_async(counter).await;
        return set.unwrap();
    }
    for _ in 0..READS {
        let reached: Option<u64> = redis::cmd("GET").arg(REACHED).query_async(counter).await.unwrap();
        if reached.is_some() {
            return;
        }
    }
}

struct Cycles(Child);

impl Cycles {
    fn start(server: &RedisServer, namespace: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "--exact",
                "two_processes::child_acquires_and_releases",
                "--nocapture",
            ])
            .env(URL, server.url())
            .env(COUNTER, server.url_as(""))
            .env(NAMESPACE, namespace)
            .stdout(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Returns the maximum number of holders of both processes that this process observed.
    fn most(mut self) -> u64 {
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        let most = lines.find_map(|line| line.strip_prefix("most: ")?.parse().ok());
        most.expect("the child must print its result")
    }
}

impl Drop for Cycles {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn cycles_of_two_processes_keep_maximum_and_leak_nothing() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let children = [(); 2].map(|()| Cycles::start(&server, &namespace));
    let most = tokio::task::spawn_blocking(move || children.map(Cycles::most));
    let most = most.await.unwrap();
    assert!(most.iter().all(|most| *most <= MAX), "{most:?} of {MAX}");
    assert!(
        most.contains(&MAX),
        "{most:?} of {MAX}: the maximum was never reached"
    );
    assert_eq!(server.command(&["GET", INSIDE]).integer(), 0);
    await_remaining(&on(&server, &namespace), &shared(), MAX).await;
}

/// After a second of transfers, the next waiter of this process does not query Redis at once.
#[tokio::test]
async fn awaited_release_after_transfers_gives_other_process_a_turn() {
    let (server, namespace, clock) = (RedisServer::start(), namespace(), ManualClock::new());
    let limiter = || {
        let builder = Limiter::redis(server.url()).namespace(&namespace);
        builder.clock(&clock).build().unwrap()
    };
    let (limits, other) = (limiter(), limiter());
    let policy = policy(1, secs(30));
    let wait = || {
        Box::pin(
            limits
                .acquire_concurrency(&policy, KEY)
                .timeout(PATIENT)
                .into_future(),
        )
    };
    let first = limits.acquire_concurrency(&policy, KEY).await.unwrap();
    let (mut second, mut third) = (wait(), wait());
    for waiting in [&mut second, &mut third] {
        assert!(tokio::time::timeout(Duration::ZERO, waiting).await.is_err());
    }
    drop(first);
    let second = second.await.unwrap();
    clock.advance(secs(1));
    second.release().await.unwrap();
    tokio::select! {
        biased;
        permit = &mut third => panic!("{permit:?}"),
        permit = other.acquire_concurrency(&policy, KEY) => assert!(permit.is_ok(), "{permit:?}"),
    }
}
