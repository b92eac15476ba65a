//! Penalties with Redis: this replica counts denials, reports them together, and Redis blocks keys.
//!
//! A denial is recorded in this process. It is reported in the background with later ones, or at
//! once if it may be the one that blocks the key. Tests: `tests/penalties.rs`,
//! `tests/penalty_agreement.rs`.

use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::Mode;
use crate::error::StoreError;
use crate::identity::Identity;
use crate::key::Key;
use crate::penalty::denial_counts::{DatedDenials, DeniedLimit, PenaltyAction, REPORT_WITHIN};
use crate::penalty::log_uncounted;
use crate::policy::OnStoreFailure;
use crate::redis::RedisBackend;
use crate::redis::outage_log::is_outage;
use crate::request::{DecisionRequest, LimitRequest};
use crate::support::real_time;
use crate::support::real_time::with_deadline;
use crate::units::Amount;

/// The effect of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PenaltyState {
    /// The key is blocked for this number of microseconds.
    Blocked(u64),
    /// The number of further denials before it is.
    DenialsLeft(u64),
}

impl RedisBackend {
    /// Records a denial, to be reported with others. Returns the microseconds for which the key is
    /// blocked, if it is now. A report continues if the caller, which waits for `left` at most,
    /// stops waiting for it.
    pub(crate) async fn count_denial(
        self: &Arc<Self>,
        limit: &LimitRequest<'_>,
        left: Duration,
    ) -> Option<u64> {
        // A limit without an identity was not decided.
        let identity = limit.charge().ok()?.identity;
        let policy = limit.policy();
        let denied = DeniedLimit {
            identity,
            policy: policy.clone(),
            key: Key::from(limit.key()).bounded().into_owned(),
        };
        match self.denial_counts.record(&denied, self.clock.now()) {
            PenaltyAction::None => None,
            PenaltyAction::ScheduleReport => {
                self.schedule_report(&denied);
                None
            }
            PenaltyAction::Report(denials) => {
                let backend = Arc::clone(self);
                let report = tokio::spawn(async move { backend.report(&denied, denials).await });
                real_time::timeout(left.min(policy.deadline()), report)
                    .await
                    .ok()?
                    .ok()?
            }
        }
    }

    /// Reports all denials that were not reported.
    pub(crate) async fn report_all_denials(self: &Arc<Self>) {
        for identity in self.denial_counts.unreported() {
            self.report_of(identity).await;
        }
    }

    fn schedule_report(self: &Arc<Self>, denied: &DeniedLimit) {
        let (backend, clock) = (Arc::downgrade(self), self.clock.clone());
        let identity = denied.identity;
        let penalty = denied.policy.penalty();
        let delay = penalty.map_or(REPORT_WITHIN, |penalty| REPORT_WITHIN.min(penalty.within() / 2));
        let counted_at = clock.now();
        tokio::spawn(async move {
            clock.sleep(counted_at, delay).await;
            // Without the limiter there are no more denials.
            if let Some(backend) = backend.upgrade() {
                backend.report_of(identity).await;
            }
        });
    }

    async fn report_of(self: &Arc<Self>, identity: Identity) {
        let now = self.clock.now();
        if let Some((denied, denials)) = self.denial_counts.take_unreported(identity, now) {
            self.report(&denied, denials).await;
        }
    }

    async fn report(self: &Arc<Self>, denied: &DeniedLimit, mut denials: Vec<DatedDenials>) -> Option<u64> {
        let (counts, identity) = (&self.denial_counts, denied.identity);
        loop {
            match self.apply_penalty(denied, &denials).await {
                Ok(PenaltyState::Blocked(micros)) => {
                    // Counting starts again, without the denials that came during the report.
                    counts.forget(identity);
                    return Some(micros);
                }
                Ok(PenaltyState::DenialsLeft(left)) => {
                    let now = self.clock.now();
                    denials = counts.mark_reported(identity, left, now)?;
                }
                Err(error) => {
                    log_uncounted(&denied.policy, &error);
                    if error.has_changed_nothing() {
                        counts.restore(identity, denials);
                        if is_outage(error.kind()) {
                            self.schedule_report(denied);
                        }
                    }
                    return None;
                }
            }
        }
    }

    /// Reports denials of a limit, and blocks its key if they are enough.
    ///
    /// It takes three steps. Each can be repeated, so none does harm if the next never follows: a
    /// full count stays full, and the next denial blocks; a block is not prolonged.
    async fn apply_penalty(
        &self,
        denied: &DeniedLimit,
        denials: &[DatedDenials],
    ) -> Result<PenaltyState, StoreError> {
        let (policy, key) = (&denied.policy, &denied.key);
        let Some(penalty_limits) = policy.penalty_limits() else {
            return Ok(PenaltyState::DenialsLeft(u64::MAX));
        };
        let counting = DecisionRequest::counting(penalty_limits, key, 0);
        let counted = self.store.count_denials(&counting, denials);
        let left = with_deadline(policy.deadline(), counted).await?;
        if left > 0 {
            return Ok(PenaltyState::DenialsLeft(left));
        }
        // A denial from before the block has too short a retry time.
        let request = LimitRequest::new(policy, Key::from(key)).cost(Amount::ZERO);
        let denied = DecisionRequest::new([request], Mode::Peek, true).ok();
        let _forgetting = denied.as_ref().map(|denied| self.denials.forget(denied));
        let blocking = DecisionRequest::blocking(penalty_limits, key);
        let blocked = with_deadline(policy.deadline(), self.store.decide(&blocking)).await?;
        if policy.on_store_failure() == OnStoreFailure::Local {
            self.fallback.on_verdict(&blocking, &blocked, self.clock.now());
        }
        // Counting starts again after the block. If this fails, it starts with the denials of
        // before.
        let _ = with_deadline(policy.deadline(), self.store.reset(&counting)).await;
        Ok(PenaltyState::Blocked(blocked.blocked_for()))
    }
}
