//! Proportional policy changes in Redis: this replica converts each limit before its first query.
//!
//! The decision script does not know the previous policy. This replica therefore reads the stored
//! state after the change, converts it by `algorithm::scale`, and replaces it by compare-and-set,
//! so that several replicas convert a key once. A bounded set contains the limits that are known to
//! be converted. Leased tokens of a key without calls return later; the lender then converts the
//! limit first.
//!
//! Invariants: the time of the change is compared with the server's clock, and until then the
//! previous policy decides; a limit that cannot be converted is not charged. Tests:
//! `tests/contract/inheritance.rs`, `redis/compare_and_set/tests.rs`.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::algorithm::UsageCorrection;
use crate::decision::{Decision, Rejection};
use crate::error::StoreError;
use crate::identity::Identity;
use crate::policy::Policy;
use crate::redis::RedisBackend;
use crate::request::DecisionRequest;
use crate::support::real_time::within;
use crate::support::sync::Mutex;
pub(crate) use crate::units::Timestamp;

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
    fn contains(&self, limit: (Identity, Timestamp)) -> bool {
        let converted = self.limits.lock();
        converted.contains(&limit)
    }

    fn insert(&self, limit: (Identity, Timestamp)) {
        let mut converted = self.limits.lock();
        if converted.len() >= MAX_CONVERTED {
            converted.clear();
        }
        converted.insert(limit);
    }

    /// Records a changed policy.
    fn note_change(&self, policy: &Policy) {
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

impl RedisBackend {
    /// As [`decide`](Self::decide), by the policies in force. Limits that cannot be converted are
    /// not charged.
    #[cold]
    pub(crate) async fn decide_inheriting(
        &self,
        request: &DecisionRequest<'_>,
        deadline: Duration,
    ) -> Result<Decision, Rejection> {
        let started = Instant::now();
        match within(deadline, self.inherit(request)).await {
            Ok(in_force) => {
                let remaining = deadline.saturating_sub(started.elapsed());
                self.decide_unscaled(in_force.as_ref().unwrap_or(request), remaining)
                    .await
            }
            Err(error) => self.decide_without(request, error, started),
        }
    }

    /// As [`change`](Self::change), for an amount in the units of the previous policy.
    pub(crate) async fn change_proportional(
        &self,
        request: &DecisionRequest<'_>,
        change: UsageCorrection,
    ) -> Result<(), StoreError> {
        if let Some(previous) = within(request.deadline(), self.inherit(request)).await? {
            return self.change_unscaled(&previous, change).await;
        }
        for limit in &request.limits {
            let (limit, change) = limit.in_proportion(change, |scaling| scaling);
            self.change_unscaled(&limit.alone(), change).await?;
        }
        Ok(())
    }

    /// Converts each limit of the request that is not known to be converted. Returns the request
    /// under the previous policies if a change is still in the future.
    pub(crate) async fn inherit<'a>(
        &self,
        request: &DecisionRequest<'a>,
    ) -> Result<Option<DecisionRequest<'a>>, StoreError> {
        let mut in_force = None;
        for (number, limit) in request.limits.iter().enumerate() {
            let policy: &'a Policy = limit.policy;
            let Some(scaled) = policy.pending(self.clock.now()) else {
                continue;
            };
            let converted = (limit.identity, scaled.at);
            if self.converted.contains(converted) {
                continue;
            }
            self.converted.note_change(policy);
            if self.store.states().convert(limit, scaled).await? {
                self.converted.insert(converted);
                self.leases.return_earlier(limit);
            } else if let Some(limit) = in_force
                .get_or_insert_with(|| request.clone())
                .limits
                .get_mut(number)
            {
                limit.policy = &scaled.before;
            }
        }
        Ok(in_force)
    }
}
