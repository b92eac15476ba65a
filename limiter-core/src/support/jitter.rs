//! Jitter, which prevents replicas and waiters from acting at the same time.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Extends a pause by up to a quarter.
pub(crate) fn with_jitter(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) % 256;
    pause + pause * u32::try_from(random).unwrap_or(0) / 1024
}
