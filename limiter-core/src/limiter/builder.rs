//! Builds limiters.

mod in_process;
#[cfg(feature = "redis")]
mod redis;

pub use in_process::InProcessBuilder;
#[cfg(feature = "redis")]
pub use redis::RedisBuilder;

/// Calls that may wait at once, unless a builder says otherwise.
const MAX_WAITING: usize = 10_000;
