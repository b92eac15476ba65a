//! Many tasks, limiters and processes on one key in one Redis, on its own clock: no window of time
//! admits more than its bound, and nearly all permits are used. Measured by the times of the
//! decisions.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test may panic, and its workers report on their standard output"
)]

mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use limiter_core::{Limiter, Policy};
use limiter_testing::RedisServer;
use support::promise::{self, Grant};
use support::{KEY, bucket, funnel, namespace, window};
use tokio::task::JoinSet;

const TASKS: usize = 64;
const LIMITERS: usize = 4;

/// Permits a second; every capacity here is half a second's worth or more.
const RATE: u64 = 500;
const CAPACITY: u64 = 250;
const WINDOW_MICROS: u64 = 500_000;

/// The bound of the larger policy of a rollout.
const LARGER_RATE: u64 = 700;
const LARGER_CAPACITY: u64 = 400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Bucket,
    Funnel,
    Window,
}

const SHAPES: [Shape; 3] = [Shape::Bucket, Shape::Funnel, Shape::Window];

impl Shape {
    fn small(self) -> Policy {
        match self {
            Self::Bucket => bucket("p", CAPACITY, RATE),
            Self::Funnel => funnel("p", CAPACITY, RATE),
            Self::Window => window("p", CAPACITY, "500ms"),
        }
    }

    fn large(self) -> Policy {
        match self {
            Self::Bucket => bucket("p", LARGER_CAPACITY, LARGER_RATE),
            Self::Funnel => funnel("p", LARGER_CAPACITY, LARGER_RATE),
            Self::Window => window("p", LARGER_CAPACITY, "500ms"),
        }
    }

    /// Asserts that no window of time exceeds its bound.
    fn assert_kept(self, log: &Log, larger: bool) {
        let (capacity, rate) = if larger {
            (LARGER_CAPACITY, LARGER_RATE)
        } else {
            (CAPACITY, RATE)
        };
        match self {
            Self::Window => {
                let limits = [(CAPACITY, WINDOW_MICROS), (LARGER_CAPACITY, WINDOW_MICROS)];
                promise::window_of_each(&log.grants, limits)
            }
            _ => promise::level(&log.grants, capacity * 1_000, (rate * 1_000, 1_000_000)),
        }
        .unwrap_or_else(|broken| unreachable!("{self:?}: {broken}"));
    }

    /// Asserts that a permit was denied only where it would have exceeded the bound.
    fn assert_used(self, log: &Log) {
        assert!(!log.denials.is_empty(), "{self:?}: the load exceeds the rate");
        match self {
            Self::Window => promise::window_is_used(&log.grants, &log.denials, CAPACITY, WINDOW_MICROS),
            _ => promise::level_is_used(
                &log.grants,
                &log.denials,
                CAPACITY * 1_000,
                (RATE * 1_000, 1_000_000),
            ),
        }
        .unwrap_or_else(|broken| unreachable!("{self:?}: {broken}"));
    }

    /// True if less than a hundredth of the smaller policy's permits was unused.
    fn is_used(self, log: &Log) -> bool {
        let asked_for = log.span() - self.idle_micros(log);
        let allowed = match self {
            // The permits of the whole windows in the run.
            Self::Window => CAPACITY * (asked_for / WINDOW_MICROS),
            _ => CAPACITY + RATE * asked_for / 1_000_000,
        };
        let granted = log.grants.len() as u64;
        println!(
            "{self:?}: granted {granted} of {allowed} in {} µs, {} decisions",
            log.span(),
            log.decisions
        );
        assert!(allowed > CAPACITY, "the run is too short for a result");
        granted * 100 >= allowed * 99
    }
}

impl Shape {
    /// The time without calls, because the machine did not schedule the tasks: permits are so
    /// frequent that a long gap between grants has no other cause.
    fn idle_micros(self, log: &Log) -> u64 {
        let usual = if self == Self::Window { WINDOW_MICROS } else { 0 };
        let gaps = log
            .grants
            .iter()
            .zip(log.grants.iter().skip(1))
            .map(|(one, next)| next.at - one.at);
        gaps.filter(|gap| *gap > usual + 100_000)
            .map(|gap| gap - usual)
            .sum()
    }
}

/// An overloaded machine leaves permits unused, which is no property of the limiter: then the run
/// is repeated. The bound is checked in every run.
const RUNS: u32 = 3;

/// The log of decisions.
#[derive(Debug, Default)]
struct Log {
    grants: Vec<Grant>,
    /// The times of denials in microseconds, at most one per task and millisecond.
    denials: Vec<u64>,
    decisions: u64,
    first: u64,
    last: u64,
}

impl Log {
    fn denied(&mut self, at: u64) {
        if self.denials.last().is_none_or(|last| last.abs_diff(at) >= 1_000) {
            self.denials.push(at);
        }
    }

    fn decided(&mut self, at: u64) {
        self.first = if self.decisions == 0 {
            at
        } else {
            self.first.min(at)
        };
        self.last = self.last.max(at);
        self.decisions += 1;
    }

    fn merge(&mut self, other: Self) {
        if other.decisions > 0 {
            self.first = if self.decisions == 0 {
                other.first
            } else {
                self.first.min(other.first)
            };
            self.last = self.last.max(other.last);
            self.decisions += other.decisions;
            self.grants.extend(other.grants);
            self.denials.extend(other.denials);
        }
    }

    /// From the first decision to the last, in microseconds.
    fn span(&self) -> u64 {
        self.last - self.first
    }

    /// Sorts the grants by time; at equal times those of the smaller policy come first, since their
    /// order is unknown.
    fn sorted(mut self) -> Self {
        self.grants.sort_by_key(|grant| (grant.at, grant.second));
        self
    }
}

/// Tasks on separate limiters request permits of one key without pauses, under these policies
/// alternately.
async fn load(url: &str, namespace: &str, policies: &[Policy], lasting: Duration) -> Log {
    let limiters: Vec<_> = (0..LIMITERS)
        .map(|_| Limiter::redis(url).namespace(namespace).build().unwrap())
        .collect();
    for limiter in &limiters {
        limiter.ready().await.unwrap();
    }
    let end = Instant::now() + lasting;
    let mut tasks = JoinSet::new();
    for (number, limits) in limiters.iter().cycle().take(TASKS).enumerate() {
        let (limits, policies) = (limits.clone(), policies.to_vec());
        tasks.spawn(async move {
            let mut log = Log::default();
            for (turn, policy) in policies.iter().enumerate().cycle().skip(number % policies.len()) {
                if Instant::now() >= end {
                    break;
                }
                let decision = limits.check(policy, KEY).await.unwrap();
                log.decided(decision.decided_at().as_micros());
                if decision.is_allowed() {
                    log.grants.push(Grant::of(&decision, 1, turn == 1));
                } else {
                    log.denied(decision.decided_at().as_micros());
                }
            }
            log
        });
    }
    let mut total = Log::default();
    while let Some(log) = tasks.join_next().await {
        total.merge(log.unwrap());
    }
    total.sorted()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_on_several_limiters_share_a_budget_exactly() {
    let mut loads = JoinSet::new();
    for shape in SHAPES {
        loads.spawn(async move {
            let url = RedisServer::shared().url();
            let log = load(&url, &namespace(), &[shape.small()], Duration::from_secs(5)).await;
            shape.assert_kept(&log, false);
            shape.assert_used(&log);
        });
    }
    while let Some(finished) = loads.join_next().await {
        finished.unwrap();
    }
}

/// A rollout: every task alternates between the old and the new policy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_and_new_policy_share_a_budget_exactly() {
    let mut loads = JoinSet::new();
    for shape in SHAPES {
        loads.spawn(async move {
            let url = RedisServer::shared().url();
            let policies = [shape.small(), shape.large()];
            for _ in 0..RUNS {
                let log = load(&url, &namespace(), &policies, Duration::from_secs(2)).await;
                shape.assert_kept(&log, true);
                let of_the_new = log.grants.iter().filter(|grant| grant.second).count();
                assert!(
                    (1..log.grants.len()).contains(&of_the_new),
                    "{shape:?}: both policies grant permits"
                );
                if shape.is_used(&log) {
                    return;
                }
            }
            unreachable!("{shape:?}: permits are left unused");
        });
    }
    while let Some(finished) = loads.join_next().await {
        finished.unwrap();
    }
}

const URL: &str = "LIMITER_EXACTNESS_URL";
const NAMESPACE: &str = "LIMITER_EXACTNESS_NAMESPACE";
const LASTING: Duration = Duration::from_secs(2);

/// Starts the test's own program again as worker processes, configured by the environment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_share_a_budget_exactly() {
    if let (Ok(url), Ok(namespace)) = (std::env::var(URL), std::env::var(NAMESPACE)) {
        for (number, log) in load_every_algorithm(&url, &namespace)
            .await
            .into_iter()
            .enumerate()
        {
            println!("\nlog {number} {} {} {}", log.decisions, log.first, log.last);
            for grant in log.grants {
                println!("grant {number} {}", grant.at);
            }
        }
        return;
    }
    for _ in 0..RUNS {
        if run_in_processes().await {
            return;
        }
    }
    unreachable!("permits are left unused");
}

/// Returns whether nearly all permits were used.
async fn run_in_processes() -> bool {
    let (url, namespace) = (RedisServer::shared().url(), namespace());
    let workers: Vec<_> = (0..3)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "processes_share_a_budget_exactly", "--nocapture"])
                .envs([(URL, &url), (NAMESPACE, &namespace)])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut logs = load_every_algorithm(&url, &namespace).await;
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        assert!(output.status.success(), "a worker failed");
        for (log, result) in logs
            .iter_mut()
            .zip(result(&String::from_utf8(output.stdout).unwrap()))
        {
            assert!(
                result.decisions > 0 && !result.grants.is_empty(),
                "a worker was granted no permit"
            );
            log.merge(result);
        }
    }
    let used = SHAPES.into_iter().zip(logs).map(|(shape, log)| {
        let log = log.sorted();
        shape.assert_kept(&log, false);
        shape.is_used(&log)
    });
    // Every check runs, regardless of the first result.
    used.fold(true, |all, used| all & used)
}

async fn load_every_algorithm(url: &str, namespace: &str) -> [Log; 3] {
    let [bucket, funnel, window] = SHAPES.map(|shape| [shape.small()]);
    let (bucket, funnel, window) = tokio::join!(
        load(url, namespace, &bucket, LASTING),
        load(url, namespace, &funnel, LASTING),
        load(url, namespace, &window, LASTING),
    );
    [bucket, funnel, window]
}

/// Parses the output of a worker between the lines of the test harness.
fn result(output: &str) -> [Log; 3] {
    let mut logs = <[Log; 3]>::default();
    for line in output.lines() {
        let (kind, numbers) = line.split_once(' ').unwrap_or_default();
        if kind != "log" && kind != "grant" {
            continue;
        }
        let numbers: Vec<u64> = numbers
            .split(' ')
            .map(|number| number.parse().expect("a number"))
            .collect();
        let log = |number: u64| usize::try_from(number).ok();
        match (kind, numbers.as_slice()) {
            ("log", &[number, decisions, first, last]) => {
                let log = log(number)
                    .and_then(|number| logs.get_mut(number))
                    .expect("a shape");
                (log.decisions, log.first, log.last) = (decisions, first, last);
            }
            ("grant", &[number, at]) => {
                let log = log(number)
                    .and_then(|number| logs.get_mut(number))
                    .expect("a shape");
                log.grants.push(Grant {
                    at,
                    cost: 1_000,
                    second: false,
                });
            }
            _ => unreachable!("{line}"),
        }
    }
    logs
}
