//! The kinds of policies, each with the promise that it makes.

use crate::policy::{
    Algorithm, CounterWindowParams, FixedWindowParams, Funnel, LevelParams, Policy, PolicyBuilder,
    SlidingWindowParams, TokenBucket,
};

impl Policy {
    /// A token bucket: `capacity` at once, then `rate`. Over any time T it admits at most capacity +
    /// rate·T.
    pub fn token_bucket(name: impl Into<String>) -> PolicyBuilder<LevelParams> {
        PolicyBuilder::level(name.into(), |capacity, rate| {
            Algorithm::TokenBucket(TokenBucket { capacity, rate })
        })
    }

    /// A funnel (leaky bucket as a meter): holds `capacity`, drains at `rate`. It admits as a token
    /// bucket does; when its capacity changes, what was *used* is kept, where a token bucket keeps
    /// what is *left*. [Paced](PolicyBuilder::paced), it tells each call how long to wait, so that
    /// calls leave evenly.
    pub fn funnel(name: impl Into<String>) -> PolicyBuilder<LevelParams> {
        PolicyBuilder::level(name.into(), |capacity, rate| {
            Algorithm::Funnel(Funnel {
                capacity,
                rate,
                paced: false,
            })
        })
    }

    /// An exact sliding window: never more than `limit` permits in any window.
    pub fn sliding_window(name: impl Into<String>) -> PolicyBuilder<SlidingWindowParams> {
        PolicyBuilder::sliding_window(name.into())
    }

    /// A sliding window that is estimated from two counters: so much memory however large the
    /// limit, and a stated error.
    ///
    /// The last window is taken to hold what this period was given, and of what the period before
    /// was given the part by which it reaches into that window. Periods are as long as the window;
    /// they begin with a key's first permit, and follow each other while something counts.
    ///
    /// Over any time T it gives at most limit · (1 + T / window) permits, as a token bucket of that
    /// capacity and rate does. So in any window it is less than twice the limit: as much as that
    /// where somebody takes all at the end of a period and all at the end of the next; calls at
    /// random moments get some percent more than the limit (less than 18 of a hundred, as
    /// measured). Where that is too much, there is [`sliding_window`](Self::sliding_window), at 8
    /// bytes a permit.
    ///
    /// When its window changes, what counts is kept, and over any time T no more is given than by
    /// the larger limit and the shorter window.
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
    /// // A quarter of the next minute later, a quarter of them counts no more.
    /// clock.advance(Duration::from_secs(75));
    /// let decision = limits.check(&policy, "ann").await?;
    /// assert_eq!(decision.remaining(), 249_999);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    pub fn counter_window(name: impl Into<String>) -> PolicyBuilder<CounterWindowParams> {
        PolicyBuilder::counter_window(name.into())
    }

    /// A fixed window: at most `limit` permits in each period. The cheapest algorithm: one count.
    ///
    /// A period begins with a key's first permit. [`aligned`](PolicyBuilder::aligned), it is a
    /// minute, an hour, a day, a week or a month of the calendar, by the store's clock and a fixed
    /// offset from UTC: what quotas are sold by.
    ///
    /// Around the end of a period up to twice the limit is given within a moment. All that was used
    /// comes back at once.
    ///
    /// When the limit changes, what was used is kept. When the window changes, or how it is
    /// aligned, what was used counts until the period ends in which it was, or for one window of
    /// the new length, whichever is sooner: so each of two policies that take turns is given no
    /// more in a period than the larger limit, and a period that follows another lasts as the
    /// policy says that begins it.
    ///
    /// A clock that steps back does not end a period, and makes none last longer than a window from
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
    /// // Two hours further east it is March already.
    /// let decision = limits.check(&month, "ann").await?;
    /// assert_eq!(decision.reset_after(), Duration::from_secs(31 * 86_400 - 3_600));
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    pub fn fixed_window(name: impl Into<String>) -> PolicyBuilder<FixedWindowParams> {
        PolicyBuilder::fixed_window(name.into())
    }
}
