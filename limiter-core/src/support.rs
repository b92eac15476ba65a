//! Mechanisms that several features use. Each file holds one: clocks, locks, deadlines, jitter,
//! small collections.

#[cfg(feature = "redis")]
pub(crate) mod background_task;
pub(crate) mod bounded_counter;
pub(crate) mod clock;
pub(crate) mod jitter;
#[cfg(feature = "redis")]
pub(crate) mod join;
pub(crate) mod log_throttle;
pub(crate) mod one_or_many;
pub(crate) mod real_time;
pub(crate) mod sync;
