//! Measures the delays of this machine, so that a gate in milliseconds judges the limiter and not
//! other processes.
//!
//! A thread that only sleeps records how late it wakes, and how long the threads of this process
//! and of the watched servers were ready to run but did not run (`/proc/…/schedstat`, if
//! available).

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(2);
/// Shorter delays are irrelevant here.
const NOTABLE: Duration = Duration::from_micros(200);

/// Measures until it is dropped.
#[derive(Debug)]
pub(crate) struct DelayMonitor {
    shared: Arc<MonitorState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct MonitorState {
    over: AtomicBool,
    delays: Mutex<Vec<Delay>>,
    servers: Mutex<Vec<u32>>,
}

/// A thread waited for a processor between these times.
#[derive(Clone, Copy, Debug)]
struct Delay {
    from: Instant,
    to: Instant,
    late: Duration,
}

/// The measured delays.
#[derive(Debug, Default)]
pub(crate) struct SchedulerDelays(Vec<Delay>);

impl DelayMonitor {
    pub(crate) fn start() -> Self {
        let shared = Arc::new(MonitorState::default());
        let measuring = Arc::clone(&shared);
        let thread = thread::spawn(move || measure(&measuring));
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// Takes the process of a server into account, too.
    pub(crate) fn watch(&self, pid: u32) {
        let mut servers = self.shared.servers.lock().unwrap_or_else(PoisonError::into_inner);
        // Servers that were killed are removed.
        servers.retain(|known| *known != pid && process(*known).exists());
        servers.push(pid);
    }

    /// Returns the delays since the last call.
    pub(crate) fn take(&self) -> SchedulerDelays {
        let mut delays = self.shared.delays.lock().unwrap_or_else(PoisonError::into_inner);
        SchedulerDelays(std::mem::take(&mut *delays))
    }
}

impl Drop for DelayMonitor {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl SchedulerDelays {
    /// Returns the longest delay between two moments that the machine can have caused.
    pub(crate) fn during(&self, from: Instant, to: Instant) -> Duration {
        let first = self.0.partition_point(|delay| delay.to < from);
        let overlapping = self.0.iter().skip(first).take_while(|delay| delay.from <= to);
        let late: Duration = overlapping.map(|delay| delay.late).sum();
        late.min(to.saturating_duration_since(from))
    }

    /// Returns the length of a span that ends at `from + took`, without the delays caused by the
    /// machine.
    pub(crate) fn fair(&self, from: Instant, took: Duration) -> Duration {
        took.saturating_sub(self.during(from, from + took))
    }
}

fn measure(shared: &MonitorState) {
    let mut waited: HashMap<PathBuf, u64> = HashMap::new();
    let mut last = Instant::now();
    while !shared.over.load(Ordering::Relaxed) {
        thread::sleep(PERIOD);
        let now = Instant::now();
        let woke_late = (now - last).saturating_sub(PERIOD);
        let before = std::mem::take(&mut waited);
        let own = longest_wait(&before, &mut waited, threads());
        let pids = shared
            .servers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let servers = pids.iter().map(|pid| PathBuf::from(format!("/proc/{pid}")));
        let late = woke_late.max(own) + longest_wait(&before, &mut waited, servers);
        if late >= NOTABLE {
            let delay = Delay {
                from: last,
                to: now,
                late,
            };
            shared
                .delays
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(delay);
        }
        last = now;
    }
}

/// Returns the directories of this process's threads.
fn threads() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc/self/task").into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}

fn process(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// Returns the longest time that a thread waited for a processor since the last call; records the
/// current values.
fn longest_wait(
    before: &HashMap<PathBuf, u64>,
    now: &mut HashMap<PathBuf, u64>,
    dirs: impl Iterator<Item = PathBuf>,
) -> Duration {
    let mut longest = 0;
    for dir in dirs {
        let Some(total) = waited_nanos(&dir) else { continue };
        longest = longest.max(total.saturating_sub(*before.get(&dir).unwrap_or(&total)));
        now.insert(dir, total);
    }
    Duration::from_nanos(longest)
}

/// Returns the time for which a thread or process was ready to run without running.
fn waited_nanos(dir: &Path) -> Option<u64> {
    let stat = fs::read_to_string(dir.join("schedstat")).ok()?;
    stat.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_delays_within_span_count_up_to_its_length() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let delay = |from, to, late| Delay {
            from: at(from),
            to: at(to),
            late: Duration::from_millis(late),
        };
        let scheduler_delay = SchedulerDelays(vec![delay(0, 10, 8), delay(20, 30, 5), delay(50, 52, 40)]);
        assert_eq!(scheduler_delay.during(at(12), at(18)), Duration::ZERO);
        assert_eq!(scheduler_delay.during(at(12), at(40)), Duration::from_millis(5));
        assert_eq!(scheduler_delay.during(at(5), at(40)), Duration::from_millis(13));
        assert_eq!(scheduler_delay.during(at(49), at(51)), Duration::from_millis(2));
        assert_eq!(
            scheduler_delay.fair(at(12), Duration::from_millis(28)),
            Duration::from_millis(23)
        );
    }
}
