//! Exact, distributed rate limiting: token buckets, funnels and sliding windows, decided atomically
//! in Redis or in process.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use limiter_core::{Limiter, ManualClock, Policy};
//! use std::time::Duration;
//!
//! let clock = ManualClock::new();
//! let limits = Limiter::in_process().clock(&clock).build();
//! let policy = Policy::token_bucket("search").capacity(2).rate("1/s").build()?;
//!
//! assert!(limits.check(&policy, "ann").await?.is_allowed());
//! assert!(limits.check(&policy, "ann").await?.is_allowed());
//! let denied = limits.check(&policy, "ann").await?;
//! assert_eq!(denied.retry_after(), Some(Duration::from_secs(1)));
//!
//! clock.advance(Duration::from_secs(1));
//! assert!(limits.check(&policy, "ann").await?.is_allowed());
//! # Ok::<(), limiter_core::Rejection>(())
//! # }).unwrap();
//! ```
//!
//! # Choosing an algorithm
//!
//! | | promise | state | choose it for |
//! |---|---|---|---|
//! | [`Policy::token_bucket`] | over any time T at most capacity + rate·T | one small value | bursts up to a size, then a steady rate |
//! | [`Policy::funnel`] | the same; keeps the *usage* when its capacity changes | one small value | quotas that shrink and grow; [paced](PolicyBuilder::paced), calls that leave evenly |
//! | [`Policy::sliding_window`] | never more than the limit in *any* window | 8 bytes per permit | "5 per minute" to the letter |
//! | [`Policy::counter_window`] | over any time T at most limit · (1 + T / window) | two counters | large limits where that is exact enough |
//! | [`Policy::fixed_window`] | at most the limit in each period, which may be one of the calendar | one counter | daily and monthly quotas |
//! | [`Policy::concurrency`] | at most the maximum at once: [`Limiter::acquire_concurrency`] | a lease per permit | exports, connections, jobs |
//!
//! # Stores
//!
//! [`Limiter::in_process`] keeps state in this process. [`Limiter::redis`],
//! [`Limiter::redis_cluster`], [`Limiter::redis_sentinel`] and [`Limiter::redis_pool`] keep it in
//! Redis 6.2 or newer (or Valkey); all replicas with the same namespace share it. Both stores make
//! the same decisions. Constructors open no connection; [`Limiter::ready`] connects before the
//! first call.
//!
//! Redis and waiting calls need a Tokio runtime with time and I/O enabled.
//!
//! # When the store is unavailable
//!
//! A decision takes at most its policy's deadline (50 ms by default), including the wait for a
//! connection. If the store does not answer in time, the policy's [`OnStoreFailure`] decides: by
//! default this replica enforces its share of the policy in process; the alternatives allow or deny
//! the call. [`Decision::origin`] returns the [`Origin`] of the decision. A call that may have been
//! charged is never sent again. Five consecutive calls without a reply open the circuit breaker of
//! a server: further calls with these deadlines or shorter ones fail over immediately, and start
//! probes of the server for which no call waits. The limiter uses a recovered server within 300 ms
//! plus the time to connect.
//!
//! Each change of state emits a `tracing` event. Level warn: the circuit breaker of a server opens,
//! decisions start to be made in process, or the slot map of a cluster cannot be loaded. Level
//! info: a server replies again, or decisions are made in Redis again. Level debug: the results of
//! single calls.
//!
//! # Modes, key lists and penalties
//!
//! The [`Enforcement`] of a policy or of a whole limiter can be shadow, which decides and reports
//! but denies nothing, or off. The environment variable `LIMITER_ENFORCEMENT` sets it, too. A
//! policy can allow or deny listed keys without a decision ([`KeyList`]), block a key after many
//! denials ([`Penalty`](penalty::Penalty)), and define the reaction to a denial ([`OnDenial`]),
//! which [`Limiter::admit`], annotated functions and layers follow.
//!
//! # Annotations
//!
//! `#[token_limiter]`, `#[funnel_limiter]`, `#[window_limiter]` and `#[concurrency_limiter]` put a
//! limit in front of an async function, or of each in an `impl` block. They use the limiter that
//! they name, else that of [`with_limiter`](annotations::with_limiter), else the
//! [installed](annotations::install) one. [`verify_annotations`](annotations::verify_annotations)
//! checks all of them at start-up, [`annotations`](annotations::annotations) lists them, and
//! [`Limiter::annotation`] returns the remaining permits of a key.
//!
//! # Features
//!
//! - `redis` (default): the Redis store.
//! - `tls`: `rediss://` URLs, implemented with rustls.
//! - `macros` (default): the attribute macros.
//! - `registry`: the [registry] of named policies, loaded from text, files or Redis.
//! - `serde`: `Deserialize` for [`Policy`].
//! - `axum`: [`Rejection`] is an axum response.
//! - `tonic`: [`Rejection`] converts into a tonic status.
//! - `utoipa`: the responses of a [`Rejection`] in OpenAPI documents.
//! - `metrics`: counters, histograms and gauges through the facade `metrics`; `docs/monitoring.md`
//!   lists them.
//!
//! The oldest supported compiler is 1.85.
//!

// Tests: `tests/contract.rs` (the promises, on each store), `tests/properties.rs` (the bounds),
// `tests/differential.rs` (both stores decide equally), `tests/outside.rs`, and the doctests.
#![cfg_attr(feature = "metrics", doc = include_str!("observe/example.md"))]
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

pub mod annotations;
mod backend;
pub(crate) mod check;
pub(crate) mod enforcement;
pub mod future;
mod holder_lease;
pub(crate) mod inheritance;
mod limiter;
pub(crate) mod memory;
pub mod penalty;
mod permits;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod request;
pub(crate) mod responses;
pub(crate) mod settlement;
mod store_failure;
pub(crate) mod support;
pub mod typestate;
mod wait_queue;
pub(crate) mod waiting;

pub mod registry;

mod decision;
mod detachment;
mod identity;
mod key;
mod policy;

mod units;

mod algorithm;

mod error;
#[cfg(feature = "metrics")]
mod metrics_handles;
mod observe;
#[cfg(feature = "redis")]
mod usage_counters;
#[cfg(feature = "redis")]
mod usage_recorder;

#[doc(hidden)]
pub mod __private;
#[cfg(all(fuzzing, feature = "redis"))]
#[doc(hidden)]
pub mod fuzzing;

/// Distributed concurrency limits: permits that a holder keeps until it releases them.
///
/// The number of calls in progress cannot be limited by a rate. A concurrency policy therefore
/// hands out permits, and a permit counts until it is dropped. With Redis, each permit is a lease
/// that one task per limiter renews: Redis never counts more unexpired leases than the policy's
/// maximum, and a permit reports itself lost before its lease ends in Redis.
// The builder of an acquisition is `check/acquire_concurrency.rs`, the permits of this process are
// counted in `memory/permit_table.rs`, and those of Redis are renewed in `redis/permit_leases.rs`.
// Tests: `tests/concurrency.rs`, `tests/contract/concurrency.rs`, `memory/permit_table/tests.rs`.
pub mod concurrency {
    pub use crate::check::{AcquireConcurrency, ConcurrencyFuture};
    pub use crate::permits::permit::ConcurrencyPermit;
}

/// Permits and reservations that a client holds by an id, on any node.
///
/// [`AcquireConcurrency::detached`](concurrency::AcquireConcurrency::detached) and
/// [`Reservation::detach`] return ids. See [`Limiter::renew_permit`], [`Limiter::release_permit`]
/// and [`Limiter::settle_reservation`].
pub mod detached {
    pub use crate::check::acquire_detached::{AcquireDetached, DetachedPermit, PermitRelease, PermitRenewal};
    pub use crate::settlement::detached::{DetachedReservation, SettlementOutcome};
}

/// Leases of permits for named holders, which spend or pass on the permits without a call to the
/// store: [`Limiter::token_lease`].
pub mod lease {
    pub use crate::holder_lease::{HolderDecisions, LeaseCall, LeaseRenewal, LeaseReport, TokenLease};
}

/// The usage of all processes of a namespace, in Redis: [`RedisBuilder::usage`] reports it,
/// [`Limiter::fleet_usage`] reads it.
#[cfg(feature = "redis")]
pub mod usage {
    pub use crate::limiter::fleet_usage::{
        DeniedKey, DeniedMinute, FleetUsage, UsageCell, UsageCursor, UsageMinute,
    };
    pub use crate::usage_recorder::UsageReporting;
}

#[cfg(feature = "macros")]
pub use limiter_macros::{concurrency_limiter, funnel_limiter, token_limiter, window_limiter};

pub use crate::check::PolicyHandle;
pub use crate::decision::{Allowed, Decision, FromRejection, LimitOutcome, Origin, Rejection};
pub use crate::error::{ConfigError, StoreError, StoreErrorKind};
pub use crate::key::Key;
#[cfg(feature = "redis")]
pub use crate::limiter::RedisBuilder;
pub use crate::limiter::{InProcessBuilder, Limiter};
pub use crate::policy::{
    Enforcement, Inheritance, KeyList, OnDenial, OnStoreFailure, Policy, PolicyBuilder, Rate, UtcOffset,
    Window,
};
pub use crate::request::LimitRequest;
pub use crate::settlement::Reservation;
pub use crate::support::clock::ManualClock;
pub use crate::units::{Amount, Timestamp, parse_duration};
