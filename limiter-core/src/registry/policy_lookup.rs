//! The registry of a limiter, with the settings by which the limiter looks policies up.

use std::sync::Arc;

use crate::registry::{OnUnknownPolicy, PolicyEntry, PolicyRegistry};
use crate::support::clock::Clock;

/// Finds policies by name for one limiter.
#[derive(Clone, Debug, Default)]
pub(crate) struct PolicyLookup {
    pub(crate) registry: PolicyRegistry,
    pub(crate) app: Option<Arc<str>>,
    pub(crate) on_unknown_policy: OnUnknownPolicy,
}

impl PolicyLookup {
    /// Returns the entry of a name if it applies to this app and has not ended.
    pub(crate) fn active(&self, name: &str, clock: &Clock) -> Option<Arc<PolicyEntry>> {
        let entry = self.registry.get(name)?;
        (entry.is_for(self.app.as_deref()) && entry.holds_at(clock.calendar())).then_some(entry)
    }
}
