//! Values of an outcome that help a client to avoid denials.
//!
//! They are computed from the outcome of one decision without a further query: the time until the
//! next permit, the time over which to spread the remaining permits (for the `RateLimit` header of
//! limiter-tower), and the time until a cost fits. Invariant: no value is too short, if no other
//! caller takes permits. Tests: `tests/contract/retry.rs`, `tests/differential.rs`.

use std::time::Duration;

use crate::algorithm::next_permit;
use crate::decision::LimitOutcome;
use crate::policy::{Algorithm, Funnel, TokenBucket};
use crate::units::Amount;

impl LimitOutcome {
    /// Returns the time until one whole permit more than [`remaining`](Self::remaining) could be
    /// admitted if no other caller takes permits; zero when nothing is used.
    ///
    /// Exact to the microsecond, or an upper bound where the exact value is unknown: usage exceeds
    /// the limit, the decision comes from the deny cache, or a level has capacity for less than one
    /// more whole permit. It is never too short.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// let policy = Policy::sliding_window("send").limit(2).window("1m").build()?;
    /// let _ = limits.check(&policy, "ann").await?;
    /// clock.advance(Duration::from_secs(20));
    /// let decision = limits.check(&policy, "ann").await?;
    ///
    /// let limit = &decision.limits()[0];
    /// assert_eq!(limit.remaining().whole(), 0);
    /// // The first permit leaves the window, and then the second.
    /// assert_eq!(limit.next_after(), Duration::from_secs(40));
    /// assert_eq!(limit.reset_after(), Duration::from_secs(60));
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn next_after(&self) -> Duration {
        Duration::from_micros(self.outcome().next_after)
    }

    /// Returns the time over which a client may spread the [remaining](Self::remaining) permits. A
    /// client that spreads the remaining permits over this time and then requests one more is not
    /// denied by this limit, unless other callers use its permits. (Draft 11 of the IETF's
    /// `RateLimit` header calls it the effective window.)
    ///
    /// For a bucket or a funnel: the time in which the remaining amount is refilled, so that a
    /// client that spreads its calls over it keeps to the rate. For a window: the time until the
    /// oldest permits leave it. If nothing remains: [`next_after`](Self::next_after). For a limit
    /// that denies: [`retry_after`](Self::retry_after). `None` for a concurrency limit, since its
    /// permits return when their holders release them.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use std::time::Duration;
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
    /// let decision = limits.check(&policy, "ann").cost(5).await?;
    /// assert_eq!(decision.remaining(), 15);
    /// assert_eq!(decision.limits()[0].effective_window(), Some(Duration::from_millis(1_500)));
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn effective_window(&self) -> Option<Duration> {
        let outcome = self.outcome();
        let micros = match self.policy().algorithm() {
            Algorithm::Concurrency(_) => return None,
            _ if !outcome.fits => outcome.retry_after,
            _ if outcome.reset_after == 0 => return Some(self.policy().window()),
            Algorithm::TokenBucket(TokenBucket { rate, .. }) | Algorithm::Funnel(Funnel { rate, .. }) => {
                // One permit is refilled within this time at the latest, so the next whole permit
                // arrives within it if any permits remain.
                let whole = outcome.remaining - outcome.remaining % 1_000;
                rate.time_for(whole, 0).max(outcome.next_after)
            }
            _ => outcome.next_after,
        };
        Some(Duration::from_micros(micros))
    }

    /// Returns the time until a call of this cost could be admitted if no other caller takes
    /// permits; zero if it could be admitted now; `None` if it exceeds the quota or the limit is a
    /// concurrency limit.
    ///
    /// For a bucket or a funnel it is exact except for less than a thousandth of a permit, or an
    /// upper bound while permits are [leased](crate::PolicyBuilder::lease). For a window that needs
    /// more than one permit back, it is the time until all have returned. It is never too short.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use limiter_core::{Amount, Limiter, ManualClock, Policy};
    /// use std::time::Duration;
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
    /// let decision = limits.check(&policy, "ann").cost(18).await?;
    /// let after = |cost: u32| decision.limits()[0].available_after(Amount::from(cost));
    /// assert_eq!(after(2), Some(Duration::ZERO));
    /// assert_eq!(after(5), Some(Duration::from_millis(300)));
    /// assert_eq!(after(21), None);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn available_after(&self, cost: Amount) -> Option<Duration> {
        let (policy, remaining) = (self.policy(), self.remaining());
        if cost > policy.quota() {
            return None;
        }
        let outcome = self.outcome();
        let micros = match policy.algorithm() {
            Algorithm::Concurrency(_) => return None,
            _ if cost <= remaining => 0,
            Algorithm::TokenBucket(TokenBucket { capacity, rate })
            | Algorithm::Funnel(Funnel { capacity, rate, .. }) => {
                let wanted = u64::try_from(cost.as_thousandths()).ok()?;
                let more = wanted.saturating_sub(next_permit(outcome.remaining));
                let at_rate = outcome.next_after.saturating_add(rate.time_for(more, 0));
                let rest = rate.time_for(capacity.saturating_sub(wanted), 0);
                // The limit is full later than at its rate if permits are leased, which return when
                // their lease ends. From this time on it is refilled at its rate at most.
                match outcome.reset_after.checked_sub(rest) {
                    Some(latest) if latest > at_rate => latest.saturating_add(1),
                    _ => at_rate,
                }
            }
            _ if cost.whole() <= remaining.whole().saturating_add(1) => outcome.next_after,
            _ => outcome.reset_after,
        };
        Some(Duration::from_micros(micros))
    }
}
