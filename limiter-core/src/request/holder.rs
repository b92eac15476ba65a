//! The lease of a named holder, as a store receives and returns it.

use crate::units::Timestamp;

/// A renewal. Amounts are thousandths; see [`HolderReport`](crate::algorithm::HolderReport).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HolderRenewal<'a> {
    /// The epoch of the lease to renew; 0 if there is none.
    pub(crate) epoch: u64,
    pub(crate) spent: u64,
    /// In millionths of the policy's rate.
    pub(crate) steady: u32,
    pub(crate) held: u64,
    pub(crate) wanted: u64,
    /// In microseconds.
    pub(crate) lifetime: u64,
    pub(crate) data: &'a [u8],
}

/// The lease that a store recorded; the epoch is 0 without a lease.
#[derive(Clone, Debug, Default)]
pub(crate) struct HolderLease {
    pub(crate) epoch: u64,
    pub(crate) leased: u64,
    pub(crate) ends_at: Timestamp,
    pub(crate) data: Box<[u8]>,
}

/// The reply of a store.
#[derive(Clone, Debug)]
pub(crate) struct HolderReply {
    /// True if the lease was renewed, because it had the epoch of the renewal.
    pub(crate) is_renewed: bool,
    /// The time of the reply, by the store's clock.
    pub(crate) now: Timestamp,
    /// The lease after the call.
    pub(crate) lease: HolderLease,
}
