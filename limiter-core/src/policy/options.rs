//! What few policies say. It stands apart, so that the others are found to say none of it by one
//! look.

use std::fmt;
use std::sync::Arc;

use crate::policy::key_list::ReportedPrefixes;
use crate::policy::penalty::PenaltyLimits;
use crate::policy::{Enforcement, KeyList, OnDenial, Penalty, PolicyInner};

/// What a builder is told of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RareSettings {
    pub(super) enforcement: Enforcement,
    pub(super) on_denial: OnDenial,
    pub(super) penalty: Option<Penalty>,
    pub(super) allow_keys: Option<KeyList>,
    pub(super) deny_keys: Option<KeyList>,
}

/// The same, with what follows from it.
#[derive(Clone)]
pub(super) struct RareOptions {
    pub(super) settings: RareSettings,
    pub(super) punishing: Option<PenaltyLimits>,
    /// Quotas of single keys share it with their policy.
    pub(super) reported: Arc<ReportedPrefixes>,
}

impl RareSettings {
    /// Nothing, where all is as it is with most policies.
    pub(super) fn build(self, of: &PolicyInner) -> Option<Box<RareOptions>> {
        if self == Self::default() {
            return None;
        }
        let punishing = self.penalty.map(|penalty| PenaltyLimits::new(penalty, of));
        Some(Box::new(RareOptions {
            settings: self,
            punishing,
            reported: Arc::default(),
        }))
    }
}

/// What follows from the settings is equal where they are.
impl PartialEq for RareOptions {
    fn eq(&self, other: &Self) -> bool {
        self.settings == other.settings
    }
}

impl fmt::Debug for RareOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}
