//! Trial values: other numbers of a policy, decided beside it.
//!
//! A trial shows the effect of a new quota before it is adopted. It is a policy with the numbers of
//! the trial and with states of its own, and `enforcement/trial.rs` decides it together with each
//! charged call until its end.
//!
//! Invariant: a trial never changes the result of a call. Tests: `tests/contract/trials.rs`,
//! `tests/trials.rs`, `tests/entry_points.rs`.

use std::sync::Arc;

use crate::error::ConfigError;
use crate::identity::Prefix;
use crate::policy::inheritance::code;
use crate::policy::{Algorithm, OnStoreFailure, Policy, PolicyInner};
use crate::units::Timestamp;

/// The code of a trial's states follows that of the algorithm and the generation.
const CODE_SUFFIX: char = '~';

/// The trial of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TrialValues {
    /// The policy with the numbers of the trial, and with states of its own.
    pub(crate) policy: Policy,
    pub(crate) until: Timestamp,
}

impl Policy {
    /// Returns this policy with trial values: the quota, rate and window of another policy of the
    /// same algorithm. Until `end`, by the limiter's clock, each charged call is also decided with
    /// these numbers, under a state of its own that starts without usage. The result never affects
    /// the call. The metric `limiter_trial_decisions_total` counts the calls that the trial allows
    /// and those that it would deny.
    ///
    /// A trial costs one more decision for each charged call and the memory of one more state for
    /// each key. With Redis both requests are sent at the same time, so no round trip is added.
    /// Calls without a decision by the store (off, key lists, blocks) are not part of a trial, and
    /// neither are peeks, refunds, settlements and keys with an override. A waiting call is decided
    /// once, at its start.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use std::time::Duration;
    ///
    /// let sized = |capacity: u32| Policy::token_bucket("search").capacity(capacity).rate("1/h").build();
    /// let clock = ManualClock::new();
    /// let end = clock.now().after(Duration::from_secs(86_400));
    /// let search = sized(5)?.with_trial(&sized(1)?, end)?;
    ///
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// for _ in 0..2 {
    ///     assert!(limits.check(&search, "ann").await?.is_allowed());
    /// }
    /// let (trial, _) = search.trial().unwrap();
    /// assert_eq!(limits.peek(trial, "ann").await?.remaining(), 0);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for a concurrency policy, and for numbers of another algorithm.
    pub fn with_trial(&self, numbers: &Self, end: impl Into<Timestamp>) -> Result<Self, ConfigError> {
        if self.is_concurrency() {
            let expected = "none for a concurrency policy, which would need a second permit";
            return Err(ConfigError::invalid("trial", numbers, expected));
        }
        if !self.has_algorithm_of(numbers) {
            let expected = format!("the algorithm of {self}");
            return Err(ConfigError::invalid("trial", numbers, expected));
        }
        let trial = TrialValues {
            policy: self.as_trial(numbers),
            until: end.into(),
        };
        Ok(self.replacing_trial(Some(trial)))
    }

    /// Returns this policy without trial values.
    #[must_use]
    pub fn without_trial(&self) -> Self {
        self.replacing_trial(None)
    }

    /// Returns the policy that a trial decides, and the end of the trial. Its numbers can be
    /// adopted with [`with_numbers_of`](Self::with_numbers_of).
    #[must_use]
    pub fn trial(&self) -> Option<(&Self, Timestamp)> {
        let trial = self.extras()?.settings.trial.as_ref()?;
        Some((&trial.policy, trial.until))
    }

    /// Returns this policy with its trial in its own generation.
    pub(super) fn with_own_trial(self) -> Self {
        let Some((numbers, until)) = self.trial() else {
            return self;
        };
        let policy = self.as_trial(numbers);
        self.replacing_trial(Some(TrialValues { policy, until }))
    }

    fn has_algorithm_of(&self, other: &Self) -> bool {
        self.0.algorithm.code() == other.0.algorithm.code()
    }

    fn replacing_trial(&self, trial: Option<TrialValues>) -> Self {
        let mut inner = PolicyInner::clone(&self.0);
        let (mut settings, reported) = match inner.extras.take() {
            Some(extras) => (extras.settings, extras.reported),
            None => Default::default(),
        };
        settings.trial = trial;
        inner.extras = settings.build(&inner);
        if let Some(extras) = &mut inner.extras {
            // The key lists are unchanged, so their entries are not reported again.
            extras.reported = reported;
        }
        Self(Arc::new(inner))
    }

    /// Creates a policy with these numbers whose states differ from those of this policy. Without a
    /// reply of the store its decision is unknown.
    fn as_trial(&self, numbers: &Self) -> Self {
        let with_numbers = self.with_numbers_of(numbers);
        let mut inner = PolicyInner::clone(&with_numbers.0);
        let code = format!("{}{CODE_SUFFIX}", code(&inner.algorithm, self.generation()));
        inner.identity = Prefix::new(&code, &inner.name);
        #[cfg(feature = "redis")]
        {
            inner.code = code.into();
        }
        inner.store.on_store_failure = Some(OnStoreFailure::Error);
        inner.lease = None;
        inner.extras = None;
        if let Algorithm::Funnel(funnel) = &mut inner.algorithm {
            funnel.paced = false;
        }
        Self(Arc::new(inner))
    }
}
