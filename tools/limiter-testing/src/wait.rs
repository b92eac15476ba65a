//! Bounded polling.

use std::thread;
use std::time::{Duration, Instant};

/// Calls a function until it returns a value; `None` after `limit`.
pub(crate) fn poll<T>(limit: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(answer) = attempt() {
            return Some(answer);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(Duration::from_millis(5));
    }
}
