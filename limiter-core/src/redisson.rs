//! Rate limiters by name, for people who come from Redisson's `RRateLimiter`: its methods and what
//! they mean there.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use limiter_core::redisson::{Client, RateType};
//! use limiter_core::{Limiter, ManualClock};
//! use std::time::Duration;
//!
//! let clock = ManualClock::new();
//! let client = Client::new(&Limiter::in_process().clock(&clock).build());
//! let search = client.rate_limiter("search");
//!
//! assert!(search.try_set_rate(RateType::Overall, 10, "1m").await?);
//! assert!(!search.try_set_rate(RateType::Overall, 99, "1m").await?, "it is configured");
//! assert!(search.try_acquire(8).await?);
//! assert!(!search.try_acquire(3).await?);
//! assert_eq!(search.available_permits().await?, 2);
//!
//! search.update_rate(RateType::Overall, 20, "1m").await?;
//! assert_eq!(search.available_permits().await?, 12, "what was used is kept");
//! search.set_rate(RateType::Overall, 5, "1m").await?;
//! assert_eq!(search.available_permits().await?, 5, "what was used is forgotten");
//!
//! search.expire(Duration::from_secs(3_600)).await?;
//! clock.advance(Duration::from_secs(3_600));
//! assert!(!search.exists().await?);
//! # Ok::<(), limiter_core::Rejection>(())
//! # }).unwrap();
//! ```
//!
//! # A rate
//!
//! A rate is a number of permits for each interval, and the interval slides: up to 10,000 permits
//! it is an exact window ([`Policy::sliding_window`](crate::Policy::sliding_window)), in which
//! never more than the rate is given; above that one that is estimated from two counters
//! ([`Policy::counter_window`](crate::Policy::counter_window)), whose intervals are at most 50
//! days. [`RateLimiter::update_rate`] keeps the kind of window that there is, up to 1,048,576
//! permits of an exact one, so that what was used is kept. State is one value for each limiter (or
//! client), charged by one script at the server's time, and goes by itself when nothing of it
//! counts any more.
//!
//! # Where the rate is
//!
//! In process it stands in the limiter's [registry](crate::Limiter::registry), as the policy of
//! that name. With Redis and the feature `registry` it stands in the registry of the namespace
//! (`RedisRegistry`): of several that set a rate at the same time one is the first, and every
//! client follows a change within a second. A client that uses a name which it does not know looks
//! into Redis first, four times a second at most for all such names together. While Redis is out,
//! what is known counts. With Redis and without that feature each process has rates of its own.
//!
//! A change writes the registry in Redis anew: comments in it are lost, and policies are taken out
//! of it that ended more than an hour (and two of their intervals) ago. What is deleted stays till
//! then as one that has ended, so that nothing of what was used comes back with its name. Where
//! Redis has lost its data, it brings back what this process knows of the others.
//!
//! A name is a policy for all to read, and a label of metrics, and every change writes all of them:
//! there may be [1,000](Client::MAX_NAMES) of them. What Java programs write as a rate limiter for
//! each user is one policy here, and users are its keys.
//!
//! Such a limiter is a policy by name like any other: `limits.named("search")` decides by it too,
//! with any key, and what a file or an edit of the registry in Redis says of the name is its rate.
//!
//! # What differs
//!
//! - More permits than the rate are [`Rejection::NeverFits`](crate::Rejection::NeverFits) at once,
//!   and 0 permits are refused.
//! - [`acquire`](RateLimiter::acquire) waits for a minute unless it is told how long, and not for
//!   ever.
//! - [`release`](RateLimiter::release) gives back no more than is used.
//! - [`expire`](RateLimiter::expire) and what belongs to it touch the rate, and never what was
//!   used.

#[cfg(not(all(feature = "registry", feature = "redis")))]
#[path = "redisson/absent.rs"]
mod remote;
#[cfg(all(feature = "registry", feature = "redis"))]
mod remote;

mod client;
mod config;
mod lookup;
mod rate_limiter;

pub use crate::redisson::client::Client;
pub use crate::redisson::config::RateLimiterConfig;
pub use crate::redisson::rate_limiter::{AcquirePermits, RateLimiter};
pub use crate::registry::RateType;
