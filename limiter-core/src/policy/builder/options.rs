//! Setters of rarely used options: enforcement, denial handling, penalties and key lists.

use crate::error::ConfigError;
use crate::policy::builder::PolicyBuilder;
use crate::policy::{Enforcement, KeyList, OnDenial, Penalty};

impl<S> PolicyBuilder<S> {
    /// Sets whether decisions are enforced. Default: [`Enforcement::Enforce`]. The limiter's own
    /// setting can only be looser.
    pub fn enforcement(mut self, enforcement: Enforcement) -> Self {
        self.extras.enforcement = enforcement;
        self
    }

    /// Sets the handling of denied calls in [`Limiter::admit`](crate::Limiter::admit), in annotated
    /// functions and behind a layer. Default: [`OnDenial::Reject`]. For concurrency policies,
    /// annotated functions and layers wait for a permit; [`Degrade`](OnDenial::Degrade) is not
    /// available.
    pub fn on_denial(mut self, answer: OnDenial) -> Self {
        self.extras.on_denial = answer;
        self
    }

    /// Blocks a key for a while, on every replica, after too many denials: the result of
    /// [`Penalty::after`], or text such as `"10 in 1m: 15m"`. Default: none.
    ///
    /// Each denied call counts once. Peeks, calls in shadow mode, calls during a block and calls
    /// decided without Redis do not count. A block resets the count, lasts exactly the configured
    /// time, and is removed by [`Limiter::reset`](crate::Limiter::reset), which also resets the
    /// count.
    ///
    /// With Redis, each decision reads one more key in the same call. Denials are counted in this
    /// process, for up to 10,000 keys, and reported in batches: at once if the penalty may be due,
    /// in which case the denied call waits for the reply, otherwise within a second. Other replicas
    /// notice a block within a second plus the time for which they cache denials
    /// ([`RedisBuilder::deny_cache`](crate::RedisBuilder::deny_cache)). A policy with a penalty
    /// leases no permits.
    pub fn penalty(mut self, penalty: impl TryInto<Penalty, Error: Into<ConfigError>>) -> Self {
        self.extras.penalty = self.parse(penalty);
        self
    }

    /// Allows these keys without a decision, a charge or I/O: see [`KeyList`] for the entries.
    /// Default: none. The decision has no limits, and its [`Origin`](crate::Origin) is `KeyList`.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Origin, Policy, Rejection};
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let api = Policy::token_bucket("api")
    ///     .capacity(1)
    ///     .rate("1/min")
    ///     .allow_keys(["10.0.0.0/8"])
    ///     .deny_keys(["10.6.6.6", "203.0.113.*"])
    ///     .build()?;
    ///
    /// for _ in 0..3 {
    ///     assert_eq!(limits.check(&api, "10.1.2.3").await?.require()?.origin(), Origin::KeyList);
    /// }
    /// let denied = limits.check(&api, "10.6.6.6").await?.require();
    /// assert!(matches!(denied, Err(Rejection::Forbidden { .. })));
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    pub fn allow_keys(mut self, keys: impl TryInto<KeyList, Error: Into<ConfigError>>) -> Self {
        self.extras.allow_keys = self.parse(keys);
        self
    }

    /// Denies these keys without a decision or I/O, even if [`allow_keys`](Self::allow_keys)
    /// contains them. Default: none. Such a call is
    /// [`Rejection::Forbidden`](crate::Rejection::Forbidden) (HTTP 403), because a retry does not
    /// help.
    pub fn deny_keys(mut self, keys: impl TryInto<KeyList, Error: Into<ConfigError>>) -> Self {
        self.extras.deny_keys = self.parse(keys);
        self
    }
}
