//! Four processes that lease from one key in one Redis, on its own clock, one of which is killed
//! while it holds permits: no window of time exceeds the bound. Measured by the times at which
//! permits were spent in any process.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and its workers report on their standard output"
)]

mod support;

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use limiter_core::{Limiter, OnStoreFailure, Origin, Policy};
use limiter_testing::RedisServer;
use support::{KEY, PATIENT, namespace};
use tokio::task::JoinSet;

const CAPACITY: u64 = 1_000;
const RATE: u64 = 2_000;
const LEASE: &str = "400ms";
const LASTING: Duration = Duration::from_millis(3_000);
/// They call at maximum speed for this time, and then stop for the same time while permits refill.
const BURST: u64 = 150_000;
const TASKS: usize = 4;
const PROCESSES: usize = 4;

const URL: &str = "LIMITER_LEASES_URL";
const NAMESPACE: &str = "LIMITER_LEASES_NAMESPACE";

fn shapes() -> [Policy; 2] {
    [Policy::token_bucket("b"), Policy::funnel("f")].map(|shape| {
        let shape = shape.capacity(CAPACITY).rate(RATE).lease(LEASE);
        let shape = shape.deadline(PATIENT).on_store_failure(OnStoreFailure::Error);
        shape.build().unwrap()
    })
}

fn micros_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_micros()).unwrap()
}

/// A permit that was spent between two moments, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Grant {
    not_before: u64,
    not_after: u64,
    leased: bool,
}

/// Starts the test's own program again as worker processes, configured by the environment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leasing_processes_keep_quota_after_a_kill() {
    if let (Ok(url), Ok(namespace)) = (std::env::var(URL), std::env::var(NAMESPACE)) {
        work(&url, &namespace).await;
        return;
    }
    let (url, namespace) = (RedisServer::shared().url(), namespace());
    let mut workers: Vec<Child> = (0..PROCESSES)
        .map(|_| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args([
                "--exact",
                "leasing_processes_keep_quota_after_a_kill",
                "--nocapture",
            ]);
            command.envs([(URL, &url), (NAMESPACE, &namespace)]);
            command.stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let readers: Vec<_> = workers
        .iter_mut()
        .map(|worker| {
            let mut output = worker.stdout.take().unwrap();
            std::thread::spawn(move || {
                let mut text = String::new();
                output.read_to_string(&mut text).unwrap();
                text
            })
        })
        .collect();
    tokio::time::sleep(LASTING / 2).await;
    workers.first_mut().unwrap().kill().unwrap();
    let mut logs = [Vec::new(), Vec::new()];
    for (number, reader) in readers.into_iter().enumerate() {
        let result = result(&reader.join().unwrap());
        for (log, grants) in logs.iter_mut().zip(result) {
            let leased = grants.iter().filter(|grant| grant.leased).count();
            println!("process {number}: {} granted, {leased} of a loan", grants.len());
            assert!(leased > 0, "a process leased no tokens");
            log.extend(grants);
        }
    }
    for mut worker in workers {
        worker.wait().unwrap();
    }
    for log in logs {
        assert_kept(log);
    }
}

async fn work(url: &str, namespace: &str) {
    let limits = Limiter::redis(url).namespace(namespace).build().unwrap();
    limits.ready().await.unwrap();
    let end = Instant::now() + LASTING;
    let mut tasks = JoinSet::new();
    for (number, policy) in shapes().into_iter().enumerate() {
        for _ in 0..TASKS {
            let (limits, policy) = (limits.clone(), policy.clone());
            tasks.spawn(async move {
                while Instant::now() < end {
                    let before = micros_now();
                    if (before / BURST) % 2 != 0 {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        continue;
                    }
                    let decision = limits.check(&policy, KEY).await.unwrap();
                    if !decision.is_allowed() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        continue;
                    }
                    let leased = decision.origin() == Origin::Lease;
                    let at = decision.decided_at().as_micros();
                    let (from, to) = if leased { (before, micros_now()) } else { (at, at) };
                    println!("grant {number} {from} {to} {leased}");
                    tokio::task::yield_now().await;
                }
            });
        }
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    limits.shutdown(Duration::from_secs(5)).await;
}

/// Parses the output of a worker; the last line of a killed one may be incomplete.
fn result(output: &str) -> [Vec<Grant>; 2] {
    let mut logs = [Vec::new(), Vec::new()];
    for line in output.lines() {
        let words: Vec<_> = line.split(' ').collect();
        if let ["grant", number, from, to, leased @ ("true" | "false")] = words[..] {
            logs.get_mut(number.parse::<usize>().unwrap())
                .unwrap()
                .push(Grant {
                    not_before: from.parse().unwrap(),
                    not_after: to.parse().unwrap(),
                    leased: leased == "true",
                });
        }
    }
    logs
}

/// From any grant to any later one at most the capacity plus the refill in between. A grant counts
/// from the earliest to the latest time at which it may have been made.
///
/// With S(k) the permits before the k-th and f(k) = S(k) − rate · not_before(k): S(j) + 1 − rate ·
/// latest(j) ≤ capacity + f(i) for every i ≤ j, where latest(j) is the latest end of any grant up
/// to j.
fn assert_kept(mut log: Vec<Grant>) {
    const MICROS: i128 = 1_000_000;
    log.sort_by_key(|grant| grant.not_before);
    let (mut least, mut latest, mut most) = (i128::MAX, 0, i128::MIN);
    for (count, grant) in (0_i128..).zip(&log) {
        latest = latest.max(grant.not_after);
        least = least.min(count * MICROS - i128::from(RATE * grant.not_before));
        let excess = (count + 1) * MICROS - i128::from(RATE * latest) - least;
        most = most.max(excess);
        assert!(
            excess <= i128::from(CAPACITY) * MICROS,
            "{} too many up to {grant:?}",
            excess / MICROS - i128::from(CAPACITY)
        );
    }
    println!("of {CAPACITY} at most {} were used", most / MICROS);
    assert!(
        most * 4 >= i128::from(CAPACITY) * MICROS * 3,
        "the calls used too little of the capacity for a result"
    );
}
