//! Proportional policy changes in Redis: this replica converts each limit before its first query.
//!
//! The decision script does not know the previous policy. This replica therefore reads the stored
//! state after the change, converts it by `algorithm::scale`, and replaces it by compare-and-set,
//! so that several replicas convert a key once. `redis/converted_limits.rs` contains the limits
//! that are known to be converted.
//!
//! Invariants: the time of the change is compared with the server's clock, and until then the
//! previous policy decides; a limit that cannot be converted is not charged. Tests:
//! `tests/contract/inheritance.rs`, `redis/compare_and_set/tests.rs`.

use std::time::{Duration, Instant};

use crate::algorithm::UsageCorrection;
use crate::decision::{Decision, Rejection};
use crate::error::StoreError;
use crate::observe;
use crate::policy::Policy;
use crate::redis::RedisBackend;
use crate::request::DecisionRequest;
use crate::support::real_time::with_deadline;

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
        match with_deadline(deadline, self.inherit(request)).await {
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
        if let Some(previous) = self.inherit_for_change(request).await? {
            return self.change_unscaled(&previous, change).await;
        }
        for limit in &request.limits {
            let (limit, change) = limit.in_proportion(change, |scaling| scaling);
            self.change_unscaled(&limit.alone(), change).await?;
        }
        Ok(())
    }

    /// As [`inherit`](Self::inherit), within the deadline, before a refund or a charge. Without a
    /// reply, the change is not applied.
    pub(crate) async fn inherit_for_change<'a>(
        &self,
        request: &DecisionRequest<'a>,
    ) -> Result<Option<DecisionRequest<'a>>, StoreError> {
        let inherited = with_deadline(request.deadline(), self.inherit(request)).await;
        inherited.inspect_err(|error| observe::store_failed(error.kind()))
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
