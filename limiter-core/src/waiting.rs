//! Waiting for permits: queues per limit, served first come, first served, each call with its own
//! timeout.
//!
//! Only the first waiter of a queue queries the store ([`poller`]); a query belongs to its queue,
//! so its grants go to the waiters that are first when the reply arrives. [`wait_limit`] bounds the
//! waiting calls and [`backlog`] estimates `retry_after` behind them. The queues are in
//! [`wait_queue`](crate::wait_queue).
//!
//! Invariants: a waiter is in its queue or has its result, never both; a grant is used once or
//! refunded. Tests: `tests/waiting.rs`, `tests/contract/waiting.rs`, `wait_queue/tests.rs`, and
//! the model in `wait_queue/model.rs`.

pub(crate) mod acquire;
pub(crate) mod backlog;
pub(crate) mod pacing;
pub(crate) mod poller;
pub(crate) mod sleep;
pub(crate) mod wait_budget;
pub(crate) mod wait_limit;

pub(crate) use crate::waiting::wait_budget::{FollowedWait, WaitBudget};
pub use crate::waiting::wait_limit::WaitLimit;
