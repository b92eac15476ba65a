//! The calls of a [`Limiter`](crate::Limiter) and their futures.
//!
//! Methods of the limiter return these types. Each is configured by its methods and executed by
//! `.await`; programs rarely name them.

pub use crate::check::{Acquire, Admit, Charge, Check, CheckFuture, PolicyRef, Refund, Reserve};
