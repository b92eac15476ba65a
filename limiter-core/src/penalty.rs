//! Penalties: a key that is denied too often is blocked for a while.
//!
//! A penalty consists of two limits beside the policy's own: a window that counts denials and a
//! funnel that holds the block. `blocks` adds them to a request, `apply` charges them after a
//! denial, `denial_counts` collects denials that were decided in process until they are reported,
//! and `redis` reports them.

pub(crate) mod apply;
pub(crate) mod blocks;
#[cfg(feature = "redis")]
pub(crate) mod denial_counts;
#[cfg(feature = "redis")]
pub(crate) mod redis;

pub use crate::policy::{Penalty, PenaltyBuilder};
