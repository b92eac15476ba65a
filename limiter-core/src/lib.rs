//! Exact, distributed rate limiting.
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

#[doc(hidden)]
pub mod __private;
mod algorithm;
mod clock;
mod context;
mod decision;
mod error;
mod key;
mod limiter;
mod policy;
mod site;
mod store;
mod tier;
mod units;

pub use clock::ManualClock;
pub use context::{install, with_limiter};
pub use decision::{Decision, FromRejection, LimitOutcome, Origin, Rejection};
pub use error::{ConfigError, StoreError, StoreErrorKind};
pub use key::Key;
#[cfg(feature = "redis")]
pub use limiter::RedisBuilder;
pub use limiter::{Acquire, Ask, Check, Deciding, InProcessBuilder, Limiter};
#[cfg(feature = "macros")]
pub use limiter_macros::{funnel_limiter, token_limiter, window_limiter};
pub use policy::{
    FunnelShape, OnStoreFailure, Policy, PolicyBuilder, Rate, SlidingWindowShape, TokenBucketShape, Window,
};
pub use site::verify_sites;
pub use units::{Amount, Timestamp, parse_duration};
