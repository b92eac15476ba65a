//! Penalties: a key that is denied too often is blocked for a while.
//!
//! A penalty consists of two limits beside the policy's own: a window that counts denials and a
//! funnel that holds the block. Denials by a block are not counted, so a block ends after its
//! duration.

// `blocks` adds the two limits to a request; `denial_counts` collects the denials that this replica
// has not reported to Redis; `redis/denial_window.rs` charges them there. The stores charge both
// limits after a denial (`Backend::count_denial`). Tests: `tests/penalties.rs`,
// `tests/contract/penalties.rs`.

pub(crate) mod blocks;
#[cfg(feature = "redis")]
pub(crate) mod denial_counts;

use crate::error::StoreError;
use crate::policy::Policy;
pub use crate::policy::{Penalty, PenaltyBuilder};

/// Logs that denials were not counted.
pub(crate) fn log_uncounted(policy: &Policy, error: &StoreError) {
    tracing::debug!(policy = policy.name(), %error, "cannot report denials for a penalty");
}
