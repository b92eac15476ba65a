//! Policy changes that define the conversion of the recorded usage.
//!
//! `change` replaces a policy and stores the conversion in it: a higher generation for a reset, the
//! previous numbers for a proportional change (`policy/inheritance.rs`).
//!
//! Invariant: the generation of a name never decreases, so that usage from before a reset does not
//! count again, even if the name was removed meanwhile (`retired_generations`). Tests:
//! `tests/registry.rs`, `tests/contract/inheritance.rs`.

use crate::error::ConfigError;
use crate::policy::Inheritance;
use crate::registry::{PolicyEntry, PolicyRegistry};
use crate::support::clock::Clock;
use crate::units::Timestamp;

impl PolicyRegistry {
    /// Adds a policy to the registry, as [`set`](Self::set) does, and converts the usage that was
    /// recorded under the previous policy of this name.
    ///
    /// - [`AsIs`](Inheritance::AsIs): keeps the usage, as `set` does.
    /// - [`Reset`](Inheritance::Reset): deletes all usage, by a policy
    ///   [generation](crate::Policy::with_generation) that is one higher than the previous one.
    /// - [`Proportional`](Inheritance::Proportional): scales the usage by the ratio of the quotas,
    ///   as [`Policy::proportional_to`](crate::Policy::proportional_to) describes. The time of the
    ///   change is the current time of this machine's clock; [`change_at`](Self::change_at) sets
    ///   another one. For a limiter with a test clock, that time may be in the future, so that the
    ///   old quota still applies; use `change_at` with the time of that clock.
    ///
    /// The conversion is part of the policy and of the registry's text, so that all replicas that
    /// follow the registry apply it. `RedisRegistry::edit` makes such a change in the registry in
    /// Redis. Without a previous policy of this name there is no usage to convert.
    ///
    /// While only some replicas have received a change, all replicas charge the same limits (except
    /// after a reset) and together admit at most the larger quota at the faster rate; after a reset
    /// each generation admits its own quota.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use limiter_core::registry::PolicyRegistry;
    /// use limiter_core::{Inheritance, Limiter, ManualClock, Policy};
    ///
    /// let sized = |capacity: u32| Policy::token_bucket("search").capacity(capacity).rate("1/h").build();
    /// let clock = ManualClock::new();
    /// let registry = PolicyRegistry::new().with(sized(10)?);
    /// let limits = Limiter::in_process().clock(&clock).registry(&registry).build();
    /// let search = limits.named("search");
    /// search.check("ann").cost(5).await?.require()?;
    ///
    /// clock.advance(std::time::Duration::from_secs(1));
    /// registry.change_at(sized(100)?, Inheritance::Proportional, clock.now())?;
    /// assert_eq!(search.peek("ann").await?.remaining(), 50, "half full, as before");
    ///
    /// registry.change(sized(100)?, Inheritance::Reset)?;
    /// assert_eq!(search.peek("ann").await?.remaining(), 100);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] as for [`Policy::proportional_to`](crate::Policy::proportional_to),
    /// for a reset of the last generation number, and for a concurrency policy in place of a rate
    /// policy or the reverse. The registry is then unchanged.
    pub fn change(&self, entry: impl Into<PolicyEntry>, inheritance: Inheritance) -> Result<(), ConfigError> {
        self.change_at(entry, inheritance, Clock::System.now())
    }

    /// Makes a [`change`](Self::change) as of a time of the store's clock, which only a
    /// proportional change uses. Replicas that follow the registry change at the same time if the
    /// time is far enough ahead that all of them have received the change by then: one or two
    /// seconds.
    ///
    /// # Errors
    ///
    /// As [`change`](Self::change).
    pub fn change_at(
        &self,
        entry: impl Into<PolicyEntry>,
        inheritance: Inheritance,
        at: Timestamp,
    ) -> Result<(), ConfigError> {
        let entry = entry.into();
        let name: Box<str> = entry.policy().name().into();
        let mut sources = self.sources();
        if let Some(error) = self.kind_change_error(&entry) {
            let expected = "a policy of the same kind (rate or concurrency) under this name";
            return Err(ConfigError::invalid("change", error, expected));
        }
        let left = sources.generation_in_code(&name);
        let entry = match self.get(&name) {
            Some(before) => inheriting(entry, &before, inheritance, at)?,
            None => match (left, inheritance) {
                (Some(left), Inheritance::Reset) => {
                    let generation = next(left.max(entry.policy().generation()))?;
                    let policy = entry.policy().clone().with_generation(generation);
                    entry.with_policy(policy)
                }
                _ => in_current_generation(entry, left),
            },
        };
        if sources.set_in_code(entry, Clock::System.now()) {
            self.renew(&sources, &name);
        }
        Ok(())
    }
}

/// Returns the entry with the state inheritance from the previous entry.
fn inheriting(
    entry: PolicyEntry,
    before: &PolicyEntry,
    inheritance: Inheritance,
    at: Timestamp,
) -> Result<PolicyEntry, ConfigError> {
    let (policy, old) = (entry.policy().clone(), before.policy());
    let generation = policy.generation().max(old.generation());
    let policy = match inheritance {
        Inheritance::AsIs => policy
            .continued_in(generation)
            .keeping_conversion_of(old, Clock::System.now()),
        Inheritance::Proportional => policy.with_generation(generation).proportional_to(old, at)?,
        Inheritance::Reset => policy.with_generation(next(generation)?),
    };
    Ok(entry.with_policy(policy))
}

/// Returns the next generation.
pub(crate) fn next(generation: u32) -> Result<u32, ConfigError> {
    generation.checked_add(1).ok_or_else(|| {
        let expected = "a generation below the maximum, or another name for the policy";
        ConfigError::invalid("generation", generation, expected)
    })
}

/// Keeps the conversion of an earlier entry with the same numbers.
pub(super) fn converting(entry: PolicyEntry, before: Option<&PolicyEntry>) -> PolicyEntry {
    match before {
        Some(before) if before.policy().is_scaled() => {
            let policy = entry.policy().clone();
            let policy = policy.keeping_conversion_of(before.policy(), Clock::System.now());
            entry.with_policy(policy)
        }
        _ => entry,
    }
}

/// Raises the generation of an entry that was set without an inheritance to the current one, so
/// that it uses the current state and not the state from before a reset.
pub(super) fn in_current_generation(entry: PolicyEntry, before: Option<u32>) -> PolicyEntry {
    match before {
        Some(old) if old > entry.policy().generation() => {
            let policy = entry.policy().clone().continued_in(old);
            entry.with_policy(policy)
        }
        _ => entry,
    }
}
