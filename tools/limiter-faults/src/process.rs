//! The resources of this process.

use std::fs;

use tokio::runtime::Runtime;

/// Memory, tasks and sockets at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProcessUsage {
    pub(crate) resident_kib: u64,
    pub(crate) tasks: usize,
    pub(crate) sockets: usize,
}

impl ProcessUsage {
    pub(crate) fn now(runtime: &Runtime) -> Self {
        Self {
            resident_kib: resident_kib(),
            tasks: runtime.metrics().num_alive_tasks(),
            sockets: sockets(),
        }
    }
}

/// Resident memory; 0 if unknown.
pub(crate) fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

fn sockets() -> usize {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter(|target| target.to_string_lossy().starts_with("socket:"))
        .count()
}
