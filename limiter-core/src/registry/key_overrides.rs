//! Reads and changes the overrides of a registry.
//!
//! A change replaces the override of one key in the source `code` and recomputes the effective
//! overrides of the key. The number of overrides that code sets is bounded; expired ones are
//! removed first. Tests: `tests/registry.rs`, `tests/contract/named.rs`.

use std::sync::Arc;

use crate::error::ConfigError;
use crate::key::Key;
use crate::registry::PolicyRegistry;
use crate::registry::key_override::KeyOverride;
use crate::registry::sources::SourceStack;
use crate::support::clock::Clock;

impl PolicyRegistry {
    /// Sets the quota of a key, for example of one customer, or replaces the one that
    /// [code](Self#where-policies-come-from) has set. The key's usage is kept. Under a policy with
    /// a group, the key in this group equals the key without one.
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
    /// when it already contains [`MAX_OVERRIDES`](Self::MAX_OVERRIDES). Overrides that have ended
    /// by the system's clock are removed first.
    pub fn set_override(&self, own: KeyOverride) -> Result<(), ConfigError> {
        let name = own.policy_name().to_owned();
        let mut sources = self.sources();
        let Some(entry) = self.get(&name) else {
            let expected = "a policy that is in the registry";
            return Err(ConfigError::invalid("policy of an override", name, expected));
        };
        let base = entry.policy();
        if !own.fits(base) {
            let expected = format!("numbers for {base}");
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

    /// Removes the quota that code has set for a key. Returns whether there was one.
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

    /// Returns the keys that have an override under a policy, in alphabetical order, including
    /// overrides that have ended and were not removed. If several sources set one for a key, the
    /// list contains the one that applies by the system's clock.
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

    /// Recomputes the effective overrides of one key.
    fn renew_override(&self, sources: &SourceStack, name: &str, key: &Key<'static>) {
        if let Some(effective) = self.0.policies.write().get_mut(name) {
            let base = effective.entry.policy().clone();
            let overrides = sources
                .iter()
                .flat_map(|snapshot| snapshot.overrides_of(key, &base));
            effective.replace_overrides(key, overrides);
        }
        self.count_change();
    }
}
