//! Changes of a policy that say what becomes of what was used.

use crate::error::ConfigError;
use crate::policy::Inheritance;
use crate::registry::{PolicyEntry, PolicyRegistry};
use crate::support::clock::Clock;
use crate::units::Timestamp;

impl PolicyRegistry {
    /// Puts a policy into the registry, as [`set`](Self::set) does, and says what becomes of what
    /// was used under the one that counted under its name before.
    ///
    /// - [`AsIs`](Inheritance::AsIs): as `set`.
    /// - [`Reset`](Inheritance::Reset): everybody starts afresh, since the policy's
    ///   [generation](crate::Policy::with_generation) is one higher than before.
    /// - [`Proportional`](Inheritance::Proportional): what was used is the same part of the new
    ///   quota as it was of the old one, as
    ///   [`Policy::proportional_to`](crate::Policy::proportional_to) tells in full. The moment of
    ///   the change is now, by this machine's clock; [`change_at`](Self::change_at) names another.
    ///   A limiter with a clock of its own, as tests have, is not there yet, and the old numbers
    ///   count: [`Limiter::change_policy`](crate::Limiter::change_policy) takes its moment.
    ///
    /// All of it is part of the policy, and of the registry's text, so that replicas that follow
    /// the registry agree about it. In the registry in Redis it is done by `RedisRegistry::edit`,
    /// with what it is given to change. Where there was no policy of this name, nothing was used.
    ///
    /// As long as one replica has heard of a change and another has not, both charge the same
    /// limits (but for a reset), and no more is admitted than by the larger quota with the faster
    /// rate; after a reset each generation admits its own.
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
    /// [`ConfigError::Invalid`] as [`Policy::proportional_to`](crate::Policy::proportional_to), for
    /// a reset of the last generation that has a number, and for a policy of concurrency in place
    /// of one of a rate, or the other way round. The registry is as before then.
    pub fn change(&self, entry: impl Into<PolicyEntry>, inheritance: Inheritance) -> Result<(), ConfigError> {
        self.change_at(entry, inheritance, Clock::System.now())
    }

    /// The same as of a moment of the store's clock, which only a change in proportion has to know.
    /// Replicas that follow the registry change at the same time if it is so far ahead that all of
    /// them have heard of it by then: a second or two.
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
        if let Some(told) = self.kind_change_error(&entry) {
            let expected = "a policy of the same kind under this name: of a rate, or of concurrency";
            return Err(ConfigError::invalid("change", told, expected));
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
                _ => going_on(entry, left),
            },
        };
        if sources.set_in_code(entry, Clock::System.now()) {
            self.renew(&sources, &name);
        }
        Ok(())
    }
}

/// The entry with states that go on from those of the one before.
fn inheriting(
    entry: PolicyEntry,
    before: &PolicyEntry,
    inheritance: Inheritance,
    at: Timestamp,
) -> Result<PolicyEntry, ConfigError> {
    let (policy, old) = (entry.policy().clone(), before.policy());
    let generation = policy.generation().max(old.generation());
    let policy = match inheritance {
        Inheritance::AsIs => policy.going_on_in(generation),
        Inheritance::Proportional => policy.with_generation(generation).proportional_to(old, at)?,
        Inheritance::Reset => policy.with_generation(next(generation)?),
    };
    Ok(entry.with_policy(policy))
}

/// The generation after this one.
pub(crate) fn next(generation: u32) -> Result<u32, ConfigError> {
    generation.checked_add(1).ok_or_else(|| {
        let expected = "one that has a next one, or another name of the policy";
        ConfigError::invalid("generation", generation, expected)
    })
}

/// What is set without a word about what was used goes on with the states that there are, not with
/// those before a reset.
pub(super) fn going_on(entry: PolicyEntry, before: Option<u32>) -> PolicyEntry {
    match before {
        Some(old) if old > entry.policy().generation() => {
            let policy = entry.policy().clone().going_on_in(old);
            entry.with_policy(policy)
        }
        _ => entry,
    }
}
