//! The tiers between the handle and the store, each able to answer or to pass on.

#[cfg(feature = "redis")]
pub(crate) mod pending_refunds;

#[cfg(feature = "redis")]
pub(crate) use crate::penalty::denial_counts::{DatedDenials, DeniedLimit, PenaltyAction, REPORT_WITHIN};
#[cfg(feature = "redis")]
pub(crate) use crate::penalty::redis::PenaltyState;
#[cfg(feature = "redis")]
pub(crate) use crate::redis::backend::RedisBackend;
#[cfg(feature = "redis")]
pub(crate) use crate::redis::replicas::Replicas;
