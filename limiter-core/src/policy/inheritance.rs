//! Policy changes and the usage that limits keep across a change.
//!
//! A reset gives a policy a new generation, which is part of its identity, so that earlier usage is
//! not found. A proportional change stores the previous numbers and the time of the change in the
//! policy, and the first call for a limit converts its state. Both are data of the policy, so that
//! all replicas with the policy apply them without coordination. Tests: below, and
//! `tests/contract/inheritance.rs`.

use std::borrow::Cow;
use std::sync::Arc;

use crate::error::ConfigError;
use crate::identity::Prefix;
use crate::policy::store_settings::StoreSettings;
use crate::policy::{Algorithm, Policy, PolicyInner};
use crate::units::Timestamp;

/// Effect of a policy change on existing usage. See
/// [`PolicyRegistry::change`](crate::registry::PolicyRegistry::change).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Inheritance {
    /// The stored state is kept: a bucket keeps its remaining tokens, a funnel and a window keep
    /// their usage. The default.
    ///
    /// A larger bucket starts with the remaining tokens and refills at its rate, as long as the
    /// stored state counts: until the bucket is full under every policy that has charged the key.
    /// Afterwards the key is like an unused one with a full bucket. If two keys have used 2 of 2
    /// when the capacity is raised to 100, a key that is called needs 100 refills to be full; a key
    /// that is idle until its two tokens are refilled then has 100. Use
    /// [`Proportional`](Self::Proportional) or [`Reset`](Self::Reset) if all keys shall benefit at
    /// once, or a funnel, because its state is the usage: with 2 used, 98 of 100 remain from the
    /// change on.
    #[default]
    AsIs,
    /// The usage remains the same fraction of the quota: a bucket that is half full stays half
    /// full. For token buckets, funnels, counter windows and fixed windows.
    Proportional,
    /// All usage is discarded.
    Reset,
}

/// The previous policy of a proportional change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PreviousPolicy {
    /// The previous numbers with the settings of the current policy.
    pub(crate) before: Policy,
    pub(crate) at: Timestamp,
    /// Time from which no usage under the previous policy remains.
    until: Timestamp,
}

impl PreviousPolicy {
    /// Returns the previous policy if the change has not taken effect.
    pub(crate) fn in_force_at(&self, now: Timestamp) -> Option<&Policy> {
        (now < self.at).then_some(&self.before)
    }

    /// Returns the change between policies with these settings.
    pub(super) fn with_store_settings(&self, store: StoreSettings) -> Self {
        Self {
            before: self.before.with_store_settings(store),
            ..*self
        }
    }

    /// True while limits may exist that were not used since the change.
    fn is_pending(&self, now: Timestamp) -> bool {
        now < self.until
    }
}

/// Returns the code of the algorithm in identities of a generation. User-defined names never occur
/// at this position, so no collision is possible.
pub(super) fn code(algorithm: &Algorithm, generation: u32) -> Cow<'static, str> {
    match generation {
        0 => Cow::Borrowed(algorithm.code()),
        _ => Cow::Owned(format!("{}.{generation}", algorithm.code())),
    }
}

impl Policy {
    /// Returns this policy with separate states for this generation, which start unused. Default:
    /// 0.
    ///
    /// A new generation together with a change discards the usage on every replica that has the
    /// change. Usage under another generation is ignored and expires normally. While replicas use
    /// different generations, each generation admits its own quota.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy};
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let search = Policy::token_bucket("search").capacity(2).rate("1/h").build()?;
    /// limits.check(&search, "ann").cost(2).await?.require()?;
    /// let next = search.with_generation(1);
    /// assert_eq!(limits.peek(&next, "ann").await?.remaining(), 2);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn with_generation(self, generation: u32) -> Self {
        if self.generation() == generation {
            return self;
        }
        let inner = self.0;
        let code = code(&inner.algorithm, generation);
        let mut inner = PolicyInner {
            identity: Prefix::new(&code, &inner.name),
            #[cfg(feature = "redis")]
            code,
            generation,
            // Earlier usage is no longer found, so nothing is converted.
            scaled: None,
            ..(*inner).clone()
        };
        // Blocks of the previous generation end.
        let extras = inner.extras.take().map(|extras| extras.settings);
        inner.extras = extras.and_then(|settings| settings.build(&inner));
        Self(Arc::new(inner)).with_own_trial()
    }

    /// Returns this policy with the states of another generation, and keeps the proportional
    /// conversion.
    pub(crate) fn continued_in(self, generation: u32) -> Self {
        if self.generation() == generation {
            return self;
        }
        let scaled = self.0.scaled.clone();
        let policy = self.with_generation(generation);
        let Some(scaled) = scaled else { return policy };
        let scaled = PreviousPolicy {
            before: scaled.before.clone().with_generation(generation),
            ..*scaled
        };
        Self(Arc::new(PolicyInner {
            scaled: Some(Arc::new(scaled)),
            ..(*policy.0).clone()
        }))
    }

    /// Returns this policy with the conversion of a version with the same numbers, if that has
    /// begun and limits may exist that were not used since.
    pub(crate) fn keeping_conversion_of(self, version: &Self, now: Timestamp) -> Self {
        let is_same = self.0.algorithm == version.0.algorithm && self.generation() == version.generation();
        match version.pending(now) {
            Some(scaled) if is_same && self.0.scaled.is_none() && scaled.in_force_at(now).is_none() => {
                let scaled = PreviousPolicy {
                    before: self.without_trial().with_numbers_of(&scaled.before),
                    ..*scaled
                };
                Self(Arc::new(PolicyInner {
                    scaled: Some(Arc::new(scaled)),
                    ..(*self.0).clone()
                }))
            }
            _ => self,
        }
    }

    /// Returns the generation of its states; see [`with_generation`](Self::with_generation).
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.0.generation
    }

    /// Returns this policy as the successor of `before` from the time `at` of the store's clock:
    /// usage from before the change is converted to the same fraction of the new quota; usage since
    /// the change is kept.
    ///
    /// If `before` is itself the successor of a policy from this time or a later one, this policy
    /// replaces it: the usage is converted from that earlier policy.
    ///
    /// Until that time calls are decided by `before`; a cost above the old quota is denied until
    /// then, and its retry time is meaningless. Replicas that receive the change at different times
    /// agree if the time is in the future for all of them. Otherwise a limit that a replica charges
    /// under the old numbers after the change is not converted. In both cases, over any time, the
    /// larger quota with the faster rate bounds the admitted cost.
    ///
    /// The first call for a limit, including a peek, converts it; rounding is against the caller.
    /// Debts are converted too. Permits that are [leased](crate::PolicyBuilder::lease) at that time
    /// are not converted. After two changes within the refill time of the quota, only the last one
    /// converts a limit that was not used between them, as if its usage were that of the second
    /// policy: a limit that was made smaller twice may be denied for longer. A clock that is set
    /// back across the change may convert a limit a second time.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy};
    ///
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// let small = Policy::token_bucket("search").capacity(10).rate("1/h").build()?;
    /// let large = Policy::token_bucket("search").capacity(100).rate("10/h").build()?;
    /// limits.check(&small, "ann").cost(5).await?.require()?;
    ///
    /// clock.advance(std::time::Duration::from_secs(1));
    /// let large = large.proportional_to(&small, clock.now())?;
    /// assert_eq!(limits.peek(&large, "ann").await?.remaining(), 50);
    /// assert_eq!(limits.peek(&large, "bob").await?.remaining(), 100);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] if `before` has another algorithm, and for exact windows and
    /// concurrency policies, which store individual permits.
    pub fn proportional_to(self, before: &Self, at: Timestamp) -> Result<Self, ConfigError> {
        // No usage from before `at` exists under a policy whose change is not in force before `at`.
        let scheduled = before.scaled().filter(|scaled| at <= scaled.at);
        let before = scheduled.map_or(before, |scaled| &scaled.before);
        let rejected = |name, value: &Self, expected: &str| Err(ConfigError::invalid(name, value, expected));
        if let Algorithm::SlidingWindow(_) | Algorithm::Concurrency(_) = self.0.algorithm {
            let expected = "a token bucket, a funnel, a counter window or a fixed window";
            return rejected("proportionally changed policy", &self, expected);
        }
        if self.0.algorithm.code() != before.0.algorithm.code() {
            let expected = format!("the algorithm of {self}");
            return rejected("policy before the change", before, &expected);
        }
        // A window counts for at most two of its lengths, a level until it is full; twice that with
        // debts.
        let longest = (self.window().saturating_add(before.window())).saturating_mul(2);
        let scaled = PreviousPolicy {
            before: self.without_trial().with_numbers_of(before),
            at,
            until: at.after(longest),
        };
        Ok(Self(Arc::new(PolicyInner {
            scaled: Some(Arc::new(scaled)),
            ..(*self.0).clone()
        })))
    }

    /// Returns the previous policy of a proportional change, and the time of the change.
    #[must_use]
    pub fn before(&self) -> Option<(&Self, Timestamp)> {
        let scaled = self.0.scaled.as_deref()?;
        Some((&scaled.before, scaled.at))
    }

    /// Returns the previous policy, independent of the time.
    pub(crate) fn scaled(&self) -> Option<&PreviousPolicy> {
        self.0.scaled.as_deref()
    }

    /// Returns the previous policy while limits may exist that were used under it.
    pub(crate) fn pending(&self, now: Timestamp) -> Option<&PreviousPolicy> {
        self.0.scaled.as_deref().filter(|scaled| scaled.is_pending(now))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::policy::inheritance::*;

    fn bucket(capacity: u32, rate: &str) -> Policy {
        Policy::token_bucket("p")
            .capacity(capacity)
            .rate(rate)
            .build()
            .unwrap()
    }

    #[test]
    fn conversion_ends_when_no_usage_can_remain() {
        let at = Timestamp::from_micros(1_700_000_000_000_000);
        let changed = bucket(10, "1/s")
            .proportional_to(&bucket(100, "1/s"), at)
            .unwrap();
        let longest = Duration::from_secs(2 * (10 + 100));
        assert_eq!(changed.before().unwrap().0.quota().whole(), 100);
        assert!(
            changed
                .pending(at.after(longest - Duration::from_micros(1)))
                .is_some()
        );
        assert!(changed.pending(at.after(longest)).is_none());
    }

    #[test]
    fn exact_windows_and_concurrency_are_not_converted() {
        let at = Timestamp::from_micros(1);
        let window = Policy::sliding_window("p").limit(1).window("1s").build().unwrap();
        let concurrency = Policy::concurrency("p").max(1).build().unwrap();
        for rejected in [window, concurrency] {
            let message = rejected
                .clone()
                .proportional_to(&rejected, at)
                .unwrap_err()
                .to_string();
            assert!(
                message.contains("expected a token bucket, a funnel, a counter window"),
                "{message}"
            );
        }
        let funnel = Policy::funnel("p").capacity(1).rate(1).build().unwrap();
        let message = bucket(1, "1/s")
            .proportional_to(&funnel, at)
            .unwrap_err()
            .to_string();
        assert!(
            message.starts_with("policy before the change is `p (funnel"),
            "{message}"
        );
    }

    #[test]
    fn generations_have_separate_states() {
        let policy = bucket(1, "1/s");
        let raised = policy.clone().with_generation(3);
        assert_ne!(policy, raised);
        assert_ne!(policy.identity(None, "k"), raised.identity(None, "k"));
        assert_eq!(raised.with_generation(0), policy);
    }
}
