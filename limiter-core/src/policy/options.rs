//! What few policies say. It stands apart, so that the others are found to say none of it by one look.

use std::fmt;
use std::sync::Arc;

use crate::policy::key_list::ReportedPrefixes;
use crate::policy::penalty::Punishing;
use crate::policy::{Enforcement, Inner, KeyList, OnDenial, Penalty};

/// What a builder is told of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ExtraSettings {
    pub(super) enforcement: Enforcement,
    pub(super) on_denial: OnDenial,
    pub(super) penalty: Option<Penalty>,
    pub(super) allow_keys: Option<KeyList>,
    pub(super) deny_keys: Option<KeyList>,
}

/// The same, with what follows from it.
#[derive(Clone)]
pub(super) struct Extras {
    pub(super) settings: ExtraSettings,
    pub(super) punishing: Option<Punishing>,
    /// Quotas of single keys share it with their policy.
    pub(super) reported: Arc<ReportedPrefixes>,
}

impl ExtraSettings {
    /// Nothing, where all is as it is with most policies.
    pub(super) fn build(self, of: &Inner) -> Option<Box<Extras>> {
        if self == Self::default() {
            return None;
        }
        let punishing = self.penalty.map(|penalty| Punishing::new(penalty, of));
        Some(Box::new(Extras {
            settings: self,
            punishing,
            reported: Arc::default(),
        }))
    }
}

/// What follows from the settings is equal where they are.
impl PartialEq for Extras {
    fn eq(&self, other: &Self) -> bool {
        self.settings == other.settings
    }
}

impl fmt::Debug for Extras {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}
