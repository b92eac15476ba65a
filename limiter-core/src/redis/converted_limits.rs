//! Limits that were converted after a proportional policy change, and the changed policies.
//!
//! A decision converts its limits first (`redis/backend/inheritance.rs`). Leased tokens and permits
//! of an outage are reported later, also for keys without calls since the change. The lender and
//! the reconciler therefore look the changed policy up and convert the limit before the report.
//!
//! Invariant: both tables are bounded; a forgotten limit is looked up in Redis again, as are all
//! limits after a lost connection. Tests: `tests/leases.rs`
//! (`idle_lease_returns_into_converted_level`), `tests/outages.rs`
//! (`report_of_idle_key_follows_proportional_change`, `conversion_lost_in_failover_is_repeated`).

use std::collections::{HashMap, HashSet};

use crate::error::StoreErrorKind;
use crate::identity::Identity;
use crate::policy::Policy;
use crate::support::sync::Mutex;
use crate::units::Timestamp;

/// Maximum number of limits known to be converted. Forgotten limits are looked up in Redis again.
const MAX_CONVERTED: usize = 65_536;

/// The maximum number of changes known to this replica.
const MAX_CHANGES: usize = 1_024;

/// Limits that are known to be converted, with the time of the change, and the changed policies.
#[derive(Debug, Default)]
pub(crate) struct ConvertedLimits {
    limits: Mutex<HashSet<(Identity, Timestamp)>>,
    /// By name.
    changed: Mutex<HashMap<Box<str>, Policy>>,
}

impl ConvertedLimits {
    pub(crate) fn contains(&self, limit: (Identity, Timestamp)) -> bool {
        let converted = self.limits.lock();
        converted.contains(&limit)
    }

    pub(crate) fn insert(&self, limit: (Identity, Timestamp)) {
        let mut converted = self.limits.lock();
        if converted.len() >= MAX_CONVERTED {
            converted.clear();
        }
        converted.insert(limit);
    }

    /// Forgets the converted limits when the connection to Redis is lost: a replica that becomes
    /// the primary may lack conversions. A timeout alone is no reason, because busy servers cause
    /// them, and each conversion would be looked up again.
    pub(crate) fn on_failure(&self, kind: StoreErrorKind) {
        if matches!(kind, StoreErrorKind::Connection | StoreErrorKind::CircuitOpen) {
            self.limits.lock().clear();
        }
    }

    /// Records a changed policy.
    pub(crate) fn note_change(&self, policy: &Policy) {
        let mut changed = self.changed.lock();
        if changed.get(policy.name()) == Some(policy) {
            return;
        }
        if changed.len() >= MAX_CHANGES {
            changed.clear();
        }
        changed.insert(policy.name().into(), policy.clone());
    }

    /// Returns the policy to which a policy was changed, while limits may have to be converted.
    pub(crate) fn successor_of(&self, before: &Policy, now: Timestamp) -> Option<Policy> {
        let changed = self.changed.lock();
        let policy = changed.get(before.name())?;
        let scaled = policy.pending(now)?;
        let is_successor = policy.code() == before.code() && scaled.before.algorithm() == before.algorithm();
        is_successor.then(|| policy.clone())
    }
}
