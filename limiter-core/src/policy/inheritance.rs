//! What a policy was before it was changed, and what its limits keep of what was used then.

use std::borrow::Cow;
use std::sync::Arc;

use crate::error::ConfigError;
use crate::identity::Prefix;
use crate::policy::{Algorithm, Policy, PolicyInner};
use crate::units::Timestamp;

/// What a change of a policy means for who has used something. See
/// [`PolicyRegistry::change`](crate::registry::PolicyRegistry::change).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Inheritance {
    /// It is found as it is: a bucket keeps what is left, a funnel and a window what was used. The
    /// default.
    ///
    /// A larger bucket begins with the tokens that were left, and refills at its rate. It does so
    /// as long as the stored state counts: until the bucket is full under every policy that has
    /// decided about the key. After that the key is like one that was never used, which has a full
    /// bucket. So of two keys that had used 2 of 2 when the capacity was raised to 100, one that is
    /// called goes on from its tokens and needs 100 refills to be full; one that rests until its
    /// two tokens are back then has 100. Choose [`Proportional`](Self::Proportional) or
    /// [`Reset`](Self::Reset) if all keys shall profit at once, or a funnel, whose state is its
    /// usage: with 2 used, 98 of 100 are left from the change on.
    #[default]
    AsIs,
    /// A limit of which a part was used has used the same part of the new quota: a bucket half full
    /// stays half full. For token buckets, funnels, counter windows and fixed windows.
    Proportional,
    /// Everybody starts afresh.
    Reset,
}

/// Another policy that this one was until a moment, in proportion to which it goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PreviousPolicy {
    /// All but its numbers is as in the policy that it has become.
    pub(crate) before: Policy,
    pub(crate) at: Timestamp,
    /// From when on nothing is left of what was used before.
    until: Timestamp,
}

impl PreviousPolicy {
    /// The policy before the change, until it.
    pub(crate) fn in_force_at(&self, now: Timestamp) -> Option<&Policy> {
        (now < self.at).then_some(&self.before)
    }

    /// Whether a limit may still be found that nobody has used since the change.
    fn is_pending(&self, now: Timestamp) -> bool {
        now < self.until
    }
}

/// How an algorithm is called in the identities of states of a generation. No name that a person
/// gives stands at this place, so none can be taken for it.
pub(super) fn code(algorithm: &Algorithm, generation: u32) -> Cow<'static, str> {
    match generation {
        0 => Cow::Borrowed(algorithm.code()),
        _ => Cow::Owned(format!("{}.{generation}", algorithm.code())),
    }
}

impl Policy {
    /// This policy with states of their own for this generation, each of which begins afresh.
    /// Default: 0.
    ///
    /// Raised together with a change it has everybody start afresh, on every replica that has the
    /// change. What was used under another generation is not looked at; it is forgotten when it
    /// would have come back. As long as some replicas have the one generation and some the other,
    /// each admits what its own allows.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy};
    ///
    /// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// let search = Policy::token_bucket("search").capacity(2).rate("1/h").build()?;
    /// limits.check(&search, "ann").cost(2).await?.require()?;
    /// let afresh = search.with_generation(1);
    /// assert_eq!(limits.peek(&afresh, "ann").await?.remaining(), 2);
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
            // What was used before is found no more, in whatever proportion.
            scaled: None,
            ..(*inner).clone()
        };
        // Who was blocked is not blocked any more.
        let extras = inner.extras.take().map(|extras| extras.settings);
        inner.extras = extras.and_then(|settings| settings.build(&inner));
        Self(Arc::new(inner))
    }

    /// The same as a policy that goes on with the states of this generation: in proportion still,
    /// if it is that.
    pub(crate) fn going_on_in(self, generation: u32) -> Self {
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

    /// Which states are its own; see [`with_generation`](Self::with_generation).
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.0.generation
    }

    /// This policy as what `before` became at a moment of the store's clock: limits that were used
    /// before, and not since, have used the same part of the new quota. Else they are found as they
    /// are.
    ///
    /// Until that moment calls are decided by `before`; a cost that only the new quota can hold is
    /// denied until then, and the wait that it is told is of no account. So replicas that hear of
    /// the change at different times agree if the moment is ahead of all of them. Where it is not,
    /// a limit that one of them charges by the old numbers after the moment is found as it is.
    /// Either way no more is admitted, over any time, than by the larger quota with the faster
    /// rate.
    ///
    /// Whoever asks about a limit for the first time, be it a peek, has it converted; what the
    /// permits come to is rounded against the caller. Debts are converted too. Permits that are
    /// [borrowed](crate::PolicyBuilder::lease) at that moment stay what they are. Two changes
    /// within the time that the quota takes to come back are each taken for itself, and a clock
    /// that is set back across the moment may have a limit converted once more.
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
    /// [`ConfigError::Invalid`] when `before` has another algorithm, and for an exact window and
    /// what is in flight, whose permits are known one by one.
    pub fn proportional_to(self, before: &Self, at: Timestamp) -> Result<Self, ConfigError> {
        let refused = |what, value: &Self, expected: &str| Err(ConfigError::invalid(what, value, expected));
        if let Algorithm::SlidingWindow(_) | Algorithm::Concurrency(_) = self.0.algorithm {
            let expected = "a token bucket, a funnel, a counter window or a fixed window";
            return refused("policy changed in proportion", &self, expected);
        }
        if self.0.algorithm.code() != before.0.algorithm.code() {
            let expected = format!("the algorithm of {self}");
            return refused("policy before the change", before, &expected);
        }
        // A window counts for two of its lengths at most, a level until it is whole; twice that for
        // debts.
        let longest = (self.window().saturating_add(before.window())).saturating_mul(2);
        let scaled = PreviousPolicy {
            before: self.with_numbers_of(before),
            at,
            until: at.after(longest),
        };
        Ok(Self(Arc::new(PolicyInner {
            scaled: Some(Arc::new(scaled)),
            ..(*self.0).clone()
        })))
    }

    /// What this policy was before a change in proportion, and until when.
    #[must_use]
    pub fn before(&self) -> Option<(&Self, Timestamp)> {
        let scaled = self.0.scaled.as_deref()?;
        Some((&scaled.before, scaled.at))
    }

    /// Whether something may have to be [converted](Self::proportional_to), which few policies ever
    /// have.
    #[inline]
    pub(crate) fn is_scaled(&self) -> bool {
        self.0.scaled.is_some()
    }

    /// What it was before, however long ago.
    pub(crate) fn scaled(&self) -> Option<&PreviousPolicy> {
        self.0.scaled.as_deref()
    }

    /// What it was before, as long as limits may be found that were used then.
    pub(crate) fn pending(&self, now: Timestamp) -> Option<&PreviousPolicy> {
        self.0.scaled.as_deref().filter(|scaled| scaled.is_pending(now))
    }

    /// What its algorithm is called in names of keys.
    #[cfg(feature = "redis")]
    pub(crate) fn code(&self) -> &str {
        &self.0.code
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
    fn a_change_is_over_when_nothing_can_be_left_of_what_was_used() {
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
    fn what_is_known_permit_by_permit_is_not_converted() {
        let at = Timestamp::from_micros(1);
        let window = Policy::sliding_window("p").limit(1).window("1s").build().unwrap();
        let flight = Policy::concurrency("p").max(1).build().unwrap();
        for refused in [window, flight] {
            let told = refused
                .clone()
                .proportional_to(&refused, at)
                .unwrap_err()
                .to_string();
            assert!(
                told.contains("expected a token bucket, a funnel, a counter window"),
                "{told}"
            );
        }
        let funnel = Policy::funnel("p").capacity(1).rate(1).build().unwrap();
        let told = bucket(1, "1/s")
            .proportional_to(&funnel, at)
            .unwrap_err()
            .to_string();
        assert!(
            told.starts_with("policy before the change is `p (funnel"),
            "{told}"
        );
    }

    #[test]
    fn another_generation_is_another_state() {
        let policy = bucket(1, "1/s");
        let raised = policy.clone().with_generation(3);
        assert_ne!(policy, raised);
        assert_ne!(policy.identity(None, "k"), raised.identity(None, "k"));
        assert_eq!(raised.with_generation(0), policy);
    }
}
