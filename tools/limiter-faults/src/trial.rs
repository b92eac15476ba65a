//! The run of one fault, in its own thread and runtime, with a time limit.

use std::fmt;
use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use limiter_core::typestate::LevelParams;
use limiter_core::{Limiter, OnStoreFailure, Policy, PolicyBuilder, RedisBuilder};
use tokio::runtime::{Builder, Runtime};

use crate::ledger::{Outages, Quota};
use crate::report::{Report, Row};
use crate::run::Run;

/// The maximum time between the recovery of the store and decisions by it.
pub(crate) const HEALTHY_WITHIN: Duration = Duration::from_millis(500);
/// One in this number of later calls may fail because of the machine.
const UNHEALTHY_ONE_IN: usize = 100;
/// The maximum share of failed later calls, for all causes.
const UNHEALTHY_IN_ANY_CASE_ONE_IN: usize = 3;

/// The usual quota of a load: small enough that every key is limited all the time.
pub(crate) const QUOTA: Quota = Quota {
    capacity: 20,
    per_second: 5,
};

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// The environment of a fault.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) quick: bool,
    pub(crate) seed: u64,
    pub(crate) report: Report,
    pub(crate) runtime: Runtime,
}

/// A fault of the suite.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    pub(crate) run: fn(&Trial),
}

impl Fault {
    /// Maximum run time, far above the normal one; a fault that exceeds it has hung.
    pub(crate) fn limit(&self, quick: bool) -> Duration {
        match (self.name, quick) {
            ("soak", true) => Duration::from_secs(120),
            ("soak", false) => Duration::from_secs(720),
            ("hostile-keys", false) => Duration::from_secs(600),
            (_, true) => Duration::from_secs(60),
            (_, false) => Duration::from_secs(180),
        }
    }
}

/// Counts all panics: a runtime catches the panics of its tasks.
pub(crate) fn count_panics() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        usual(info);
    }));
}

/// Runs one fault within its time limit.
pub(crate) fn run(fault: &'static Fault, quick: bool, seed: u64) -> Vec<Row> {
    let (report, panics, started) = (
        Report::of(fault.name),
        PANICS.load(Ordering::Relaxed),
        Instant::now(),
    );
    let (over, wait) = mpsc::channel();
    let measured = report.clone();
    let thread = thread::spawn(move || {
        let trial = Trial::new(quick, seed, measured);
        (fault.run)(&trial);
        trial.runtime.shutdown_timeout(Duration::from_secs(5));
        // The receiver is gone after a hang.
        let _ = over.send(());
    });
    let limit = fault.limit(quick);
    let ended = wait.recv_timeout(limit);
    // Disconnected: the thread panicked, which the hook has counted.
    let hung = matches!(ended, Err(mpsc::RecvTimeoutError::Timeout));
    if !hung {
        let _ = thread.join();
    }
    let panics = PANICS.load(Ordering::Relaxed) - panics;
    let figure = match (hung, panics) {
        (true, _) => format!("hangs: not over after {limit:?}"),
        (false, 0) => format!("over after {:.1} s, no panic", started.elapsed().as_secs_f64()),
        (false, panics) => format!("{panics} panics"),
    };
    report.row(figure, "no panic, no hang", !hung && panics == 0);
    report.rows()
}

impl Trial {
    fn new(quick: bool, seed: u64, report: Report) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        Self {
            quick,
            seed,
            report,
            runtime: runtime.expect("threads for a runtime"),
        }
    }

    /// Selects the value for the short or for the full suite.
    pub(crate) fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Runs a future to its end.
    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Several limiters on one server, as if they were several processes, prepared.
    pub(crate) fn limiters(&self, count: usize, url: &str) -> Vec<Limiter> {
        self.limiters_with(count, url, |builder| builder)
    }

    /// As [`limiters`](Self::limiters), with custom settings.
    pub(crate) fn limiters_with(
        &self,
        count: usize,
        url: &str,
        settings: impl Fn(RedisBuilder) -> RedisBuilder,
    ) -> Vec<Limiter> {
        let limiters: Vec<Limiter> = (0..count)
            .map(|_| {
                settings(Limiter::redis(url))
                    .namespace(namespace())
                    .build()
                    .expect("a valid limiter")
            })
            .collect();
        self.prepare(&limiters);
        limiters
    }

    pub(crate) fn prepare(&self, limiters: &[Limiter]) {
        for limits in limiters {
            self.wait(async { limits.ready().await })
                .expect("a server that runs");
        }
    }

    /// The gates of a recovery: fast and permanent.
    pub(crate) fn judge_recovery(&self, run: &Run, back: Instant) {
        let healed = run.healed(back);
        let figure = match healed {
            Some(span) => format!("healthy {} after the store", Shown(span.measured)),
            None => "not healthy again".to_owned(),
        };
        let ok = healed.is_some_and(|span| span.fair <= HEALTHY_WITHIN);
        self.report
            .row(figure, format!("≤ {}", Shown(HEALTHY_WITHIN)), ok);
        self.judge_later_calls(run, back);
    }

    /// The gate of the calls after the recovery.
    pub(crate) fn judge_later_calls(&self, run: &Run, back: Instant) {
        let sent_at = run.calls_from(back + HEALTHY_WITHIN);
        let figure = format!(
            "{} of {} later calls not decided by the store, {} without the machine's fault",
            sent_at.unhealthy, sent_at.all, sent_at.unexplained
        );
        let back_for_good = sent_at.unexplained * UNHEALTHY_ONE_IN <= sent_at.all
            && sent_at.unhealthy * UNHEALTHY_IN_ANY_CASE_ONE_IN < sent_at.all;
        self.report
            .row(figure, format!("≤ 1 in {UNHEALTHY_ONE_IN}"), back_for_good);
    }

    /// The gate of the time to decide during an outage: over the whole outage, and over its
    /// beginning, before the circuit breaker rejects most calls.
    pub(crate) fn judge_decision_time(&self, run: &Run, from: Instant, to: Instant) {
        let maximum = Policy::DEFAULT_DEADLINE + Duration::from_millis(5);
        let (all, first) = (
            run.p99(from, to),
            run.p99(from, to.min(from + Duration::from_secs(1))),
        );
        let figure = format!(
            "p99 time to decide {} ({} in the first second, {} without the machine's own delays)",
            Shown(all.measured),
            Shown(first.measured),
            Shown(first.fair)
        );
        let ok = all.fair.max(first.fair) <= maximum;
        self.report.row(figure, format!("≤ {}", Shown(maximum)), ok);
        self.judge_hung(run);
    }

    pub(crate) fn judge_hung(&self, run: &Run) {
        self.report.at_most("calls hung", run.hung, 0);
    }

    /// The gate on the calls that were admitted beyond the quota under any one key.
    pub(crate) fn judge_extra(&self, run: &Run, outages: Outages, losses: u64) {
        self.judge_extra_of(run, QUOTA, outages, losses);
    }

    /// Judges additional calls of a load with this quota.
    pub(crate) fn judge_extra_of(&self, run: &Run, quota: Quota, outages: Outages, losses: u64) {
        let extra = run.extra(quota);
        let figure = format!(
            "{} extra admitted under one key, {} under all",
            extra.worst, extra.total
        );
        let maximum = quota.bound(outages, losses, run.limiters());
        self.report.row(
            figure,
            format!("≤ {maximum} a key ({outages:?} outages, {losses} losses of data)"),
            extra.worst <= maximum,
        );
    }
}

/// Returns the policy of [`QUOTA`], with the default failure mode and deadline.
pub(crate) fn usual_policy() -> Policy {
    usual_policy_named("load")
}

/// Returns the usual policy with another name, so with separate state.
pub(crate) fn usual_policy_named(name: &str) -> Policy {
    bucket(name).build().expect("a valid policy")
}

/// Returns the usual policy for calls that must not time out; failures are returned as errors.
pub(crate) fn patient_policy() -> Policy {
    let patient = bucket("load")
        .deadline(Duration::from_secs(5))
        .on_store_failure(OnStoreFailure::Error);
    patient.build().expect("a valid policy")
}

fn bucket(name: &str) -> PolicyBuilder<LevelParams> {
    Policy::token_bucket(name)
        .capacity(QUOTA.capacity)
        .rate(QUOTA.per_second)
}

/// Returns the namespace shared by the limiters of one trial.
pub(crate) fn namespace() -> String {
    format!("faults:{}", std::process::id())
}

/// A duration as people read it.
pub(crate) struct Shown(pub(crate) Duration);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms", self.0.as_secs_f64() * 1_000.0)
    }
}
