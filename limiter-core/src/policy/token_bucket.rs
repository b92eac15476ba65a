//! Parameters of a token bucket.

use crate::policy::Rate;

/// Admits while enough tokens remain; tokens are refilled at `rate`, up to `capacity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TokenBucket {
    /// Tokens of a full bucket, in thousandths.
    pub(crate) capacity: u64,
    pub(crate) rate: Rate,
}
