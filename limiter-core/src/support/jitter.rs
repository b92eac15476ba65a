//! Keeps replicas, and those who wait in one, from doing things in step.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The pause, longer by up to a quarter.
pub(crate) fn varied(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) % 256;
    pause + pause * u32::try_from(random).unwrap_or(0) / 1024
}
