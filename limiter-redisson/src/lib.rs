//! The methods of Redisson's `RRateLimiter`: rate limiters by name, configured at run time.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use limiter_redisson::{Client, RateType};
//! use limiter_core::{Limiter, ManualClock};
//! use std::time::Duration;
//!
//! let clock = ManualClock::new();
//! let client = Client::new(&Limiter::in_process().clock(&clock).build());
//! let search = client.rate_limiter("search");
//!
//! assert!(search.try_set_rate(RateType::Overall, 10, "1m").await?);
//! assert!(!search.try_set_rate(RateType::Overall, 99, "1m").await?, "already configured");
//! assert!(search.try_acquire(8).await?);
//! assert!(!search.try_acquire(3).await?);
//! assert_eq!(search.available_permits().await?, 2);
//!
//! search.update_rate(RateType::Overall, 20, "1m").await?;
//! assert_eq!(search.available_permits().await?, 12, "usage is kept");
//! search.set_rate(RateType::Overall, 5, "1m").await?;
//! assert_eq!(search.available_permits().await?, 5, "usage is reset");
//!
//! search.expire(Duration::from_secs(3_600)).await?;
//! clock.advance(Duration::from_secs(3_600));
//! assert!(!search.exists().await?);
//! # Ok::<(), limiter_core::Rejection>(())
//! # }).unwrap();
//! ```
//!
//! # Rates
//!
//! A rate is a number of permits in each interval, and the interval slides. Up to 10,000 permits,
//! the limiter is an exact window
//! ([`Policy::sliding_window`](limiter_core::Policy::sliding_window)): no interval ever admits more
//! than the rate. Above that, it is estimated from two counters
//! ([`Policy::counter_window`](limiter_core::Policy::counter_window)), and intervals are at most 50
//! days. [`RateLimiter::update_rate`] keeps the existing kind of window, up to 1,048,576 permits of
//! an exact one, so that usage is kept. The state of a limiter (or of a client) is one value. One
//! script charges it at the server's time, and it expires when its usage no longer counts.
//!
//! # Configuration
//!
//! Rates are policies in a registry ([`SharedRegistry`](limiter_core::registry::SharedRegistry)):
//! in process, that of the limiter ([`Limiter::registry`](limiter_core::Limiter::registry)); with
//! Redis and the feature `redis`, that of the namespace. One of several concurrent calls of
//! `try_set_rate` succeeds, and every client follows a change within a second. A client that does
//! not know a name reads Redis first, at most four times a second for all unknown names together.
//! During an outage of Redis, the last known rates apply: by default
//! ([`OnStoreFailure::Local`](limiter_core::OnStoreFailure::Local)), each process admits its share
//! of a rate, also of a rate per client.
//!
//! A change writes the text of the registry in Redis again. It loses comments, and it removes
//! policies that ended more than an hour (and two of their intervals) ago. A deleted name stays
//! until then as an ended policy, so that old usage does not count when the name is reused. If
//! Redis has lost its data, a change restores the other policies that this process knows.
//!
//! Every client reads every name, and each name is a label of metrics, so there are at most
//! [1,000](Client::MAX_NAMES) names. A Java program's rate limiter per user is one policy here, and
//! users are its keys.
//!
//! Such a limiter is also a policy by name: `limits.named("search")` uses it with any key, and its
//! rate may come from a file or from an edit of the registry in Redis.
//!
//! # Differences from Redisson
//!
//! - More permits than the rate fail immediately with
//!   [`Rejection::NeverFits`](limiter_core::Rejection::NeverFits), and 0 permits are an error.
//! - [`acquire`](RateLimiter::acquire) waits for one minute by default, not for ever.
//! - [`release`](RateLimiter::release) returns at most the permits in use.
//! - [`expire`](RateLimiter::expire) and its relatives change the configuration, never the usage.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        reason = "a test may panic"
    )
)]

mod client;
mod client_state;
mod config;
mod rate_limiter;

pub use limiter_core::registry::RateType;

pub use crate::client::Client;
pub use crate::config::RateLimiterConfig;
pub use crate::rate_limiter::{AcquirePermits, RateLimiter};

/// Compiles the code of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
