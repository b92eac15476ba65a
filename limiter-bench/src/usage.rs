//! Processor time: the scheduler's account of threads, and the servers' own.

use std::fs;
use std::time::Duration;

use limiter_testing::RedisServer;

/// How the threads are named that serve the contenders: those of a proxy, say, are not counted.
pub(crate) const THREADS: &str = "bench";

/// What the threads that serve contenders have spent so far, the kernel's part included, to the
/// nanosecond.
///
/// Threads that have ended are not counted, so both ends of a difference have to be taken while
/// they live. `None` where the kernel keeps no such account.
pub(crate) fn client() -> Option<Duration> {
    let mut spent = Duration::ZERO;
    for task in fs::read_dir("/proc/self/task").ok()?.flatten() {
        let read = |file| fs::read_to_string(task.path().join(file));
        if read("comm").is_ok_and(|name| name.trim_end() == THREADS) {
            let schedstat = read("schedstat").ok()?;
            spent += Duration::from_nanos(schedstat.split_whitespace().next()?.parse().ok()?);
        }
    }
    Some(spent)
}

/// What these servers have spent so far: the processor time of their processes, reading and writing
/// sockets included.
pub(crate) fn servers<'a>(servers: impl IntoIterator<Item = &'a RedisServer>) -> Duration {
    servers.into_iter().map(server).sum()
}

fn server(server: &RedisServer) -> Duration {
    let info = server.command(&["INFO", "cpu"]).text();
    let seconds = |field: &str| -> f64 {
        let value = info.lines().find_map(|line| line.strip_prefix(field));
        value.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
    };
    Duration::from_secs_f64(seconds("used_cpu_sys:") + seconds("used_cpu_user:"))
}

/// What the process keeps in memory, in bytes.
pub(crate) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status.lines().find_map(|line| {
        line.strip_prefix("VmRSS:")?
            .trim()
            .strip_suffix("kB")?
            .trim()
            .parse::<u64>()
            .ok()
    });
    kilobytes.unwrap_or(0) * 1_024
}
