//! One policy of a registry, and for whom it is.

use std::time::Duration;

use crate::error::ConfigError;
use crate::policy::{Policy, check_text};
use crate::registry::{PolicyMetadata, RateType};
use crate::units::Timestamp;

/// A policy as it stands in a [`PolicyRegistry`](crate::registry::PolicyRegistry): for all apps, or
/// for those on a list.
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
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEntry {
    policy: Policy,
    /// Sorted, each once.
    apps: Option<Box<[Box<str>]>>,
    until: Option<Timestamp>,
    rate_type: RateType,
    metadata: Option<Box<PolicyMetadata>>,
}

impl PolicyEntry {
    /// A policy for all apps, also for a limiter that names none.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            apps: None,
            until: None,
            rate_type: RateType::Overall,
            metadata: None,
        }
    }

    /// The policy for these apps alone. To all others it is not configured. They say who they are
    /// by [`InProcessBuilder::app`](crate::InProcessBuilder::app) or
    /// [`RedisBuilder::app`](crate::RedisBuilder::app).
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] when no app is named, since that policy would limit nobody, and for
    /// a name that is empty or longer than 256 bytes.
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

    /// Ends at this moment of the limiter's clock: a test's where it has one, else the system's.
    /// From then on the policy is not configured, also where another source names it. What keys
    /// have used by then stays as it is. Default: it does not end. A
    /// [`SystemTime`](std::time::SystemTime) serves as well.
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

    /// Sets the notes about the policy. Default: none.
    #[must_use]
    pub fn with_metadata(self, metadata: PolicyMetadata) -> Self {
        let metadata = Some(Box::new(metadata)).filter(|metadata| !metadata.is_empty());
        Self { metadata, ..self }
    }

    /// The notes about the policy.
    #[must_use]
    pub fn metadata(&self) -> &PolicyMetadata {
        const NONE: &PolicyMetadata = &PolicyMetadata::new();
        self.metadata.as_deref().unwrap_or(NONE)
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The apps for which it is, in alphabetical order; `None` for all.
    pub fn apps(&self) -> Option<impl Iterator<Item = &str>> {
        self.apps.as_deref().map(|apps| apps.iter().map(AsRef::as_ref))
    }

    /// When it ends, if it does.
    #[must_use]
    pub fn end(&self) -> Option<Timestamp> {
        self.until
    }

    /// The scope of the policy as a rate limiter of the crate limiter-redisson.
    #[must_use]
    pub fn rate_type(&self) -> RateType {
        self.rate_type
    }

    /// How long after its end what was used under a policy with this window may count still, by
    /// whichever clock. A counter window counts for two of its lengths.
    pub(crate) fn counts_for(window: Duration) -> Duration {
        const AT_LEAST: Duration = Duration::from_secs(3_600);
        window.saturating_mul(2).max(AT_LEAST)
    }

    /// Whether it still counts.
    pub(crate) fn holds_at(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Replaces the policy, and keeps apps, end and notes.
    #[must_use]
    pub fn with_policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Whether it is for this app, or for a limiter that names none.
    #[must_use]
    pub fn is_for(&self, app: Option<&str>) -> bool {
        match (&self.apps, app) {
            (None, _) => true,
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
