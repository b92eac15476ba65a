//! The usage of all processes of a namespace, in Redis.
//!
//! Each process adds its own usage by numbered reports, so that a repeated report is counted once
//! (`reporter`). `store` encodes the reports and reads the sum.
//!
//! Tests: `tests/usage.rs`.

mod reporter;
mod store;

pub(crate) use crate::redis::usage::reporter::{MICROS_PER_MINUTE, RevisionSource, UsageReporter, minute_of};
pub(crate) use crate::redis::usage::store::{
    MAX_CHANGED, StoredFields, UsageHash, UsageStore, decode_counts, decode_denied, version,
};
