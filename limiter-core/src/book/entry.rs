//! One policy of a book, and for whom it is.

use crate::error::ConfigError;
use crate::policy::{Policy, check_text};

/// A policy as it stands in a [`PolicyBook`](crate::PolicyBook): for all apps, or for those on a list.
///
/// ```
/// use limiter_core::{BookEntry, Policy};
///
/// let search = Policy::token_bucket("search").capacity(20).rate("10/s").build()?;
/// let entry = BookEntry::new(search).for_apps(["checkout", "mobile"])?;
/// assert!(entry.is_for(Some("checkout")));
/// assert!(!entry.is_for(Some("check")), "apps are matched whole");
/// assert!(!entry.is_for(None));
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookEntry {
    policy: Policy,
    /// Sorted, each once.
    apps: Option<Box<[Box<str>]>>,
}

impl BookEntry {
    /// A policy for all apps, also for a limiter that names none.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy, apps: None }
    }

    /// The policy for these apps alone. To all others it is not configured. They say who they are by
    /// [`InProcessBuilder::app`](crate::InProcessBuilder::app) or [`RedisBuilder::app`](crate::RedisBuilder::app).
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] when no app is named, since that policy would limit nobody, and for a name that is empty or
    /// longer than 256 bytes.
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

    /// For the same apps, another policy.
    pub(super) fn with_policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
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

impl From<Policy> for BookEntry {
    fn from(policy: Policy) -> Self {
        Self::new(policy)
    }
}

impl From<&Policy> for BookEntry {
    fn from(policy: &Policy) -> Self {
        Self::new(policy.clone())
    }
}
