//! Rarely used settings, boxed behind one `Option` so that the common case costs a single null
//! check.

use std::fmt;
use std::sync::Arc;

use crate::policy::key_list::ReportedPrefixes;
use crate::policy::penalty::PenaltyLimits;
use crate::policy::trial::TrialValues;
use crate::policy::{Enforcement, KeyList, OnDenial, Penalty, PolicyInner};

/// The settings of a builder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RareSettings {
    pub(super) enforcement: Enforcement,
    pub(super) on_denial: OnDenial,
    pub(super) penalty: Option<Penalty>,
    pub(super) allow_keys: Option<KeyList>,
    pub(super) deny_keys: Option<KeyList>,
    pub(super) trial: Option<TrialValues>,
}

/// The settings with values derived from them.
#[derive(Clone)]
pub(super) struct RareOptions {
    pub(super) settings: RareSettings,
    pub(super) penalty_limits: Option<PenaltyLimits>,
    /// Shared between a policy and its key overrides.
    pub(super) reported: Arc<ReportedPrefixes>,
}

impl RareSettings {
    /// Returns `None` if all settings have their defaults.
    pub(super) fn build(self, policy: &PolicyInner) -> Option<Box<RareOptions>> {
        if self == Self::default() {
            return None;
        }
        let penalty_limits = self.penalty.map(|penalty| PenaltyLimits::new(penalty, policy));
        Some(Box::new(RareOptions {
            settings: self,
            penalty_limits,
            reported: Arc::default(),
        }))
    }
}

impl RareOptions {
    /// Derives the values again for another policy with these settings. Its key lists are
    /// unchanged, so their entries are not reported again.
    pub(super) fn rebuilt_for(self, policy: &PolicyInner) -> Option<Box<Self>> {
        let mut options = self.settings.build(policy)?;
        options.reported = self.reported;
        Some(options)
    }
}

/// Derived values are equal if the settings are equal.
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
