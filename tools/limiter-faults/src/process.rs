//! The resources of this process.

use std::fs;

use peak_alloc::PeakAlloc;
use tokio::runtime::Runtime;

/// Counts the allocated bytes. Resident memory includes free memory of the allocator, and differs
/// by a quarter between two moments of a run without a leak.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Memory, tasks and sockets at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProcessUsage {
    pub(crate) allocated_kib: u64,
    pub(crate) resident_kib: u64,
    pub(crate) tasks: usize,
    pub(crate) sockets: usize,
}

impl ProcessUsage {
    pub(crate) fn now(runtime: &Runtime) -> Self {
        Self {
            allocated_kib: allocated_kib(),
            resident_kib: resident_kib(),
            tasks: runtime.metrics().num_alive_tasks(),
            sockets: sockets(),
        }
    }
}

/// Returns the memory that this process has allocated and not released.
pub(crate) fn allocated_kib() -> u64 {
    ALLOCATOR.current_usage() as u64 / 1_024
}

/// Returns the resident memory of this process, or 0 if the system does not state it.
fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0)
}

fn sockets() -> usize {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter(|target| target.to_string_lossy().starts_with("socket:"))
        .count()
}
