//! What few policies say: whether they are enforced, whom they list, and what becomes of what they
//! deny.

use crate::error::ConfigError;
use crate::policy::builder::PolicyBuilder;
use crate::policy::{Enforcement, KeyList, OnDenial, Penalty};

impl<S> PolicyBuilder<S> {
    /// Whether its decisions are obeyed. Default: [`Enforcement::Enforce`]. The limiter's own
    /// setting can only be looser.
    pub fn enforcement(mut self, enforcement: Enforcement) -> Self {
        self.extras.enforcement = enforcement;
        self
    }

    /// What becomes of a denied call in [`Limiter::admit`](crate::Limiter::admit), in annotated
    /// functions and behind a layer. Default: [`OnDenial::Reject`]. Of what is in flight, annotated
    /// functions and layers wait for a permit; it cannot be [`Degrade`](OnDenial::Degrade).
    pub fn on_denial(mut self, answer: OnDenial) -> Self {
        self.extras.on_denial = answer;
        self
    }

    /// Blocks a key for a while that was denied too often, on every replica: what
    /// [`Penalty::after`] makes, or text such as `"10 in 1m: 15m"`. Default: none.
    ///
    /// Each denied call counts once, peeks and calls in shadow mode do not, and neither do those
    /// that come while the key is blocked, or are decided without Redis while it is out. A block
    /// begins with the count at zero, lasts for exactly as long as the penalty says, and is lifted
    /// by [`Limiter::reset`](crate::Limiter::reset), which forgets the count as well.
    ///
    /// With Redis, each decision reads one key more, in the same call. Denials are counted in this
    /// process, of up to 10,000 keys, and told in batches: when the penalty may be due, which the
    /// call that is denied waits for, else within a second. So a replica that was not the one to
    /// set it learns of a block within a second and the time for which it keeps denials
    /// ([`RedisBuilder::deny_cache`](crate::RedisBuilder::deny_cache)). A policy with a penalty
    /// does not borrow.
    pub fn penalty(mut self, penalty: impl TryInto<Penalty, Error: Into<ConfigError>>) -> Self {
        self.extras.penalty = self.parse(penalty);
        self
    }

    /// Allows these keys without a look, a charge or I/O: see [`KeyList`] for what can stand there.
    /// Default: none. The decision has no limits, and its [`Origin`](crate::Origin) says `KeyList`.
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

    /// Denies these keys without a look or I/O, also those that [`allow_keys`](Self::allow_keys)
    /// names. Default: none. Such a call is [`Rejection::Forbidden`](crate::Rejection::Forbidden)
    /// (HTTP 403), since waiting does not help it.
    pub fn deny_keys(mut self, keys: impl TryInto<KeyList, Error: Into<ConfigError>>) -> Self {
        self.extras.deny_keys = self.parse(keys);
        self
    }
}
