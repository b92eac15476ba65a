//! Stores, policies and durations of the tests.
#![allow(dead_code, reason = "the tests without Redis use a part of it")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use limiter_core::{OnStoreFailure, Policy};

/// Creates a namespace that no other test uses.
pub(crate) fn namespace() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("test:{}:{started}:{count}", std::process::id())
}

/// The store of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    Standalone,
    Cluster,
}

/// The tolerance for a loaded machine.
pub(crate) const SLACK: Duration = Duration::from_millis(500);

/// The deadline and the time limit of tests that measure no time.
pub(crate) const PATIENT: Duration = secs(30);

/// Creates a sliding window whose decisions wait for a loaded machine.
pub(crate) fn window(name: &str, limit: u64, window: &str) -> Policy {
    let policy = Policy::sliding_window(name).limit(limit).window(window);
    policy
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap()
}

pub(crate) const fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

pub(crate) const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(crate) const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}
