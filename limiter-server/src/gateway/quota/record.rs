//! The state of a ledger as the data of its token lease, which all nodes of the server share.
//!
//! Each node continues the ledger from the state that another node recorded, so the encoding
//! contains every field of the ledger except the budget and the leased permits, which the lease
//! itself has. The form is Protocol Buffers, with times in microseconds. Empty data is a ledger
//! without holders.
//!
//! Tests: `tests/quota_ledger.rs`, and `two_nodes_divide_one_budget` in `tests/quota_streams.rs`.

use std::collections::BTreeMap;

use limiter_core::Timestamp;
use prost::Message;

use crate::gateway::quota::bucket::AssignedBucket;
use crate::gateway::quota::ledger::{HolderId, HolderState, QuotaBudget, QuotaLedger, WaitingHolder};

#[derive(Clone, PartialEq, Message)]
struct LedgerRecord {
    #[prost(uint64, tag = "1")]
    updated_at: u64,
    #[prost(message, repeated, tag = "2")]
    holders: Vec<HolderRecord>,
    #[prost(message, repeated, tag = "3")]
    waiting: Vec<WaitingRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct HolderRecord {
    #[prost(fixed64, tag = "1")]
    id: u64,
    #[prost(message, optional, tag = "2")]
    bucket: Option<AssignedBucket>,
    #[prost(message, optional, tag = "3")]
    before: Option<AssignedBucket>,
    #[prost(uint64, tag = "4")]
    before_until: u64,
    #[prost(uint64, tag = "5")]
    assigned_at: u64,
    #[prost(uint64, tag = "6")]
    sent_at: u64,
    #[prost(uint64, tag = "7")]
    ends_at: u64,
    #[prost(uint64, tag = "8")]
    demand: u64,
    #[prost(bool, tag = "9")]
    has_ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct WaitingRecord {
    #[prost(fixed64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    demand: u64,
    #[prost(uint64, tag = "3")]
    until: u64,
}

/// Encodes the state of a ledger.
#[must_use]
pub fn encode(ledger: &QuotaLedger) -> Vec<u8> {
    let holders = ledger.holders().iter().map(|(id, state)| {
        let (before, before_until) = state.before.unzip();
        HolderRecord {
            id: *id,
            bucket: Some(state.bucket),
            before,
            before_until: before_until.map_or(0, Timestamp::as_micros),
            assigned_at: state.assigned_at.as_micros(),
            sent_at: state.sent_at.as_micros(),
            ends_at: state.ends_at.as_micros(),
            demand: state.demand,
            has_ended: state.has_ended,
        }
    });
    let waiting = ledger.waiting().iter().map(|(id, state)| WaitingRecord {
        id: *id,
        demand: state.demand,
        until: state.until.as_micros(),
    });
    let record = LedgerRecord {
        updated_at: ledger.updated_at().as_micros(),
        holders: holders.collect(),
        waiting: waiting.collect(),
    };
    record.encode_to_vec()
}

/// Decodes the state of a ledger whose lease has this number of permits, in thousandths. Without
/// data it is a ledger without holders at `now`.
///
/// # Errors
///
/// The data is not a state of this version of the server.
pub fn decode(
    budget: QuotaBudget,
    leased: u64,
    data: &[u8],
    now: Timestamp,
) -> Result<QuotaLedger, prost::DecodeError> {
    let record = LedgerRecord::decode(data)?;
    let updated_at = match data.is_empty() {
        true => now,
        false => Timestamp::from_micros(record.updated_at),
    };
    let holders = record.holders.into_iter().map(|of| {
        let until = Timestamp::from_micros(of.before_until);
        let state = HolderState {
            bucket: of.bucket.unwrap_or_default(),
            before: of.before.map(|before| (before, until)),
            assigned_at: Timestamp::from_micros(of.assigned_at),
            sent_at: Timestamp::from_micros(of.sent_at),
            ends_at: Timestamp::from_micros(of.ends_at),
            demand: of.demand,
            has_ended: of.has_ended,
        };
        (of.id, state)
    });
    let holders: BTreeMap<HolderId, HolderState> = holders.collect();
    let waiting = record.waiting.into_iter().map(|of| {
        let state = WaitingHolder {
            demand: of.demand,
            until: Timestamp::from_micros(of.until),
        };
        (of.id, state)
    });
    Ok(QuotaLedger::recorded(
        budget,
        leased,
        updated_at,
        holders,
        waiting.collect(),
    ))
}
