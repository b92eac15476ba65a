//! What a change finds under a name.

use crate::error::ConfigError;
use crate::registry::PolicyEntry;
use crate::units::Timestamp;

/// What stands there, told apart.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lookup<'a> {
    Nothing,
    /// It is configured.
    Configured(&'a PolicyEntry),
    /// It was configured, or is deleted: what was used under it may count still.
    Ended(&'a PolicyEntry),
    /// It is configured for other apps alone, and is none of this one's business.
    OfOthers,
}

impl<'a> Lookup<'a> {
    pub(super) fn new(entry: Option<&'a PolicyEntry>, app: Option<&str>, now: Timestamp) -> Self {
        match entry {
            None => Self::Nothing,
            Some(entry) if !entry.holds_at(now) => Self::Ended(entry),
            Some(entry) if entry.is_for(app) => Self::Configured(entry),
            Some(_) => Self::OfOthers,
        }
    }

    /// What is configured, for who has nothing to do where nothing is.
    pub(super) fn configured(self) -> Option<&'a PolicyEntry> {
        match self {
            Self::Configured(entry) => Some(entry),
            Self::Nothing | Self::Ended(_) | Self::OfOthers => None,
        }
    }

    /// Whether a rate may be set.
    ///
    /// # Errors
    ///
    /// Not where it would take other apps' limit away.
    pub(super) fn free(self, name: &str) -> Result<Self, ConfigError> {
        match self {
            Self::OfOthers => {
                let expected = "one that is not configured for other apps alone, as this one is";
                Err(ConfigError::invalid("name of a rate limiter", name, expected))
            }
            found => Ok(found),
        }
    }

    /// The generation of what was used last.
    pub(super) fn generation(self) -> Option<u32> {
        match self {
            Self::Configured(entry) | Self::Ended(entry) => Some(entry.policy().generation()),
            Self::Nothing | Self::OfOthers => None,
        }
    }
}
