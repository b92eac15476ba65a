//! Tasks that call in a closed loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Barrier;
use tokio::task::{JoinHandle, consume_budget};

use super::{Load, Pace};
use crate::contender::{Contender, ContenderVisitor, Decide, Mode, Setup, introduce};
use crate::environment::Environment;
use crate::keys::{Order, Walk, names};
use crate::latency::Latencies;
use crate::sample::{Sample, us_each};
use crate::usage::{self, THREADS};

const WARM: u8 = 0;
const MEASURED: u8 = 1;
const OVER: u8 = 2;

/// The longest time in which the keys are filled.
const PATIENCE: Duration = Duration::from_secs(400);

/// One of this many decisions of less than a microsecond is timed: a reading of the clock takes
/// longer than such a decision.
const TIMED_EVERY: u64 = 16;

/// Returns one turn of a contender under this load.
pub(crate) fn turn(
    name: &str,
    load: &Load,
    contender: Contender,
    environment: &Environment,
    pace: Pace,
) -> Sample {
    for server in environment.servers(load.place) {
        server.command(&["FLUSHALL"]);
    }
    let runtime = runtime();
    let setup = Setup {
        address: environment.address(load.place),
        prefix: format!("bench-{}-{name}", contender.name()),
        quota: load.quota,
        mode: load.mode,
        limits: load.limits,
        keys: names(load.distribution.keys()),
    };
    let progress = Arc::new(Progress::default());
    let tasks = Tasks {
        progress: Arc::clone(&progress),
        load: *load,
    };
    // Tasks are spawned on the runtime's threads; this one only waits.
    let spawned = runtime.block_on(introduce(contender, setup, tasks));
    let handles = spawned.unwrap_or_else(|| panic!("{} decides nothing in Redis", contender.name()));
    progress.wait_until_filled(&handles);

    thread::sleep(pace.warm_up);
    let spent = || (usage::servers(environment.servers(load.place)), usage::client());
    let before = spent();
    let started = Instant::now();
    progress.phase.store(MEASURED, Ordering::Relaxed);
    thread::sleep(pace.window);
    progress.phase.store(OVER, Ordering::Relaxed);
    let took = started.elapsed();
    let after = spent();

    let counts = runtime.block_on(LoopCounts::sum(handles));
    // A contender's background tasks end with its turn.
    runtime.shutdown_timeout(Duration::from_secs(1));
    counts.check(load, contender);
    let mut sample = Sample::new(counts.decisions, took, &counts.latencies);
    sample.server_us = Some(us_each(after.0.saturating_sub(before.0), counts.decisions));
    let client = after
        .1
        .zip(before.1)
        .map(|(after, before)| after.saturating_sub(before));
    sample.client_us = client.map(|spent| us_each(spent, counts.decisions));
    sample
}

/// Returns the default runtime: one worker for each processor.
pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .thread_name(THREADS)
        .enable_all()
        .build()
        .expect("threads can be had")
}

/// The phase of the tasks, and the last one.
#[derive(Debug, Default)]
struct Progress {
    phase: AtomicU8,
    /// The number of tasks that have called with all of their keys once.
    filled: AtomicUsize,
}

impl Progress {
    fn wait_until_filled(&self, tasks: &[JoinHandle<LoopCounts>]) {
        let begun = Instant::now();
        while self.filled.load(Ordering::Relaxed) < tasks.len() {
            let lost = tasks.iter().any(JoinHandle::is_finished) || begun.elapsed() > PATIENCE;
            assert!(!lost, "a task does not get its answers");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[derive(Debug)]
struct Tasks {
    progress: Arc<Progress>,
    load: Load,
}

impl ContenderVisitor for Tasks {
    type Answer = Vec<JoinHandle<LoopCounts>>;

    async fn meet<D: Decide>(self, contender: D) -> Self::Answer {
        let (contender, order) = (Arc::new(contender), Order::new(self.load.distribution));
        let (tasks, keys) = (
            self.load.tasks,
            self.load.distribution.keys().min(self.load.filled),
        );
        let may_be_quick = self.load.denies() || self.load.mode == Mode::Leased;
        let every = if may_be_quick { TIMED_EVERY } else { 1 };
        let all_filled = Arc::new(Barrier::new(tasks));
        let start = |task| {
            let (contender, progress) = (Arc::clone(&contender), Arc::clone(&self.progress));
            let all_filled = Arc::clone(&all_filled);
            let (mine, walk) = ((task..keys).step_by(tasks), order.walk(task, tasks));
            tokio::spawn(async move {
                for key in mine {
                    contender.decide(key).await;
                }
                progress.filled.fetch_add(1, Ordering::Relaxed);
                // A pool may starve a task of connections while other tasks request them.
                all_filled.wait().await;
                call_in_loop(&*contender, walk, &progress.phase, every).await
            })
        };
        (0..tasks).map(start).collect()
    }
}

/// A decision counts if it was made within the time that is measured.
async fn call_in_loop(contender: &impl Decide, mut walk: Walk, phase: &AtomicU8, every: u64) -> LoopCounts {
    let mut counts = LoopCounts::new();
    let mut calls = 0_u64;
    loop {
        let timed = calls.is_multiple_of(every).then(Instant::now);
        let allowed = contender.decide(walk.next()).await;
        calls += 1;
        match phase.load(Ordering::Relaxed) {
            WARM => {}
            MEASURED => counts.record(allowed, timed),
            _ => {
                // A call that is still pending at the end counts as a latency, but not as a
                // decision.
                if let Some(started) = timed {
                    counts.latencies.record(started.elapsed());
                }
                return counts;
            }
        }
        // A decision in memory is ready at once, and without this the other tasks would not run.
        consume_budget().await;
    }
}

#[derive(Debug)]
struct LoopCounts {
    decisions: u64,
    admitted: u64,
    latencies: Latencies,
}

impl LoopCounts {
    fn new() -> Self {
        Self {
            decisions: 0,
            admitted: 0,
            latencies: Latencies::new(),
        }
    }

    fn record(&mut self, allowed: bool, timed: Option<Instant>) {
        self.decisions += 1;
        self.admitted += u64::from(allowed);
        if let Some(started) = timed {
            self.latencies.record(started.elapsed());
        }
    }

    async fn sum(tasks: Vec<JoinHandle<Self>>) -> Self {
        let mut sum = Self::new();
        for task in tasks {
            let counts = task.await.expect("every call is decided");
            sum.decisions += counts.decisions;
            sum.admitted += counts.admitted;
            sum.latencies.add(&counts.latencies);
        }
        sum
    }

    /// Panics if the decisions are not those that the workload expects.
    fn check(&self, load: &Load, contender: Contender) {
        let Self {
            decisions, admitted, ..
        } = *self;
        let name = contender.name();
        assert!(decisions > 0, "{name} made no decision");
        let expected = if load.denies() { 0 } else { decisions };
        // A contender that loses state occasionally deviates; `shared` reports that separately.
        let deviation = admitted.abs_diff(expected) as f64 / decisions as f64;
        assert!(
            deviation < 0.01,
            "{name} admitted {admitted} of {decisions} calls, not {expected}"
        );
    }
}
