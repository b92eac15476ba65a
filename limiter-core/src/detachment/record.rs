//! The record of a detached reservation: the charge of each limit.
//!
//! Layout in Redis after the header of `lua/reservation.lua`, little-endian: the time of the
//! decision (8), the number of limits (1); then for each limit whether it was charged (1: 0 or 1)
//! and, if so, the estimate in the algorithm's unit (8), the time at which the usage is fully
//! refilled (8; 2^64 − 1 if nothing is refunded), and a digest of the algorithm that decided (8).
//!
//! Invariant: bytes of another length are no record. Tests: below
//! (`record_round_trips_through_bytes`), `tests/detached.rs`, `tests/frozen/redis.rs`
//! (`detached_layouts_are_frozen`).

use sha2::{Digest, Sha256};

use crate::policy::Algorithm;
use crate::units::Timestamp;

/// Marks a charge that is never refunded.
#[cfg(feature = "redis")]
const NO_REFUND: u64 = u64::MAX;

/// The charges of a reservation, which are settled later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReservationRecord {
    /// This replica's share was charged instead of the store.
    pub(crate) in_share: bool,
    pub(crate) decided_at: Timestamp,
    /// In the order of the request; `None` for a limit that was not charged.
    pub(crate) charges: Vec<Option<RecordedCharge>>,
}

/// The result of a claim to settle a reservation.
#[derive(Debug)]
pub(crate) enum ReservationClaim {
    /// The reservation is settled by this caller alone.
    Claimed(ReservationRecord),
    /// The reservation was settled before.
    Settled,
    /// There is no such reservation, or it has expired.
    Absent,
}

/// The charge of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedCharge {
    pub(crate) estimate: u64,
    pub(crate) whole_at: Option<Timestamp>,
    /// A [digest](algorithm_digest) of the algorithm that decided.
    pub(crate) algorithm: [u8; 8],
}

/// Returns a digest of an algorithm and its parameters.
///
/// Its input is the debug format, which may differ between versions of this crate. A digest that
/// matches no policy stops refunds across a proportional policy change, and bounds the time of
/// others by the window of the policy.
pub(crate) fn algorithm_digest(algorithm: &Algorithm) -> [u8; 8] {
    let digest: [u8; 32] = Sha256::digest(format!("{algorithm:?}")).into();
    let (first, _) = digest.split_first_chunk().unwrap_or((&[0; 8], &[]));
    *first
}

impl ReservationRecord {
    /// Returns whether any limit was charged.
    pub(crate) fn has_charges(&self) -> bool {
        self.charges.iter().any(Option::is_some)
    }

    /// Encodes the record for Redis, which stores no records of a share.
    #[cfg(feature = "redis")]
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.decided_at.as_micros().to_le_bytes().to_vec();
        // A decision has at most 16 limits.
        bytes.push(u8::try_from(self.charges.len()).unwrap_or(u8::MAX));
        for charge in &self.charges {
            bytes.push(u8::from(charge.is_some()));
            let Some(charge) = charge else { continue };
            let whole_at = charge.whole_at.map_or(NO_REFUND, Timestamp::as_micros);
            bytes.extend_from_slice(&charge.estimate.to_le_bytes());
            bytes.extend_from_slice(&whole_at.to_le_bytes());
            bytes.extend_from_slice(&charge.algorithm);
        }
        bytes
    }

    /// Decodes a record; `None` for invalid bytes.
    #[cfg(feature = "redis")]
    pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
            let (taken, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            Some(*taken)
        }
        let number = |bytes: &mut &[u8]| take(bytes).map(u64::from_le_bytes);
        let decided_at = Timestamp::from_micros(number(&mut bytes)?);
        let [count] = take(&mut bytes)?;
        let mut charges = Vec::with_capacity(count.into());
        for _ in 0..count {
            charges.push(match take(&mut bytes)? {
                [0] => None,
                [1] => {
                    let estimate = number(&mut bytes)?;
                    let whole_at = number(&mut bytes)?;
                    Some(RecordedCharge {
                        estimate,
                        whole_at: (whole_at != NO_REFUND).then_some(Timestamp::from_micros(whole_at)),
                        algorithm: take(&mut bytes)?,
                    })
                }
                _ => return None,
            });
        }
        bytes.is_empty().then_some(Self {
            in_share: false,
            decided_at,
            charges,
        })
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use crate::detachment::record::*;

    #[test]
    fn record_round_trips_through_bytes() {
        let charge = RecordedCharge {
            estimate: 800_000,
            whole_at: Some(Timestamp::from_micros(1_700_000_000_000_000)),
            algorithm: *b"algorith",
        };
        let record = ReservationRecord {
            in_share: false,
            decided_at: Timestamp::from_micros(1_600_000_000_000_000),
            charges: vec![
                None,
                Some(charge),
                Some(RecordedCharge {
                    whole_at: None,
                    ..charge
                }),
            ],
        };
        let bytes = record.to_bytes();
        assert_eq!(ReservationRecord::from_bytes(&bytes), Some(record));
        for length in 0..bytes.len() {
            assert_eq!(ReservationRecord::from_bytes(&bytes[..length]), None, "{length}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(ReservationRecord::from_bytes(&longer), None);
    }
}
