//! The tiers between the handle and the store, each able to answer or to pass on.

pub(crate) mod deadline;
#[cfg(feature = "redis")]
mod denial_counts;
#[cfg(feature = "redis")]
mod deny_cache;
#[cfg(feature = "redis")]
mod guard;
#[cfg(feature = "redis")]
pub(crate) mod holding;
#[cfg(feature = "redis")]
mod lease;
#[cfg(feature = "redis")]
mod local_fallback;
pub(crate) mod outage;
#[cfg(feature = "redis")]
mod pending_refunds;
#[cfg(feature = "redis")]
mod replicas;

#[cfg(feature = "redis")]
pub(crate) use denial_counts::{Denied, Due, TOLD_WITHIN};
#[cfg(feature = "redis")]
pub(crate) use guard::Guard;
#[cfg(feature = "redis")]
pub(crate) use replicas::Replicas;
