//! The current time in the units of the server.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn since_epoch() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("a time after 1970")
}

pub(crate) fn now_ms() -> u64 {
    u64::try_from(since_epoch().as_millis()).expect("a time before 290000")
}

pub(crate) fn now_seconds() -> i64 {
    i64::try_from(since_epoch().as_secs()).expect("a time before 290000")
}
