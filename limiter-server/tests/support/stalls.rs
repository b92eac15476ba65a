//! Stalls of the machine: times in which a processor runs no thread of this system, because its
//! host runs other machines.
//!
//! A thread on each processor sleeps for a millisecond at a time. It has a real-time priority, so
//! no thread of the test delays it, and a late wake-up is a stall of the processor. Without the
//! permission for this priority nothing is recorded, because a late wake-up would prove nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(1);
/// The shortest stall that is recorded.
const SHORTEST: Duration = Duration::from_millis(2);

/// A time in which a processor ran no thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stall {
    pub(crate) processor: usize,
    pub(crate) began: Instant,
    pub(crate) took: Duration,
}

impl Stall {
    pub(crate) fn ended(&self) -> Instant {
        self.began + self.took
    }
}

/// Records the stalls while it exists.
#[derive(Debug)]
pub(crate) struct StallProbe {
    stalls: Arc<Mutex<Vec<Stall>>>,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl StallProbe {
    pub(crate) fn start() -> Self {
        let (stalls, ended) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..processors).map(|processor| {
            let (stalls, ended) = (Arc::clone(&stalls), Arc::clone(&ended));
            std::thread::spawn(move || {
                if run_before_others(processor) {
                    probe(processor, &stalls, &ended);
                }
            })
        });
        let threads = threads.collect();
        Self {
            stalls,
            ended,
            threads,
        }
    }

    /// The stalls since the start.
    pub(crate) fn stalls(&self) -> Vec<Stall> {
        self.stalls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for StallProbe {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn probe(processor: usize, stalls: &Mutex<Vec<Stall>>, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        let due = Instant::now() + INTERVAL;
        std::thread::sleep(INTERVAL);
        let took = Instant::now().saturating_duration_since(due);
        if took >= SHORTEST {
            let mut stalls = stalls.lock().unwrap_or_else(PoisonError::into_inner);
            stalls.push(Stall {
                processor,
                began: due,
                took,
            });
        }
    }
}

/// Binds this thread to a processor, with precedence over all threads of normal priority. Returns
/// whether the system permits it.
#[cfg(target_os = "linux")]
fn run_before_others(processor: usize) -> bool {
    use thread_priority::{RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy};

    let mut processors = rustix::thread::CpuSet::new();
    processors.set(processor);
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    rustix::thread::sched_setaffinity(None, &processors).is_ok()
        && thread_priority::set_thread_priority_and_policy(
            thread_priority::thread_native_id(),
            ThreadPriority::Max,
            policy,
        )
        .is_ok()
        && thread_priority::thread_schedule_policy() == Ok(policy)
}

#[cfg(not(target_os = "linux"))]
fn run_before_others(_: usize) -> bool {
    false
}
