//! Settings of a policy for the store: the deadline of a decision, and the decision without a
//! reply.
//!
//! A policy without these settings uses the defaults of the limiter. Its first decision creates a
//! copy with the defaults, which the policy keeps; later decisions compare only the defaults. The
//! copy has the states of its policy and is equal to it. Tests: `tests/limiter_defaults.rs`.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::policy::{OnStoreFailure, Policy, PolicyInner};

/// The settings that a limiter gives to policies without their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimiterDefaults {
    pub(crate) deadline: Duration,
    pub(crate) on_store_failure: OnStoreFailure,
}

impl Default for LimiterDefaults {
    fn default() -> Self {
        Self {
            deadline: Policy::DEFAULT_DEADLINE,
            on_store_failure: OnStoreFailure::default(),
        }
    }
}

/// The settings of a policy, and the defaults of a limiter for those that it does not set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoreSettings {
    pub(super) deadline: Option<Duration>,
    /// Bounds the default deadline, if the policy sets none.
    max_deadline: Option<Duration>,
    pub(super) on_store_failure: Option<OnStoreFailure>,
    defaults: LimiterDefaults,
}

impl StoreSettings {
    pub(super) fn new(deadline: Option<Duration>, on_store_failure: Option<OnStoreFailure>) -> Self {
        Self {
            deadline,
            on_store_failure,
            ..Self::default()
        }
    }

    pub(super) fn deadline(&self) -> Duration {
        let deadline = self.deadline.unwrap_or(self.defaults.deadline);
        deadline.min(self.max_deadline.unwrap_or(Duration::MAX))
    }

    pub(super) fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure.unwrap_or(self.defaults.on_store_failure)
    }

    /// Returns the settings with a deadline of at most this duration; `None` if they have it.
    pub(super) fn with_max_deadline(self, at_most: Duration) -> Option<Self> {
        let bound = self.deadline.or(self.max_deadline).unwrap_or(Duration::MAX);
        if bound <= at_most {
            return None;
        }
        // As in the builder, a deadline is positive.
        let at_most = at_most.max(Duration::from_micros(1));
        Some(match self.deadline {
            Some(_) => Self {
                deadline: Some(at_most),
                ..self
            },
            None => Self {
                max_deadline: Some(at_most),
                ..self
            },
        })
    }
}

/// Settings are equal if they are equal under every limiter.
impl PartialEq for StoreSettings {
    fn eq(&self, other: &Self) -> bool {
        let own = |of: &Self| (of.deadline, of.max_deadline, of.on_store_failure);
        own(self) == own(other)
    }
}

/// The copies of a policy with the defaults of limiters: a list with one entry for each pair of
/// defaults, kept as long as the policy. A clone belongs to another policy and starts empty.
#[derive(Default)]
pub(super) struct PolicyCopies(OnceLock<Box<PolicyCopy>>);

struct PolicyCopy {
    defaults: LimiterDefaults,
    policy: Policy,
    next: PolicyCopies,
}

impl PolicyCopies {
    fn get_or_init(&self, defaults: &LimiterDefaults, init: impl Fn() -> Policy) -> &Policy {
        let mut list = self;
        loop {
            let copy = list.0.get_or_init(|| {
                Box::new(PolicyCopy {
                    defaults: *defaults,
                    policy: init(),
                    next: Self::default(),
                })
            });
            if copy.defaults == *defaults {
                return &copy.policy;
            }
            list = &copy.next;
        }
    }
}

impl Clone for PolicyCopies {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Policy {
    /// Returns the policy with the defaults of a limiter.
    #[inline]
    pub(crate) fn with_defaults(&self, defaults: &LimiterDefaults) -> &Self {
        let store = &self.0.store;
        let is_complete = store.deadline.is_some() && store.on_store_failure.is_some();
        if is_complete || store.defaults == *defaults {
            return self;
        }
        self.copy_with_defaults(defaults)
    }

    #[inline(never)]
    fn copy_with_defaults(&self, defaults: &LimiterDefaults) -> &Self {
        self.0.copies.get_or_init(defaults, || {
            self.with_store_settings(StoreSettings {
                defaults: *defaults,
                ..self.0.store
            })
        })
    }

    /// Returns the policy with this deadline.
    pub(crate) fn with_deadline(&self, deadline: Duration) -> Self {
        self.with_store_settings(StoreSettings {
            // As in the builder, a deadline is positive.
            deadline: Some(deadline.max(Duration::from_micros(1))),
            max_deadline: None,
            ..self.0.store
        })
    }

    /// Returns a copy with these settings, which its penalty and its previous policy have too.
    pub(super) fn with_store_settings(&self, store: StoreSettings) -> Self {
        let mut inner = PolicyInner::clone(&self.0);
        inner.store = store;
        let scaled = inner.scaled.take();
        inner.scaled = scaled.map(|scaled| Arc::new(scaled.with_store_settings(store)));
        let extras = inner.extras.take();
        inner.extras = extras.and_then(|extras| extras.rebuilt_for(&inner));
        Self(Arc::new(inner))
    }

    /// Returns the deadline if the policy sets one, independent of the limiter.
    #[cfg(feature = "registry")]
    pub(crate) fn own_deadline(&self) -> Option<Duration> {
        let store = &self.0.store;
        let is_set = store.deadline.is_some() || store.max_deadline.is_some();
        is_set.then(|| store.deadline())
    }

    /// Returns the decision without a reply if the policy sets one, independent of the limiter.
    #[cfg(feature = "registry")]
    pub(crate) fn own_on_store_failure(&self) -> Option<OnStoreFailure> {
        self.0.store.on_store_failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: LimiterDefaults = LimiterDefaults {
        deadline: Duration::from_millis(7),
        on_store_failure: OnStoreFailure::FailOpen,
    };

    fn policy() -> Policy {
        let bucket = Policy::token_bucket("p").capacity(2).rate(1);
        bucket.penalty("3 in 1m: 1h").build().unwrap()
    }

    #[test]
    fn copy_has_defaults_and_equals_its_policy() {
        let policy = policy();
        let copy = policy.with_defaults(&OTHER);
        assert_eq!(copy.deadline(), OTHER.deadline);
        assert_eq!(copy.on_store_failure(), OTHER.on_store_failure);
        assert_eq!(*copy, policy);
        let penalty = copy.penalty_limits().unwrap();
        assert_eq!(penalty.block.deadline(), OTHER.deadline);
        assert_eq!(penalty.counter.on_store_failure(), OTHER.on_store_failure);
        assert!(std::ptr::eq(copy, policy.with_defaults(&OTHER)), "made once");
        assert_eq!(policy.deadline(), Policy::DEFAULT_DEADLINE);
    }

    #[test]
    fn limiters_have_copies_of_their_own() {
        let policy = policy();
        let third = LimiterDefaults {
            deadline: Duration::from_secs(2),
            ..OTHER
        };
        let deadlines = [&OTHER, &third, &OTHER, &LimiterDefaults::default()]
            .map(|defaults| policy.with_defaults(defaults).deadline());
        let expected = [
            OTHER.deadline,
            third.deadline,
            OTHER.deadline,
            Policy::DEFAULT_DEADLINE,
        ];
        assert_eq!(deadlines, expected);
        let of_copy = policy.with_defaults(&OTHER).with_defaults(&third);
        assert_eq!(of_copy.deadline(), third.deadline);
    }

    #[test]
    fn own_settings_take_precedence() {
        let bucket = || Policy::token_bucket("p").capacity(2).rate(1);
        let deadline = Duration::from_millis(50);
        let policy = bucket().deadline(deadline).build().unwrap();
        let copy = policy.with_defaults(&OTHER);
        assert_eq!(copy.deadline(), deadline);
        assert_eq!(copy.on_store_failure(), OnStoreFailure::FailOpen);
        let policy = bucket().on_store_failure(OnStoreFailure::Local).build().unwrap();
        let copy = policy.with_defaults(&OTHER);
        assert_eq!(copy.deadline(), OTHER.deadline);
        assert_eq!(copy.on_store_failure(), OnStoreFailure::Local);
        assert_ne!(policy, bucket().build().unwrap(), "a set default is a setting");
    }

    #[test]
    fn changed_policy_has_no_copy_of_its_predecessor() {
        let (policy, larger) = (policy(), Policy::token_bucket("p").capacity(9).rate(1));
        let copy = policy.with_defaults(&OTHER);
        let changed = copy.with_numbers_of(&larger.build().unwrap());
        assert_eq!(changed.quota().whole(), 9);
        assert_eq!(
            changed.with_defaults(&LimiterDefaults::default()).quota().whole(),
            9
        );
        let changed = policy.with_numbers_of(&changed);
        assert_eq!(changed.with_defaults(&OTHER).quota().whole(), 9);
    }

    #[test]
    fn maximum_bounds_own_and_default_deadlines() {
        let most = Duration::from_millis(5);
        let own = Policy::token_bucket("p").capacity(2).rate(1);
        let own = own.deadline(Duration::from_millis(9)).build().unwrap();
        for policy in [policy(), own] {
            let bounded = policy.with_max_deadline(most);
            assert_eq!(bounded.deadline(), most);
            assert_eq!(bounded.with_defaults(&OTHER).deadline(), most);
            if let Some(penalty) = bounded.penalty_limits() {
                assert_eq!(penalty.block.deadline(), most);
            }
        }
        let bounded = policy().with_max_deadline(Duration::from_millis(90));
        assert_eq!(bounded.deadline(), Policy::DEFAULT_DEADLINE);
        assert_eq!(bounded.with_defaults(&OTHER).deadline(), OTHER.deadline);
    }
}
