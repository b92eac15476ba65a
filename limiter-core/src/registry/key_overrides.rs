//! Quotas of single keys.

use std::fmt;
use std::sync::{Arc, PoisonError};

use crate::error::ConfigError;
use crate::key::Key;
use crate::policy::Policy;
use crate::registry::PolicyRegistry;
use crate::registry::sources::SourceStack;
use crate::support::clock::Clock;
use crate::units::Timestamp;

/// A key's own quota under a policy of a [`PolicyRegistry`](crate::registry::PolicyRegistry): the
/// same algorithm with other numbers. See
/// [`PolicyRegistry::set_override`](crate::registry::PolicyRegistry::set_override).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyOverride {
    policy: Policy,
    key: Key<'static>,
    until: Option<Timestamp>,
}

impl KeyOverride {
    /// For this key the policy of the same name in the registry has the numbers of this one: a
    /// capacity and a rate, a limit and a window, or a maximum. All else (deadline, group, …) is as
    /// in the registry. For good, unless it is given an [end](Self::until).
    ///
    /// A colon of this key is any colon of the key of a call, also one of a value that
    /// [`Key::part`] or an annotation has put into it: `user:2001:db8::7` is the address under
    /// `key = "user:{ip}"`. A quota whose key has the colon as such a value has it counts before.
    /// Periods of a fixed window begin as those of the registry's policy, unless these numbers are
    /// [aligned](crate::PolicyBuilder::aligned) themselves.
    ///
    /// A key that is in a group by [`Key::in_group`] is another key than the same without one,
    /// unless it is the policy's own group.
    #[must_use]
    pub fn new<'a>(numbers: Policy, key: impl Into<Key<'a>>) -> Self {
        Self {
            policy: numbers,
            key: key.into().into_owned(),
            until: None,
        }
    }

    /// Ends at this moment of the limiter's clock: a test's where it has one, else the system's. A
    /// [`SystemTime`](std::time::SystemTime) serves as well.
    #[must_use]
    pub fn until(self, end: impl Into<Timestamp>) -> Self {
        Self {
            until: Some(end.into()),
            ..self
        }
    }

    /// Whose numbers it has. Its settings beside these mean nothing.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The name of the policy in the registry.
    #[must_use]
    pub fn policy_name(&self) -> &str {
        self.policy.name()
    }

    /// Whose quota it is.
    #[must_use]
    pub fn key(&self) -> &Key<'static> {
        &self.key
    }

    /// When it ends, if it does.
    #[must_use]
    pub fn end(&self) -> Option<Timestamp> {
        self.until
    }

    /// Whether it has numbers for a policy of this algorithm.
    pub(super) fn fits(&self, base: &Policy) -> bool {
        self.policy.algorithm().code() == base.algorithm().code() && base.can_have_quota_of(&self.policy)
    }

    /// Whether it still counts.
    pub(super) fn holds_at(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// By what they are listed.
    pub(super) fn order(&self) -> (&str, Option<&str>) {
        (self.key.as_str(), self.key.group(None))
    }
}

/// `ann of search (token bucket: 100, refilled at 50/s)`.
impl fmt::Display for KeyOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.key.as_str(), self.policy)
    }
}

impl PolicyRegistry {
    /// Gives a key a quota of its own, in place of the one that
    /// [code](Self#where-policies-come-from) has given it: a customer's, say. What it has used it
    /// has used. Under a policy with a group, the key in this group is the key without one.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::registry::PolicyRegistry;
    /// use limiter_core::registry::KeyOverride;
    /// use limiter_core::{Limiter, ManualClock, Policy};
    /// use std::time::Duration;
    ///
    /// let daily = |limit: u32| Policy::sliding_window("daily").limit(limit).window("1d").build();
    /// let registry = PolicyRegistry::new().with(daily(100)?);
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).registry(&registry).build();
    ///
    /// let tomorrow = clock.now().after(Duration::from_secs(86_400));
    /// registry.set_override(KeyOverride::new(daily(500)?, "ann").until(tomorrow))?;
    /// assert_eq!(limits.named("daily").peek("ann").await?.remaining(), 500);
    /// assert_eq!(limits.named("daily").peek("bob").await?.remaining(), 100);
    ///
    /// clock.set(tomorrow);
    /// assert_eq!(limits.named("daily").peek("ann").await?.remaining(), 100);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] when the registry has no policy of this name and algorithm, and
    /// when there are [`MAX_OVERRIDES`](Self::MAX_OVERRIDES) already. Those that are over by the
    /// system's clock make room.
    pub fn set_override(&self, own: KeyOverride) -> Result<(), ConfigError> {
        let name = own.policy_name().to_owned();
        let mut sources = self.sources();
        let Some(entry) = self.get(&name) else {
            let expected = "a policy that is in the registry";
            return Err(ConfigError::invalid("policy of an override", name, expected));
        };
        let base = entry.policy();
        if !own.fits(base) {
            let expected = match own.policy().algorithm().code() == base.algorithm().code() {
                true => format!("a window that can begin as those of {base} do, or be aligned itself"),
                false => format!("numbers for {base}"),
            };
            return Err(ConfigError::invalid("override", own.policy(), expected));
        }
        if !sources.code().has_override(&own, base) && sources.code().overrides_count() >= Self::MAX_OVERRIDES
        {
            let over = sources.code().forget_overrides_until(Clock::System.calendar());
            over.iter().for_each(|name| self.renew(&sources, name));
            if sources.code().overrides_count() >= Self::MAX_OVERRIDES {
                let expected = format!("at most {}", Self::MAX_OVERRIDES);
                return Err(ConfigError::invalid(
                    "number of overrides",
                    Self::MAX_OVERRIDES + 1,
                    expected,
                ));
            }
        }
        let own = Arc::new(own);
        if sources.code().set_override(Arc::clone(&own), base) {
            self.renew_override(&sources, &name, own.key());
        }
        Ok(())
    }

    /// Takes the quota away again that code has given a key: whether there was one.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::registry::PolicyRegistry;
    /// use limiter_core::registry::KeyOverride;
    /// use limiter_core::{Limiter, Policy};
    ///
    /// let daily = |limit: u32| Policy::sliding_window("daily").limit(limit).window("1d").build();
    /// let registry = PolicyRegistry::new().with(daily(100)?);
    /// let limits = Limiter::in_process().registry(&registry).build();
    /// registry.set_override(KeyOverride::new(daily(500)?, "ann"))?;
    ///
    /// assert!(registry.remove_override("daily", "ann"));
    /// assert_eq!(limits.named("daily").peek("ann").await?.remaining(), 100);
    /// assert!(!registry.remove_override("daily", "ann"), "it is gone");
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    pub fn remove_override<'a>(&self, name: &str, key: impl Into<Key<'a>>) -> bool {
        let key = key.into().into_owned();
        let mut sources = self.sources();
        let removed = match self.get(name) {
            Some(entry) => sources.code().remove_override(&key, entry.policy()),
            None => sources.code().forget_override(name, &key),
        };
        if removed {
            self.renew_override(&sources, name, &key);
        }
        removed
    }

    /// The keys that have a quota of their own under a policy, in the order of their texts. Those
    /// are among them that are over and were not taken out. Where several sources give a key one,
    /// it is the one that counts by the system's clock.
    ///
    /// ```
    /// use limiter_core::registry::PolicyRegistry;
    /// use limiter_core::Policy;
    /// use limiter_core::registry::KeyOverride;
    ///
    /// let daily = |limit: u32| Policy::sliding_window("daily").limit(limit).window("1d").build();
    /// let registry = PolicyRegistry::new().with(daily(100)?);
    /// registry.set_override(KeyOverride::new(daily(500)?, "bob"))?;
    /// registry.set_override(KeyOverride::new(daily(1_000)?, "ann"))?;
    ///
    /// let listed = registry.overrides("daily");
    /// let quotas: Vec<u64> = listed.iter().map(|own| own.policy().quota().whole()).collect();
    /// assert_eq!(quotas, [1_000, 500]);
    /// assert!(listed[0].to_string().starts_with("ann of daily"));
    /// assert!(registry.overrides("weekly").is_empty());
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn overrides(&self, name: &str) -> Vec<Arc<KeyOverride>> {
        let mut listed = self
            .with_effective(name, |effective| {
                effective.overrides().cloned().collect::<Vec<_>>()
            })
            .unwrap_or_default();
        listed.sort_unstable_by(|a, b| a.order().cmp(&b.order()));
        listed
    }

    /// Rebuilds the overrides of one key.
    fn renew_override(&self, sources: &SourceStack, name: &str, key: &Key<'static>) {
        if let Some(effective) = self
            .0
            .policies
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .get_mut(name)
        {
            let base = effective.entry.policy().clone();
            let overrides = sources
                .iter()
                .flat_map(|snapshot| snapshot.overrides_of(key, &base));
            effective.replace_overrides(key, overrides);
        }
        self.count_change();
    }
}
