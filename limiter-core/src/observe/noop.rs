//! Empty replacements of the metrics functions in a build without the feature `metrics`.
//!
//! The functions have the signatures of those in `observe/recorded.rs`, so that callers contain no
//! conditional code; the compiler removes the calls.

use crate::decision::Origin;
use crate::error::StoreErrorKind;
use crate::observe::limit_event::LimitEvent;
use crate::policy::Policy;

/// True if decisions are counted in metrics.
pub(crate) const HAS_METRICS: bool = false;

#[inline]
pub(crate) fn count(_: &Policy, _: LimitEvent, _: Option<Origin>) {}

#[inline]
pub(crate) fn count_calls(_: &Policy, _: LimitEvent, _: Option<Origin>, _: u64) {}

#[inline]
pub(crate) fn count_trial(_: &Policy, _: LimitEvent) {}

#[cfg(feature = "redis")]
#[inline]
pub(crate) fn usage_dropped(_: u64) {}

#[inline]
pub(crate) fn unconfigured(_: LimitEvent) {}

#[inline]
pub(crate) fn store_failed(_: StoreErrorKind) {}

#[derive(Debug)]
pub(crate) struct WaitingGauge;

impl WaitingGauge {
    #[inline]
    pub(crate) fn begin() -> Self {
        Self
    }
}

#[inline]
pub(crate) fn not_configured() {}

#[inline]
pub(crate) fn forwarded_unread() {}

#[inline]
pub(crate) fn shed(_: usize) {}

#[cfg(feature = "registry")]
#[inline]
pub(crate) fn registry_rejected(_: &'static str) {}

#[cfg(all(feature = "registry", feature = "redis"))]
#[inline]
pub(crate) fn registry_revision(_: u64) {}

#[cfg(feature = "redis")]
pub(crate) use remote::{BreakerGauge, BreakerState, batch, record_query, replicas};

#[cfg(feature = "redis")]
mod remote {
    use std::fmt;
    use std::time::Instant;

    use crate::decision::Origin;

    #[inline]
    pub(crate) fn record_query(_: Instant, _: Option<Origin>) {}

    #[inline]
    pub(crate) fn batch(_: usize) {}

    #[inline]
    pub(crate) fn replicas(_: u32) {}

    #[derive(Clone, Copy, Debug)]
    pub(crate) enum BreakerState {
        Closed,
        HalfOpen,
        Open,
    }

    #[derive(Debug)]
    pub(crate) struct BreakerGauge;

    impl BreakerGauge {
        #[inline]
        pub(crate) fn new(_: &impl fmt::Display) -> Self {
            Self
        }

        #[inline]
        pub(crate) fn set(&self, _: BreakerState) {}

        #[inline]
        pub(crate) fn keep_shown(&self) {}
    }
}
