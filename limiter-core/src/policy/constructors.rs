//! The kinds of policies and their guarantees.
//!
//! Each constructor starts the builder of one algorithm and documents the bound on the permits that
//! it admits in any time, its memory, and the effect of a changed policy on recorded usage. Tests
//! of the bounds: `tests/properties.rs`, `tests/counter_error.rs`; of changes:
//! `tests/contract/policies.rs`, `tests/contract/rollout.rs`.

use std::time::Duration;

use crate::policy::{
    Algorithm, ConcurrencyParams, CounterWindowParams, FixedWindowParams, Funnel, LevelParams, Policy,
    PolicyBuilder, SlidingWindowParams, TokenBucket,
};

impl Policy {
    /// Default time for which a permit of [`concurrency`](Self::concurrency) outlives its holder.
    pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);

    /// Builds a token bucket: `capacity` at once, then `rate`. Over any time T it admits at most
    /// capacity + rate·T.
    pub fn token_bucket(name: impl Into<String>) -> PolicyBuilder<LevelParams> {
        PolicyBuilder::level(name.into(), |capacity, rate| {
            Algorithm::TokenBucket(TokenBucket { capacity, rate })
        })
    }

    /// Builds a funnel (leaky bucket as a meter): holds `capacity`, drains at `rate`. It admits the
    /// same calls as a token bucket; when its capacity changes, it keeps the *usage*, where a token
    /// bucket keeps the *remaining* tokens. [Paced](PolicyBuilder::paced), it assigns a delay to
    /// each call, so that calls leave evenly.
    pub fn funnel(name: impl Into<String>) -> PolicyBuilder<LevelParams> {
        PolicyBuilder::level(name.into(), |capacity, rate| {
            Algorithm::Funnel(Funnel {
                capacity,
                rate,
                paced: false,
            })
        })
    }

    /// Builds an exact sliding window: never more than `limit` permits in any window.
    pub fn sliding_window(name: impl Into<String>) -> PolicyBuilder<SlidingWindowParams> {
        PolicyBuilder::sliding_window(name.into())
    }

    /// Builds a sliding window that is estimated from two counters: constant memory for every
    /// limit, and a documented error.
    ///
    /// The estimate adds the permits of the current period and the permits of the previous period,
    /// weighted with the part of the previous period inside the window. Periods are as long as the
    /// window; the first one starts with a key's first permit, and further ones follow while any
    /// permit counts.
    ///
    /// Over any time T it admits at most limit · (1 + T / window) permits, like a token bucket of
    /// that capacity and rate. A single window admits less than twice the limit. A client
    /// approaches this if it uses all permits at the end of one period and again at the end of the
    /// next. Random calls exceeded the limit by less than 18 % (measured). For an exact bound use
    /// [`sliding_window`](Self::sliding_window), at 8 bytes per permit.
    ///
    /// When its window changes, the estimate is kept, and over any time T the larger limit and the
    /// shorter window bound the permits.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// let policy = Policy::counter_window("events").limit(1_000_000).window("1m").build()?;
    ///
    /// assert!(limits.check(&policy, "ann").cost(1_000_000).await?.is_allowed());
    /// // After a quarter of the next minute, a quarter of them has expired.
    /// clock.advance(Duration::from_secs(75));
    /// let decision = limits.check(&policy, "ann").await?;
    /// assert_eq!(decision.remaining(), 249_999);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    pub fn counter_window(name: impl Into<String>) -> PolicyBuilder<CounterWindowParams> {
        PolicyBuilder::counter_window(name.into())
    }

    /// Builds a fixed window: at most `limit` permits in each period. The cheapest algorithm: one
    /// count.
    ///
    /// A period starts with a key's first permit. [`aligned`](PolicyBuilder::aligned), it is a
    /// minute, an hour, a day, a week or a month of the calendar, by the store's clock and a fixed
    /// offset from UTC, as in commercial quotas.
    ///
    /// Around the end of a period up to twice the limit is admitted within a short time. All usage
    /// expires at once.
    ///
    /// When the limit changes, the usage is kept. When the window or its alignment changes, the
    /// usage counts until the end of its period or for one window of the new length, whichever is
    /// earlier: two alternating policies admit at most the larger limit per period, and the next
    /// period has the length of the policy that starts it.
    ///
    /// A clock that steps back does not end a period, and does not extend it beyond one window from
    /// then on.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy, Timestamp, UtcOffset};
    /// use std::time::Duration;
    ///
    /// // 2024-02-29T23:00:00Z
    /// let clock = ManualClock::starting_at(Timestamp::from_micros(1_709_247_600_000_000));
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// let daily = Policy::fixed_window("daily").limit(2).window("1d").aligned(UtcOffset::UTC).build()?;
    /// let month = Policy::fixed_window("month").limit(2).window("month").aligned("+02:00").build()?;
    ///
    /// assert!(limits.check(&daily, "ann").cost(2).await?.is_allowed());
    /// let denied = limits.check(&daily, "ann").await?;
    /// assert_eq!(denied.retry_after(), Some(Duration::from_secs(3_600)));
    /// // At the offset +02:00 it is already March.
    /// let decision = limits.check(&month, "ann").await?;
    /// assert_eq!(decision.reset_after(), Duration::from_secs(31 * 86_400 - 3_600));
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    pub fn fixed_window(name: impl Into<String>) -> PolicyBuilder<FixedWindowParams> {
        PolicyBuilder::fixed_window(name.into())
    }

    /// Builds a concurrency limit: a maximum number of permits held at once, in all processes
    /// together. A permit is held from
    /// [`Limiter::acquire_concurrency`](crate::Limiter::acquire_concurrency) until it is dropped.
    /// The permits of a crashed process are available again after the
    /// [`lease`](PolicyBuilder::lease).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, Policy};
    ///
    /// let limits = Limiter::in_process().build();
    /// let export = Policy::concurrency("export").max(2).lease("30s").build()?;
    ///
    /// let first = limits.acquire_concurrency(&export, "tenant:3").await?;
    /// let second = limits.acquire_concurrency(&export, "tenant:3").await?;
    /// assert!(limits.acquire_concurrency(&export, "tenant:3").await.unwrap_err().is_limited());
    /// drop(first);
    /// assert!(limits.acquire_concurrency(&export, "tenant:3").await.is_ok());
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    pub fn concurrency(name: impl Into<String>) -> PolicyBuilder<ConcurrencyParams> {
        PolicyBuilder::concurrency(name.into())
    }
}
