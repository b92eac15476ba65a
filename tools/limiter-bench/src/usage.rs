//! Processor time: the scheduler's account of threads, and the servers' own.

use std::fs;
use std::time::Duration;

use limiter_testing::RedisServer;

/// The name of the threads that serve the contenders; other threads, such as those of a proxy, are
/// not counted.
pub(crate) const THREADS: &str = "bench";

/// Returns the processor time of the threads that serve contenders, including the kernel's part, in
/// nanoseconds.
///
/// Ended threads are not counted, so both values of a difference have to be read while the threads
/// run. `None` if the kernel does not provide the figure.
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

/// The processor time of these server processes, including socket reads and writes.
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

/// Returns the resident memory of the process, in bytes.
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
