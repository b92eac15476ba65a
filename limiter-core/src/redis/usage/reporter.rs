//! Reports the usage of this process to Redis, in a task.
//!
//! The first counted decision starts the task, and a reply of Redis starts the next one if the
//! runtime of the first is not driven. The task moves the counts of a minute to a queue of numbered
//! reports, at the latest when the minute ends, and sends the queue every [`INTERVAL`]; a larger
//! fleet sends less often ([`next_interval`]). A report leaves the queue when Redis has replied. A
//! report without a reply is sent again with its number, by which Redis recognises it, so each
//! decision is counted once. While Redis is unavailable, the queue keeps the last two hours, up to
//! [`MAX_QUEUED`] cells; older reports are dropped and counted. No decision waits for the task.
//!
//! Tests: `tests/usage.rs` (`task_reports_by_minute_within_interval`,
//! `outage_delays_reports_and_drops_old_ones`, `reports_continue_in_another_runtime`).

use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::error::{StoreError, StoreErrorKind};
use crate::observe;
use crate::redis::error_mapping::is_temporary;
use crate::redis::usage::store::{
    NumberedReport, PAIRS_OF_OUTCOMES, UsageHash, UsageStore, encode_counts, encode_denied,
};
use crate::support::background_task::{BackgroundTask, TaskNumber};
use crate::support::clock::Clock;
use crate::support::jitter::with_jitter;
use crate::support::real_time;
use crate::support::sync::Mutex;
use crate::units::Timestamp;
use crate::usage_recorder::{UnreportedUsage, UsageRecorder};

/// The shortest interval between reports.
const INTERVAL: Duration = Duration::from_secs(5);
/// The longest interval. Counts of different minutes are different cells, so a longer interval
/// would save nothing.
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);
/// The time without progress after which a runtime has ended or is not driven.
const ABANDONED_AFTER: Duration = LONGEST_INTERVAL.saturating_mul(2);
/// The time after which a shutdown does not wait for the task any longer.
const TASK_ENDS_WITHIN: Duration = Duration::from_millis(500);
/// The time of Redis for one cell, one denied key, and one report, measured by
/// `tools/limiter-faults/examples/usage_cost.rs`.
const CELL_NANOS: u64 = 1_000;
const KEY_NANOS: u64 = 5_000;
const REPORT_NANOS: u64 = 60_000;
/// The part of the time of Redis that all reports together may take: one in this number.
const REDIS_SHARE: u64 = 200;
/// The largest number of cells of a report, so that the script is short.
const MAX_REPORT_CELLS: usize = 256;
/// The largest number of denied keys of a report.
const MAX_REPORT_KEYS: usize = 160;
/// The largest number of policies whose denied keys a process reports per collection: Redis stores
/// this number per minute.
const MAX_DENIED_POLICIES: u64 = 24;
/// The number of sketches that all processes together report per collection.
const FLEET_DENIED_POLICIES: u64 = 400;
/// The largest number of queued cells and denied keys.
const MAX_QUEUED: usize = 50_000;
/// The number of minutes after which a report is dropped, since Redis has removed the minute.
const MAX_AGE_MINUTES: u64 = 120;
pub(crate) const MICROS_PER_MINUTE: u64 = 60_000_000;

/// The revision of the registry that is in use; 0 for none.
pub(crate) struct RevisionSource(pub(crate) Box<dyn Fn() -> u64 + Send + Sync>);

impl fmt::Debug for RevisionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RevisionSource")
    }
}

/// Counts decisions and reports them to Redis until it is dropped.
#[derive(Debug)]
pub(crate) struct UsageReporter {
    shared: Arc<SharedReporter>,
    /// Set when the limiter shuts down. The task then sends the last reports, as it does on drop.
    closing: watch::Sender<bool>,
}

#[derive(Debug)]
struct SharedReporter {
    recorder: UsageRecorder,
    store: UsageStore,
    clock: Clock,
    app: Box<str>,
    revision: RevisionSource,
    /// The id of this process in the reports.
    process: [u8; 8],
    queue: Mutex<ReportQueue>,
    /// The minute of the decisions that were not collected yet; 0 before the first task.
    minute: AtomicU64,
    /// The number of processes that report, as Redis counted them last.
    processes: AtomicU64,
    task: BackgroundTask,
    has_failed: AtomicBool,
}

#[derive(Debug, Default)]
struct ReportQueue {
    reports: VecDeque<Arc<NumberedReport>>,
    size: usize,
    /// The number of the last report.
    last: u64,
}

impl UsageReporter {
    pub(crate) fn new(
        recorder: UsageRecorder,
        store: UsageStore,
        clock: Clock,
        app: &str,
        revision: RevisionSource,
    ) -> Self {
        // The seeds of each instance are random.
        let process = RandomState::new().hash_one((std::process::id(), SystemTime::now()));
        Self {
            shared: Arc::new(SharedReporter {
                recorder,
                store,
                clock,
                app: app.into(),
                revision,
                process: process.to_le_bytes(),
                queue: Mutex::default(),
                minute: AtomicU64::new(0),
                processes: AtomicU64::new(1),
                task: BackgroundTask::new(ABANDONED_AFTER),
                has_failed: AtomicBool::new(false),
            }),
            closing: watch::Sender::new(false),
        }
    }

    /// Returns the recorder for a decision that was made. Starts the task unless it was started.
    #[inline]
    pub(crate) fn recorder(&self) -> &UsageRecorder {
        // Without a reading of the clock, which costs more than the count.
        if !self.shared.task.is_started() {
            self.start();
        }
        &self.shared.recorder
    }

    /// Starts the task unless it makes progress.
    pub(crate) fn keep_reporting(&self) {
        if !self.shared.task.is_running(self.shared.clock.now()) {
            self.start();
        }
    }

    /// Starts the task, if the caller is in a runtime; otherwise a later decision does.
    #[cold]
    fn start(&self) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let shared = &self.shared;
        let started = shared.clock.now();
        if *self.closing.borrow() {
            return;
        }
        if let Some(number) = shared.task.claim(started) {
            if shared.counted_minute() == 0 {
                let minute = minute_of(shared.clock.calendar());
                shared.minute.store(minute, Ordering::Relaxed);
            }
            let task = RunningTask(Arc::clone(shared), number);
            runtime.spawn(report_until_closed(task, started, self.closing.subscribe()));
        }
    }

    /// Sends all reports once. The task does this, so that it continues if this future is dropped.
    /// This future sends the remaining reports: the task's runtime may have ended, or may not be
    /// driven.
    pub(crate) async fn shutdown(&self) {
        self.start();
        self.closing.send_replace(true);
        let _ = real_time::timeout(TASK_ENDS_WITHIN, self.closing.closed()).await;
        self.shared.collect();
        self.shared.send_all().await;
    }
}

/// Marks the task as ended when it is dropped, with or without its runtime.
struct RunningTask(Arc<SharedReporter>, TaskNumber);

impl Drop for RunningTask {
    fn drop(&mut self) {
        self.0.task.end(self.1);
    }
}

async fn report_until_closed(task: RunningTask, started: Timestamp, mut closing: watch::Receiver<bool>) {
    let shared = &task.0;
    let mut due = started.after(with_jitter(INTERVAL));
    loop {
        let (now, calendar) = (shared.clock.now(), shared.clock.calendar());
        let pause = match minute_of(calendar) == shared.counted_minute() {
            true => due.since(now).min(rest_of_minute(calendar)),
            false => Duration::ZERO,
        };
        let closes = async {
            // An error means that the limiter was dropped.
            let _ = closing.wait_for(|closing| *closing).await;
        };
        let is_closing = tokio::select! {
            biased;
            () = closes => true,
            () = shared.clock.sleep(now, pause) => false,
        };
        let now = shared.clock.now();
        if !shared.task.continues(task.1, now) {
            return;
        }
        let is_due = is_closing || now >= due;
        let is_minute_over = minute_of(shared.clock.calendar()) != shared.counted_minute();
        // During an outage, the counts of a minute become one report.
        if is_minute_over || is_closing || is_due && shared.is_queue_empty() {
            shared.collect();
        }
        if is_due {
            let nanos = shared.send_all().await;
            due = shared
                .clock
                .now()
                .after(with_jitter(next_interval(nanos, shared.processes())));
        }
        if is_closing {
            return;
        }
    }
}

/// Returns the interval after which reports of this cost may be sent again, so that those of all
/// processes together take one part in [`REDIS_SHARE`] of the time of Redis.
fn next_interval(nanos: u64, processes: u64) -> Duration {
    let interval = Duration::from_nanos(nanos.saturating_mul(processes).saturating_mul(REDIS_SHARE));
    interval.clamp(INTERVAL, LONGEST_INTERVAL)
}

impl SharedReporter {
    fn processes(&self) -> u64 {
        self.processes.load(Ordering::Relaxed).max(1)
    }

    fn counted_minute(&self) -> u64 {
        self.minute.load(Ordering::Relaxed)
    }

    fn is_queue_empty(&self) -> bool {
        self.queue.lock().reports.is_empty()
    }

    /// Moves the decisions since the last collection to the queue, as decisions of the minute of
    /// that collection.
    fn collect(&self) {
        // First, so that a concurrent caller finds the counts in the recorder or in the queue.
        let mut queue = self.queue.lock();
        let now = minute_of(self.clock.calendar());
        let minute = self.minute.swap(now, Ordering::Relaxed);
        let mut usage = self.recorder.take();
        let mut dropped = self.recorder.take_uncounted();
        let (mut cells, mut size, mut decisions) = (Vec::new(), 0, 0);
        for (number, of_policy) in (1..).zip(&usage) {
            size += encode_counts(of_policy, &self.app, &mut cells);
            decisions += of_policy.counts.iter().sum::<u64>();
            if size + PAIRS_OF_OUTCOMES > MAX_REPORT_CELLS || number == usage.len() {
                let report = (std::mem::take(&mut cells), size, decisions);
                queue.push(UsageHash::Counts, minute, report);
                (size, decisions) = (0, 0);
            }
        }
        usage.retain(|usage| !usage.denied.keys().is_empty());
        usage.sort_by_key(|usage| std::cmp::Reverse(usage.denied.total()));
        let most = (FLEET_DENIED_POLICIES / self.processes()).clamp(1, MAX_DENIED_POLICIES);
        usage.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        self.queue_denied(&mut queue, minute, &usage);
        dropped += queue.remove_surplus(minute);
        drop(queue);
        if dropped > 0 {
            observe::usage_dropped(dropped);
        }
    }

    fn queue_denied(&self, queue: &mut ReportQueue, minute: u64, usage: &[UnreportedUsage]) {
        let revision = (self.revision.0)();
        let per_report = MAX_REPORT_KEYS / crate::usage_counters::denied_keys::DENIED_KEYS;
        for usage in usage.chunks(per_report) {
            let (mut cells, mut size) = (Vec::new(), 0);
            for usage in usage {
                size += encode_denied(&usage.policy, &usage.denied, (&self.app, revision), &mut cells);
            }
            queue.push(UsageHash::DeniedKeys, minute, (cells, size, 0));
        }
    }

    /// Sends the queue until it is empty or Redis does not reply. Returns the nanoseconds that
    /// Redis spent, about.
    async fn send_all(&self) -> u64 {
        let mut nanos = 0;
        loop {
            let Some(report) = self.queue.lock().reports.front().cloned() else {
                return nanos;
            };
            let size = u64::try_from(report.size).unwrap_or(u64::MAX);
            nanos += REPORT_NANOS
                + size
                    * match report.hash {
                        UsageHash::Counts => CELL_NANOS,
                        UsageHash::DeniedKeys => KEY_NANOS,
                    };
            match self.store.add(self.process, &report).await {
                Ok(processes) => {
                    self.processes.store(processes, Ordering::Relaxed);
                    self.has_failed.store(false, Ordering::Relaxed);
                    self.queue.lock().remove(&report);
                }
                Err(error) => {
                    self.on_error(&report, &error);
                    return nanos;
                }
            }
        }
    }

    /// Drops a report that Redis rejects. Others are sent again.
    fn on_error(&self, report: &NumberedReport, error: &StoreError) {
        let is_permanent = matches!(
            error.kind(),
            StoreErrorKind::Refused
                | StoreErrorKind::Protocol
                | StoreErrorKind::WrongType
                | StoreErrorKind::UnknownLayout
        );
        let is_permanent = is_permanent && !is_temporary(error);
        let error = error.with_causes();
        if !is_permanent {
            tracing::debug!(%error, "cannot report usage; it is sent again");
            return;
        }
        self.queue.lock().remove(report);
        observe::usage_dropped(report.decisions);
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "Redis rejects the usage of this process; it is not counted");
        }
    }
}

impl ReportQueue {
    fn push(&mut self, hash: UsageHash, minute: u64, (cells, size, decisions): (Vec<u8>, usize, u64)) {
        self.last += 1;
        self.size += size;
        self.reports.push_back(Arc::new(NumberedReport {
            hash,
            minute,
            number: self.last,
            cells,
            size,
            decisions,
        }));
    }

    fn remove(&mut self, report: &NumberedReport) {
        if self
            .reports
            .front()
            .is_some_and(|front| front.number == report.number)
        {
            self.reports.pop_front();
            self.size -= report.size;
        }
    }

    /// Removes the oldest reports above the maximum, and those that Redis would remove at once.
    /// Returns the number of their decisions.
    fn remove_surplus(&mut self, minute: u64) -> u64 {
        let mut decisions = 0;
        while let Some(front) = self.reports.front() {
            if self.size <= MAX_QUEUED && front.minute + MAX_AGE_MINUTES > minute {
                break;
            }
            decisions += front.decisions;
            self.size -= front.size;
            self.reports.pop_front();
        }
        decisions
    }
}

/// Returns the number of the minute that contains a time.
pub(crate) fn minute_of(at: Timestamp) -> u64 {
    at.as_micros() / MICROS_PER_MINUTE
}

fn rest_of_minute(at: Timestamp) -> Duration {
    Duration::from_micros(MICROS_PER_MINUTE - at.as_micros() % MICROS_PER_MINUTE)
}
