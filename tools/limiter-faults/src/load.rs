//! Callers: many tasks, several limiters as if they were several processes, many keys.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use limiter_core::{Limiter, OnStoreFailure, Policy};
use limiter_testing::RedisServer;
use tokio::runtime::Runtime;

use crate::baseline;
use crate::event::Event;
use crate::run::Run;
use crate::scheduler_delay::DelayMonitor;

/// Longer than any call may take with the deadlines of this tool.
const CALLS_END_WITHIN: Duration = Duration::from_secs(15);
/// The pause between two probes of a limiter.
const PROBE_EVERY: Duration = Duration::from_millis(10);

/// The callers of a load, and their rate.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) limiters: Vec<Limiter>,
    pub(crate) policy: Policy,
    /// The number of keys shared by all tasks; 0: each call has its own key.
    pub(crate) keys: u32,
    pub(crate) tasks: usize,
    /// Between two calls of a task.
    pub(crate) pause: Duration,
}

impl Plan {
    /// Returns a load that a busy machine of two cores carries: some 1,500 calls a second on 40
    /// keys.
    pub(crate) fn usual(limiters: Vec<Limiter>, policy: Policy) -> Self {
        Self {
            limiters,
            policy,
            keys: 40,
            tasks: 24,
            pause: Duration::from_millis(15),
        }
    }

    /// Gives each call its own key, so that the charge of a call can be read from the store.
    pub(crate) fn with_key_per_call(self) -> Self {
        Self { keys: 0, ..self }
    }
}

/// Calls that are being made.
#[derive(Debug)]
pub(crate) struct Load {
    started: Instant,
    shared: Arc<LoadState>,
    delay_monitor: DelayMonitor,
}

#[derive(Debug, Default)]
struct LoadState {
    over: AtomicBool,
    calling: AtomicUsize,
    events: Mutex<Vec<Event>>,
    probes: Mutex<Vec<Event>>,
    next_key: AtomicU32,
}

impl Load {
    pub(crate) fn start(runtime: &Runtime, plan: &Plan) -> Self {
        let shared = Arc::new(LoadState::default());
        for task in 0..plan.tasks {
            let callers = Arc::new(Calling::new(&shared));
            runtime.spawn(call(callers, plan.clone(), task));
        }
        Self {
            started: Instant::now(),
            shared,
            delay_monitor: DelayMonitor::start(),
        }
    }

    /// As [`start`](Self::start), with probes of the store for each limiter, which the gate of a
    /// recovery needs.
    pub(crate) fn start_with_probes(runtime: &Runtime, plan: &Plan) -> Self {
        let load = Self::start(runtime, plan);
        for place in 0..plan.limiters.len() {
            runtime.spawn(probe(Arc::clone(&load.shared), plan.clone(), place));
        }
        load
    }

    /// Includes the scheduling delays of a server's process.
    pub(crate) fn watch(&self, server: &RedisServer) {
        if let Some(pid) = baseline::pid(server) {
            self.delay_monitor.watch(pid);
        }
    }

    /// Returns the calls and probes since the last time.
    pub(crate) fn take(&self) -> Run {
        let hung = self.shared.calling.load(Ordering::Relaxed);
        Run::new(
            self.started,
            std::mem::take(&mut *lock(&self.shared.events)),
            self.delay_monitor.take(),
            hung,
        )
        .with_probes(std::mem::take(&mut *lock(&self.shared.probes)))
    }

    /// Ends the calls. Calls that do not end in time are counted as hung.
    pub(crate) fn stop(self) -> Run {
        self.shared.over.store(true, Ordering::Relaxed);
        let sent_at = Instant::now();
        while self.shared.calling.load(Ordering::Relaxed) > 0 && sent_at.elapsed() < CALLS_END_WITHIN {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.take()
    }
}

fn lock(events: &Mutex<Vec<Event>>) -> MutexGuard<'_, Vec<Event>> {
    events.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A task that has not ended, be it with a panic.
#[derive(Debug)]
struct Calling(Arc<LoadState>);

impl Calling {
    fn new(shared: &Arc<LoadState>) -> Self {
        shared.calling.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        self.0.calling.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn call(calling: Arc<Calling>, plan: Plan, task: usize) {
    let shared = &calling.0;
    let mut random = fastrand::Rng::with_seed(task as u64);
    while !shared.over.load(Ordering::Relaxed) {
        let place = random.usize(..plan.limiters.len());
        let Some(limits) = plan.limiters.get(place) else {
            return;
        };
        let key = match plan.keys {
            0 => shared.next_key.fetch_add(1, Ordering::Relaxed),
            keys => random.u32(..keys),
        };
        let sent_at = Instant::now();
        let answer = limits.check(&plan.policy, key).await;
        let event = Event::new(place, key, sent_at, &answer);
        lock(&shared.events).push(event);
        tokio::time::sleep(plan.pause).await;
    }
}

/// Probes the store for one limiter.
///
/// Only the store decides a probe: the policy has no local fallback, so its limits never reconcile,
/// and its quota is never exhausted. A probe is a charge, since a demoted server and one without
/// memory still execute a peek, which writes nothing. A probe does not wait for earlier ones, which
/// can last for a deadline. The keys are those of the calls, so that all shards of a cluster are
/// probed.
async fn probe(shared: Arc<LoadState>, plan: Plan, place: usize) {
    let Some(limits) = plan.limiters.get(place) else {
        return;
    };
    let policy = probe_policy(plan.policy.deadline());
    for key in (0..plan.keys.max(1)).cycle() {
        if shared.over.load(Ordering::Relaxed) {
            return;
        }
        let (shared, limits, policy) = (Arc::clone(&shared), limits.clone(), policy.clone());
        tokio::spawn(async move {
            let sent_at = Instant::now();
            let answer = limits.check(&policy, key).await;
            let event = Event::new(place, key, sent_at, &answer);
            lock(&shared.probes).push(event);
        });
        tokio::time::sleep(PROBE_EVERY).await;
    }
}

fn probe_policy(deadline: Duration) -> Policy {
    let policy = Policy::token_bucket("probe").capacity(10_000).rate(10_000);
    policy
        .deadline(deadline)
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .expect("a valid policy")
}
