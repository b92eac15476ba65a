//! The calls of a [`Limiter`](crate::Limiter) and their futures.
//!
//! Methods of the limiter return these types. Each is configured by its methods and executed by
//! `.await`; programs rarely name them.

pub use crate::check::named::{NamedCall, NamedCheck, NamedDeciding, NamedWait};
pub use crate::check::{Acquire, Admit, Check, CheckFuture, Reserve};
pub use crate::settlement::{Charge, Refund};
