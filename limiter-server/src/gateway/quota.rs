//! The quota service of Envoy: streams report usage, and the server divides one budget among them.
//!
//! [`shares`] computes a share of the rate for each stream by demand. [`ledger`] turns shares into
//! assignments and ensures that the assigned buckets never admit more than the policy.
//! [`messages`] are the messages of the service. The design is in `docs/design/quota-service.md`.
//! Tests: `tests/quota_ledger.rs`, `tests/quota_messages.rs`.

pub mod ledger;
pub mod messages;
pub mod shares;
