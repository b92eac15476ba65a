//! Jitter, which prevents replicas and waiters from acting at the same time.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Extends a pause by up to a quarter.
pub(crate) fn with_jitter(pause: Duration) -> Duration {
    pause + pause * random_byte() / 1024
}

/// Returns a random part of a time.
#[cfg(all(feature = "registry", feature = "redis"))]
pub(crate) fn random_part(time: Duration) -> Duration {
    time * random_byte() / 256
}

fn random_byte() -> u32 {
    u32::try_from(RandomState::new().hash_one(()) % 256).unwrap_or(0)
}
