//! The store in the memory of this process.
//!
//! It joins the table of states with the table of concurrency permits, and turns outcomes into
//! decisions. No operation waits, except the queue for concurrency permits. The only possible error
//! is a full table.
//!
//! Tests: `tests/contract`, `tests/concurrency.rs`.

use std::future::pending;
use std::sync::Arc;

use crate::algorithm::{Mode, StepOutcome, StepResult, UsageCorrection};
use crate::decision::{Decision, LimitOutcome, Origin, Rejection};
use crate::detachment::DetachedHold;
use crate::detachment::table::ExpiringTable;
use crate::error::{StoreError, StoreErrorKind};
use crate::identity::Identity;
use crate::key::Key;
use crate::memory::MemoryStore;
use crate::memory::holder_lease::HolderTable;
use crate::memory::permit_table::{PermitCount, PermitTable};
use crate::penalty::log_uncounted;
use crate::permits::acquire_deadline::AcquireDeadline;
use crate::permits::permit::{ConcurrencyPermit, PermitBacking, into_permit};
use crate::permits::request::ConcurrencyRequest;
use crate::policy::PenaltyLimits;
use crate::request::{
    DecisionRequest, HolderRenewal, HolderReply, IdentifiedLimit, LimitRequest, ValidatedLimit,
};
use crate::store_failure::without_store;
use crate::support::one_or_many::OneOrMany;

/// The states and the concurrency permits of this process.
#[derive(Debug)]
pub(crate) struct MemoryBackend {
    pub(super) store: MemoryStore,
    permits: Arc<PermitTable<()>>,
    /// Detached permits, which are released when they expire.
    detached: Arc<ExpiringTable<DetachedHold>>,
    holders: HolderTable,
}

impl MemoryBackend {
    pub(crate) fn new(store: MemoryStore, max_waiting: usize) -> Self {
        let permits = PermitTable::new(store.max_keys(), max_waiting);
        let detached = Arc::new(ExpiringTable::new());
        Self {
            store,
            permits,
            detached,
            holders: HolderTable::default(),
        }
    }

    /// Reads the lease of a holder, or renews it.
    pub(super) fn holder_lease(
        &self,
        limit: &ValidatedLimit<'_>,
        holder: &str,
        renewal: Option<&HolderRenewal<'_>>,
    ) -> Result<HolderReply, StoreError> {
        let now = self.store.clock.now();
        if let Some(scaled) = limit.policy.pending(now) {
            if let Some(policy) = scaled.in_force_at(now) {
                let limit = ValidatedLimit {
                    policy,
                    ..limit.clone()
                };
                return self.store.holder_lease(&self.holders, &limit, holder, renewal);
            }
            // A peek converts the state to the policy.
            self.store.decide_now(&limit.clone().alone())?;
        }
        self.store.holder_lease(&self.holders, limit, holder, renewal)
    }

    /// Returns the detached permits of this process.
    pub(super) fn detached_permits(&self) -> &Arc<ExpiringTable<DetachedHold>> {
        &self.detached
    }

    /// Decides several limits by the fast step, if their states permit it.
    #[inline]
    pub(super) fn decide_several_fast<const N: usize>(
        &self,
        limits: &[IdentifiedLimit<'_>; N],
        mode: Mode,
    ) -> Option<Decision> {
        let (decided_at, outcomes) = self.store.decide_several_fast(limits, mode)?;
        let results = limits.iter().zip(&outcomes);
        let results =
            results.map(|(limit, outcome)| LimitOutcome::new(limit.policy, StepResult::Level(*outcome)));
        Some(Decision {
            limits: OneOrMany::Several(results.collect()),
            allowed: outcomes.iter().all(|outcome| outcome.fits()),
            ..Decision::without_query(Origin::Memory, decided_at)
        })
    }

    pub(super) fn decide(&self, request: &DecisionRequest<'_>) -> Result<Decision, Rejection> {
        match self.store.decide_now(request) {
            Ok(verdict) => {
                let in_force = request.in_force_at(verdict.decided_at);
                Ok(in_force
                    .as_ref()
                    .unwrap_or(request)
                    .decision(verdict, Origin::Memory))
            }
            Err(error) => without_store(request, error, self.store.clock.now()),
        }
    }

    pub(super) fn change(
        &self,
        request: &DecisionRequest<'_>,
        change: UsageCorrection,
    ) -> Result<(), StoreError> {
        for limit in &request.limits {
            self.store.change_now(limit, change)?;
        }
        Ok(())
    }

    pub(super) fn change_in_proportion(
        &self,
        request: &DecisionRequest<'_>,
        change: UsageCorrection,
    ) -> Result<(), StoreError> {
        for limit in &request.limits {
            self.store.change_proportional(limit, change)?;
        }
        Ok(())
    }

    pub(super) fn reset(&self, request: &DecisionRequest<'_>) {
        request.limits.iter().for_each(|limit| self.store.forget(limit));
    }

    /// Counts a denial. Returns the microseconds for which the key is blocked, if it is.
    pub(super) fn count_denial(
        &self,
        penalty_limits: &PenaltyLimits,
        limit: &LimitRequest<'_>,
    ) -> Option<u64> {
        let key = Key::from(limit.key()).bounded();
        let counting = DecisionRequest::counting(penalty_limits, &key, 1);
        let counted = self.store.decide_now(&counting).and_then(|counted| {
            if counted.denials_left() > 0 {
                return Ok(None);
            }
            let blocked = self
                .store
                .decide_now(&DecisionRequest::blocking(penalty_limits, &key))?;
            // Counting starts again after the block.
            self.reset(&counting);
            Ok(Some(blocked.blocked_for()))
        });
        counted.unwrap_or_else(|error| {
            log_uncounted(limit.policy(), &error);
            None
        })
    }

    /// Acquires concurrency permits if they are available.
    pub(super) fn acquire(&self, request: &ConcurrencyRequest<'_>) -> Result<ConcurrencyPermit, Rejection> {
        self.expire_detached();
        let (identity, terms) = (request.limit().identity, request.terms());
        if terms.cost == 0 {
            return into_permit(self.peek_permits(request), PermitBacking::Nothing);
        }
        match self.permits.try_count(identity, terms.cost, terms.max) {
            Ok(count @ PermitCount::Counted(_)) => {
                let guard = self.permits.guard(identity, terms, ());
                into_permit(self.decision(request, count), PermitBacking::Local(guard))
            }
            Ok(count) => into_permit(self.decision(request, count), PermitBacking::Nothing),
            Err(error) => self.acquire_uncounted(request, error),
        }
    }

    /// Decides by the failure mode of the policy, because the table is full.
    fn acquire_uncounted(
        &self,
        request: &ConcurrencyRequest<'_>,
        error: StoreError,
    ) -> Result<ConcurrencyPermit, Rejection> {
        let decision = without_store(request.decision_request(), error, self.store.clock.now())?;
        into_permit(decision, PermitBacking::Nothing)
    }

    /// Reports whether concurrency permits are available.
    pub(super) fn peek_permits(&self, request: &ConcurrencyRequest<'_>) -> Decision {
        self.expire_detached();
        let (held, terms) = (self.permits.count_held(request.limit().identity), request.terms());
        let fits = terms.cost == 0 || held.saturating_add(terms.cost) <= terms.max;
        let count = match fits {
            true => PermitCount::Counted(held),
            false => PermitCount::Denied(held),
        };
        self.decision(request, count)
    }

    /// Acquires concurrency permits after the calls that wait already.
    pub(super) async fn acquire_in_turn(
        &self,
        request: &ConcurrencyRequest<'_>,
        wait: &AcquireDeadline<'_>,
    ) -> Result<ConcurrencyPermit, Rejection> {
        let (permits, identity) = (&self.permits, request.limit().identity);
        let waiter = match permits.join(identity, request.terms()) {
            Err(error) if error.kind() == StoreErrorKind::Full => {
                return self.acquire_uncounted(request, error);
            }
            joined => joined?,
        };
        loop {
            if let Some(held) = waiter.take_permits() {
                let decision = self.decision(request, PermitCount::Counted(permits.count_held(identity)));
                return into_permit(decision, PermitBacking::Local(held));
            }
            if waiter.query_requested() {
                match self.acquire(&request.under(waiter.wanted())?) {
                    Err(Rejection::Limited(_)) => {}
                    answer => return answer,
                }
            }
            tokio::select! {
                biased;
                () = waiter.notified() => {}
                () = self.detached_expires() => self.expire_detached(),
                () = wait.expired() => {
                    // The current occupancy: this waiter may never have been first, and the free
                    // permits belong to earlier waiters.
                    let request = request.under(waiter.wanted())?;
                    let denied = self.decision(&request, PermitCount::Denied(permits.count_held(identity)));
                    return Err(wait.timed_out(Some(Box::new(denied))));
                }
            }
        }
    }

    /// Notifies the first waiter for permits of a limit.
    pub(super) fn notify_first(&self, identity: Identity) {
        self.permits.notify_first(identity);
    }

    /// Releases the detached permits that have expired.
    fn expire_detached(&self) {
        drop(self.detached.take_expired(|| self.store.clock.now()));
    }

    /// Waits until the first detached permit expires.
    async fn detached_expires(&self) {
        let Some(expires_at) = self.detached.first_expiry() else {
            return pending().await;
        };
        let now = self.store.clock.now();
        self.store.clock.sleep(now, expires_at.since(now)).await;
    }

    /// Returns the decision about concurrency permits.
    fn decision(&self, request: &ConcurrencyRequest<'_>, count: PermitCount) -> Decision {
        let terms = request.terms();
        let (fits, held) = match count {
            PermitCount::Counted(held) => (true, held),
            PermitCount::Denied(held) => (false, held),
        };
        let lease = u64::from(terms.lease_ms) * 1_000;
        let reset_after = if held == 0 { 0 } else { lease };
        let outcome = StepOutcome {
            fits,
            remaining: terms.max.saturating_sub(held),
            retry_after: if fits { 0 } else { lease },
            reset_after,
            expires_after: reset_after,
            ..StepOutcome::default()
        };
        let now = self.store.clock.now();
        request
            .decision_request()
            .concurrency_decision(outcome, now, Origin::Memory)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::backend::memory::*;
    use crate::policy::{OnStoreFailure, Policy};
    use crate::{Limiter, ManualClock};

    #[tokio::test]
    async fn wait_on_full_table_applies_failure_mode() {
        let limits = Limiter::in_process().clock(&ManualClock::new()).max_keys(1);
        let limits = limits.build();
        let policy = |answer| Policy::concurrency("p").max(1).on_store_failure(answer).build();
        let [open, closed] = [OnStoreFailure::FailOpen, OnStoreFailure::FailClosed].map(policy);
        let (open, closed) = (open.unwrap(), closed.unwrap());
        let _held = limits.acquire_concurrency(&open, "stored").await.unwrap();
        for timeout in [Duration::ZERO, Duration::from_secs(1)] {
            let new = |policy| limits.acquire_concurrency(policy, "new").timeout(timeout);
            let permit = new(&open).await.unwrap();
            assert_eq!(permit.decision().origin(), Origin::FailedOpen);
            let rejection = new(&closed).await.unwrap_err();
            let origin = rejection.decision().map(Decision::origin);
            assert_eq!(origin, Some(Origin::FailedClosed), "{rejection:?}");
        }
    }
}
