//! The state of one name of a registry, as an edit finds it, and the result of the edit.

use crate::registry::PolicyEntry;
use crate::units::Timestamp;

/// The state of a name in a registry, for one app at one time.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum EntryState<'a> {
    /// The registry has no entry of this name.
    Missing,
    /// The entry applies to this app.
    Active(&'a PolicyEntry),
    /// The [end](PolicyEntry::until) of the entry has passed. Usage under its policy may still
    /// count.
    Ended(&'a PolicyEntry),
    /// The entry applies to other apps only.
    OtherApps,
}

impl<'a> EntryState<'a> {
    pub(super) fn new(entry: Option<&'a PolicyEntry>, app: Option<&str>, now: Timestamp) -> Self {
        match entry {
            None => Self::Missing,
            Some(entry) if !entry.holds_at(now) => Self::Ended(entry),
            Some(entry) if entry.is_for(app) => Self::Active(entry),
            Some(_) => Self::OtherApps,
        }
    }

    /// Returns the entry if it applies to this app.
    #[must_use]
    pub fn active(self) -> Option<&'a PolicyEntry> {
        match self {
            Self::Active(entry) => Some(entry),
            Self::Missing | Self::Ended(_) | Self::OtherApps => None,
        }
    }

    /// Returns the generation of the most recent usage under this name.
    #[must_use]
    pub fn generation(self) -> Option<u32> {
        match self {
            Self::Active(entry) | Self::Ended(entry) => Some(entry.policy().generation()),
            Self::Missing | Self::OtherApps => None,
        }
    }
}

/// The change that an edit makes to one entry. See
/// [`SharedRegistry::edit`](crate::registry::SharedRegistry::edit).
#[derive(Clone, Debug)]
pub enum EntryEdit {
    /// Changes nothing.
    Keep,
    /// Replaces the entry.
    Put(Box<PolicyEntry>),
    /// Removes the entry and the overrides of its keys. If no other source has the name, the given
    /// entry, which has ended, replaces it: its generation keeps old usage from counting again when
    /// the name is reused.
    Remove(Box<PolicyEntry>),
}
