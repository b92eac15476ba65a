//! One policy of a registry, with the apps to which it applies.
//!
//! An entry adds to a policy the settings that only the registry and its users need: the apps, an
//! end, the names of the key parts, the rate type of limiter-redisson, and notes. Entries are
//! immutable; a source replaces an entry as a whole. Tests: `tests/registry.rs`,
//! `tests/registry/properties.rs`.

use std::time::Duration;

use crate::error::ConfigError;
use crate::policy::{Policy, check_text};
use crate::registry::{PolicyMetadata, RateType};
use crate::units::Timestamp;

/// The app of a limiter that decides for the programs of all apps.
pub(crate) const EVERY_APP: &str = "*";

/// A policy in a [`PolicyRegistry`](crate::registry::PolicyRegistry), for all apps or for those of
/// a list.
///
/// ```
/// use limiter_core::registry::PolicyEntry;
/// use limiter_core::Policy;
///
/// let search = Policy::token_bucket("search").capacity(20).rate("10/s").build()?;
/// let entry = PolicyEntry::new(search).for_apps(["checkout", "mobile"])?;
/// assert!(entry.is_for(Some("checkout")));
/// assert!(!entry.is_for(Some("check")), "apps are matched whole");
/// assert!(!entry.is_for(None));
/// assert!(entry.is_for(Some("*")), "a server decides for all apps");
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEntry {
    policy: Policy,
    /// Sorted, without duplicates.
    apps: Option<Box<[Box<str>]>>,
    until: Option<Timestamp>,
    rate_type: RateType,
    /// The names of the parts of its keys, in order; empty if they are not declared.
    key_parts: Box<[Box<str>]>,
    metadata: Option<Box<PolicyMetadata>>,
}

impl PolicyEntry {
    /// Creates an entry for all apps, including limiters without an app name.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            apps: None,
            until: None,
            rate_type: RateType::Overall,
            key_parts: Box::default(),
            metadata: None,
        }
    }

    /// Restricts the policy to these apps; for all others it is not configured.
    /// [`InProcessBuilder::app`](crate::InProcessBuilder::app) and
    /// [`RedisBuilder::app`](crate::RedisBuilder::app) set a limiter's app.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] when the list is empty, since the policy would apply to no app, and
    /// for a name that is empty or longer than 256 bytes.
    pub fn for_apps<A: Into<String>>(self, apps: impl IntoIterator<Item = A>) -> Result<Self, ConfigError> {
        let mut named: Vec<Box<str>> = Vec::new();
        for app in apps {
            let app: String = app.into();
            check_text("app", &app)?;
            named.push(app.into());
        }
        if named.is_empty() {
            return Err(ConfigError::invalid(
                "apps",
                "",
                "at least one, or no list for all",
            ));
        }
        named.sort_unstable();
        named.dedup();
        Ok(Self {
            apps: Some(named.into()),
            ..self
        })
    }

    /// Sets the time at which the policy ends, by the limiter's clock: a test's clock if it has
    /// one, else the system's. From then on the policy is not configured, even if another source
    /// defines it. The usage of keys is kept. Default: it does not end. Accepts a
    /// [`SystemTime`](std::time::SystemTime).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use limiter_core::registry::{PolicyEntry, PolicyRegistry};
    /// use limiter_core::{Limiter, ManualClock, Origin, Policy};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let sale = Policy::token_bucket("sale").capacity(20).rate("10/s").build()?;
    /// let end = clock.now().after(Duration::from_secs(3_600));
    /// let registry = PolicyRegistry::new().with(PolicyEntry::new(sale).until(end));
    /// let limits = Limiter::in_process().clock(&clock).registry(&registry).build();
    ///
    /// assert_eq!(limits.named("sale").check("ann").await?.remaining(), 19);
    /// clock.set(end);
    /// assert_eq!(limits.named("sale").check("ann").await?.origin(), Origin::NotConfigured);
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn until(self, end: impl Into<Timestamp>) -> Self {
        self.with_end(Some(end.into()))
    }

    /// Removes the end.
    #[must_use]
    pub fn without_end(self) -> Self {
        self.with_end(None)
    }

    pub(super) fn with_end(self, until: Option<Timestamp>) -> Self {
        Self { until, ..self }
    }

    /// Sets the scope of the policy as a rate limiter of the crate limiter-redisson. Calls with a
    /// key ignore it. Default: [`RateType::Overall`].
    #[must_use]
    pub fn with_rate_type(self, rate_type: RateType) -> Self {
        Self { rate_type, ..self }
    }

    /// Declares the names of the parts of the keys, in order: `tenant` and `user` for keys such as
    /// `("acme", "ann")`. Pages show them, and a [block](crate::registry::BlockTarget::Part) of the
    /// part `tenant=acme` denies these keys. Default: not declared.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for a name that is empty or longer than 256 bytes.
    pub fn with_key_parts<P: Into<String>>(
        self,
        parts: impl IntoIterator<Item = P>,
    ) -> Result<Self, ConfigError> {
        let mut key_parts: Vec<Box<str>> = Vec::new();
        for part in parts {
            let part: String = part.into();
            check_text("part of a key", &part)?;
            key_parts.push(part.into());
        }
        let key_parts = key_parts.into();
        Ok(Self { key_parts, ..self })
    }

    /// Sets the notes about the policy. Default: none.
    #[must_use]
    pub fn with_metadata(self, metadata: PolicyMetadata) -> Self {
        let metadata = Some(Box::new(metadata)).filter(|metadata| !metadata.is_empty());
        Self { metadata, ..self }
    }

    /// Returns the notes about the policy.
    #[must_use]
    pub fn metadata(&self) -> &PolicyMetadata {
        const NONE: &PolicyMetadata = &PolicyMetadata::new();
        self.metadata.as_deref().unwrap_or(NONE)
    }

    /// Returns the policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the apps to which the policy applies, in alphabetical order; `None` for all.
    pub fn apps(&self) -> Option<impl Iterator<Item = &str>> {
        self.apps.as_deref().map(|apps| apps.iter().map(AsRef::as_ref))
    }

    /// Returns the app to which the policy belongs: the only one of its list.
    pub(crate) fn only_app(&self) -> Option<&str> {
        match self.apps.as_deref() {
            Some([app]) => Some(app),
            _ => None,
        }
    }

    /// Returns the time at which the policy ends, if any.
    #[must_use]
    pub fn end(&self) -> Option<Timestamp> {
        self.until
    }

    /// Returns the scope of the policy as a rate limiter of the crate limiter-redisson.
    #[must_use]
    pub fn rate_type(&self) -> RateType {
        self.rate_type
    }

    /// Returns the declared names of the parts of the keys, in order.
    pub fn key_parts(&self) -> impl Iterator<Item = &str> {
        self.key_parts.iter().map(AsRef::as_ref)
    }

    /// Returns the time after its end for which usage under a policy with this window may still
    /// count, on any clock. A counter window counts for two of its lengths.
    pub(crate) fn counts_for(window: Duration) -> Duration {
        const AT_LEAST: Duration = Duration::from_secs(3_600);
        window.saturating_mul(2).max(AT_LEAST)
    }

    /// Returns whether the entry has not ended.
    pub(crate) fn holds_at(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Replaces the policy, and keeps apps, end and notes.
    #[must_use]
    pub fn with_policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Returns whether the policy applies to this app, or to a limiter without an app name. Each
    /// policy applies to the app `*`.
    #[must_use]
    pub fn is_for(&self, app: Option<&str>) -> bool {
        match (&self.apps, app) {
            (None, _) | (Some(_), Some(EVERY_APP)) => true,
            (Some(apps), Some(app)) => apps.iter().any(|listed| **listed == *app),
            (Some(_), None) => false,
        }
    }
}

impl From<Policy> for PolicyEntry {
    fn from(policy: Policy) -> Self {
        Self::new(policy)
    }
}

impl From<&Policy> for PolicyEntry {
    fn from(policy: &Policy) -> Self {
        Self::new(policy.clone())
    }
}
