//! Policies with the numbers or the options of another policy, for changes and key overrides.

use std::sync::Arc;

use crate::policy::options::RareSettings;
use crate::policy::{Algorithm, Concurrency, FixedWindow, Funnel, OnDenial, Periods, Policy, PolicyInner};

impl Policy {
    /// Returns this policy with the quota, rate and window of another one, and with its own
    /// algorithm settings and options. State of this policy counts for the result if both have the
    /// same algorithm.
    #[must_use]
    pub fn with_numbers_of(&self, other: &Self) -> Self {
        let algorithm = match (self.0.algorithm, other.0.algorithm) {
            // The lease and the pacing are not numbers of permits.
            (Algorithm::Concurrency(own), Algorithm::Concurrency(Concurrency { max, .. })) => {
                Algorithm::Concurrency(Concurrency { max, ..own })
            }
            (Algorithm::Funnel(Funnel { paced, .. }), Algorithm::Funnel(numbers)) => {
                Algorithm::Funnel(Funnel { paced, ..numbers })
            }
            (_, other) => other,
        };
        Self(Arc::new(PolicyInner {
            algorithm,
            scaled: None,
            ..(*self.0).clone()
        }))
    }

    /// Returns this policy with the options of another one, which may have another algorithm:
    /// group, deadline, decision without a reply of the store, enforcement, handling of denials,
    /// penalty and key lists. Options that this algorithm cannot have are omitted, and so are a
    /// lease and trial values.
    ///
    /// ```
    /// use limiter_core::{Enforcement, Policy};
    ///
    /// let exact = Policy::sliding_window("search").limit(10).window("1m");
    /// let exact = exact.enforcement(Enforcement::Shadow).build()?;
    /// let estimated = Policy::counter_window("search").limit(100_000).window("1m").build()?;
    /// assert_eq!(estimated.with_options_of(&exact).enforcement(), Enforcement::Shadow);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn with_options_of(&self, other: &Self) -> Self {
        let mut inner = PolicyInner::clone(&self.0);
        inner.group.clone_from(&other.0.group);
        inner.escaped_group.clone_from(&other.0.escaped_group);
        inner.store = other.0.store;
        let settings = other.extras().map(|extras| extras.settings.clone());
        let settings = settings.unwrap_or_default();
        let is_concurrency = self.is_concurrency();
        let settings = RareSettings {
            penalty: (settings.penalty).filter(|_| !is_concurrency && inner.lease.is_none()),
            on_denial: match settings.on_denial {
                OnDenial::Degrade if is_concurrency => OnDenial::default(),
                on_denial => on_denial,
            },
            trial: None,
            ..settings
        };
        inner.extras = settings.build(&inner);
        inner.scaled = None;
        Self(Arc::new(inner))
    }

    /// Returns this policy with the quota of a key override. Periods of a fixed window start as in
    /// this policy, unless the override is aligned itself.
    pub(crate) fn with_quota_of(&self, other: &Self) -> Self {
        let mut own = self.without_trial().with_numbers_of(other);
        if let Some(aligned) = self.aligned_as_this(other) {
            if let Some(inner) = Arc::get_mut(&mut own.0) {
                inner.algorithm = Algorithm::FixedWindow(aligned);
            }
        }
        own
    }

    /// Returns the numbers of `other` with the alignment of this policy, if only this policy is
    /// aligned.
    fn aligned_as_this(&self, other: &Self) -> Option<FixedWindow> {
        let (Algorithm::FixedWindow(own), Algorithm::FixedWindow(numbers)) =
            (self.0.algorithm, other.0.algorithm)
        else {
            return None;
        };
        let (Periods::Aligned(offset) | Periods::Months(offset), Periods::FirstUse) =
            (own.periods, numbers.periods)
        else {
            return None;
        };
        let periods = Periods::Aligned(offset);
        Some(FixedWindow { periods, ..numbers })
    }
}
