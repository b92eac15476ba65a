//! A concurrency limit: the maximum number of held permits, and the length of a lease.
//!
//! A permit of a crashed holder is available again after its lease. Tests:
//! `policy/builder/concurrency.rs`, `tests/contract/concurrency.rs`.

use std::time::Duration;

/// Admits while fewer than `max` permits are held; a permit is available again when it is released
/// or when its lease expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Concurrency {
    /// Whole permits.
    pub(crate) max: u64,
    /// Whole milliseconds.
    pub(crate) lease_ms: u32,
}

impl Concurrency {
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms.into())
    }

    pub(crate) fn lease_micros(&self) -> u64 {
        u64::from(self.lease_ms) * 1_000
    }
}

/// Shown as `4 at once, each leased for 30s`.
impl std::fmt::Display for Concurrency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at once, each leased for {:?}", self.max, self.lease())
    }
}
