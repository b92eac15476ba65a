//! The quota service of Envoy: streams report usage, and the server divides one budget among them.
//!
//! - [`service`] keeps the budgets and their streams; [`rpc`] is the gRPC service in front of it.
//! - [`shares`] computes a share of the rate for each stream by demand. [`ledger`] turns shares
//!   into assignments of [`bucket`]s and ensures that they never admit more than the policy.
//! - [`lease`] takes the permits of the ledger from the library, and [`record`] is the state that
//!   all nodes share with the lease.
//! - [`mode`] finds policies that are not enforced or deny all calls, and [`reported`] turns the
//!   reported calls into counted decisions.
//! - [`messages`] are the messages of the service, which [`file_descriptor`] describes for
//!   reflection. A [`subscriber`] is a bucket of a stream in its budget.
//!
//! The design is in `docs/design/quota-service.md`. Tests: `tests/quota_ledger.rs`,
//! `tests/quota_messages.rs`, `tests/quota_streams.rs`, `tests/quota_envoy.rs`.

pub mod bucket;
pub mod budget;
pub mod file_descriptor;
pub mod lease;
pub mod ledger;
pub mod messages;
pub mod mode;
pub mod record;
pub mod reported;
pub mod rpc;
pub mod service;
pub mod shares;
pub mod stream;
pub mod subscriber;
