//! Concurrency permits and the requests for them, on either store.
//!
//! `request.rs` validates a request for permits, `acquire_deadline.rs` bounds its wait, and
//! `permit.rs` returns the permit when the holder drops it. The public module `concurrency` also
//! names the builder and the future, which are above the stores. Tests: `tests/concurrency.rs`,
//! `tests/contract/concurrency.rs`.

pub(crate) mod acquire_deadline;
pub(crate) mod permit;
pub(crate) mod request;
