//! Builds limiters.

mod in_process;
#[cfg(feature = "redis")]
mod redis;

pub use in_process::InProcessBuilder;
#[cfg(feature = "redis")]
pub use redis::RedisBuilder;

/// So many waiting calls hold a few megabytes.
const MAX_WAITING: usize = 10_000;
