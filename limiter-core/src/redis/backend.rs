//! Asks Redis where it is not known that it denies, bounds the time that it may take, and has the
//! local fallback decide when it does not.

mod reconciling;
mod refunds;
mod run;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::algorithm::{Change, Mode};
use crate::concurrency::leases::PermitLeases;
use crate::decision::outage::without_store;
use crate::decision::{Decision, Origin, Rejection};
use crate::error::StoreError;
use crate::identity::Identity;
use crate::inheritance::redis::ConvertedLimits;
use crate::observe;
use crate::penalty::denial_counts::DenialCounts;
use crate::policy::OnStoreFailure;
use crate::redis::RedisStore;
use crate::redis::deny_cache::{DenyCache, InFlightToken, LimitCost};
use crate::redis::local_fallback::LocalFallback;
use crate::redis::outage_log::{Outage, is_outage};
use crate::redis::reconciler::Reconciler;
use crate::redis::replicas::Replicas;
use crate::redis::token_lease::Leases;
use crate::request::{DecisionRequest, LimitRequest, RequestedLimit, Verdict};
use crate::store::Store;
use crate::support::clock::{Clock, LogThrottle};
use crate::support::deadline::{within, within_pinned};
pub(crate) use crate::tier::pending_refunds::PendingRefunds;

/// Redis, and what is answered when it has no answer.
#[derive(Debug)]
pub(crate) struct RedisBackend {
    pub(crate) store: RedisStore,
    pub(crate) denials: DenyCache,
    refunds: PendingRefunds,
    leases: Leases,
    pub(crate) fallback: Arc<LocalFallback>,
    reconciler: Reconciler,
    pub(crate) permit_leases: Arc<PermitLeases>,
    pub(crate) replicas: Replicas,
    pub(crate) clock: Clock,
    pub(crate) converted: ConvertedLimits,
    told_full: LogThrottle,
    pub(crate) denial_counts: DenialCounts,
    pub(crate) outage: Outage,
}

impl RedisBackend {
    /// Denials are kept for so long at most, so many keys for when Redis is out, and so many wait
    /// to be in flight.
    pub(crate) fn new(
        store: RedisStore,
        replicas: Replicas,
        clock: Clock,
        keep_denials: Duration,
        (max_keys, max_waiting): (usize, usize),
    ) -> Self {
        let fallback = Arc::new(LocalFallback::new(clock.clone(), max_keys));
        Self {
            leases: Leases::new(store.lender(), clock.clone()),
            permit_leases: PermitLeases::new(store.register(), clock.clone(), max_waiting),
            reconciler: Reconciler::new(Arc::clone(&fallback), store.permit_reporter()),
            store,
            denials: DenyCache::new(clock.clone(), keep_denials),
            refunds: PendingRefunds::default(),
            fallback,
            replicas,
            clock,
            converted: ConvertedLimits::default(),
            told_full: LogThrottle::default(),
            denial_counts: DenialCounts::default(),
            outage: Outage::default(),
        }
    }

    /// The answer to a request that what is borrowed covers, or the denial that Redis would answer,
    /// if that is known.
    pub(crate) fn decide_now(&self, request: &DecisionRequest<'_>) -> Option<Decision> {
        // A lease that is granted while replicas reconcile must not be spent besides their shares.
        if !self.fallback.is_reconciling(request) {
            if let Some(decision) = self.leases.decide(request) {
                return Some(decision);
            }
        }
        let mut verdict = self.denials.answer(request)?;
        self.leases.complete(request, &mut verdict, u64::MAX);
        Some(request.decision(verdict, Origin::DenyCache))
    }

    /// The denial that Redis would answer to a charge of one limit of which nothing is borrowed, if
    /// that is known.
    #[inline]
    pub(crate) fn deny_now(&self, ask: &LimitRequest<'_>, identity: Identity, cost: u64) -> Option<Decision> {
        let algorithm = ask.policy().algorithm();
        let (decided_at, result) = self.denials.answer_one(LimitCost {
            identity,
            algorithm,
            cost,
        })?;
        Some(ask.decision(decided_at, result, Origin::DenyCache))
    }

    /// The answer of Redis to a request that cannot be decided at once, within the deadline.
    pub(crate) async fn decide(
        &self,
        request: &DecisionRequest<'_>,
        deadline: Duration,
    ) -> Result<Decision, Rejection> {
        if request.is_scaled() {
            // Boxed, so that no other decision has to make room for it.
            return Box::pin(self.decide_inheriting(request, deadline)).await;
        }
        self.decide_as_asked(request, deadline).await
    }

    pub(crate) async fn decide_as_asked(
        &self,
        request: &DecisionRequest<'_>,
        deadline: Duration,
    ) -> Result<Decision, Rejection> {
        if self.fallback.is_reconciling(request) {
            // Boxed, so that no other decision has to make room for it.
            return Box::pin(self.decide_reconciling(request, deadline)).await;
        }
        let limits = request.limits.iter().map(|limit| limit.identity);
        match self.refunds.at_submission(limits) {
            None => self.decide_once(request, deadline).await,
            // Boxed, so that no other decision has to make room for it.
            Some(pending) => Box::pin(self.decide_with_refunds(request, deadline, pending)).await,
        }
    }

    async fn decide_once(
        &self,
        request: &DecisionRequest<'_>,
        deadline: Duration,
    ) -> Result<Decision, Rejection> {
        // The clock is read once before Redis is asked, and once after.
        let started = Instant::now();
        let submission = self.denials.submission(request, started);
        let (answer, held) = match self.leases.request_refill(request) {
            Some(asked) => (within_pinned(started, deadline, pin!(asked)).await, u64::MAX),
            None => {
                let held = self.leases.held(request);
                let asked = pin!(self.store.decide_since(started, request));
                (within_pinned(started, deadline, asked).await, held)
            }
        };
        let error = match answer {
            Ok(mut verdict) => {
                self.on_verdict(request, &verdict, submission);
                self.leases.complete(request, &mut verdict, held);
                observe::record_query(started, Some(Origin::Redis));
                return Ok(request.decision(verdict, Origin::Redis));
            }
            Err(error) => error,
        };
        self.decide_without(request, error, started)
    }

    /// Records an answer of Redis.
    pub(crate) fn on_verdict(
        &self,
        request: &DecisionRequest<'_>,
        verdict: &Verdict,
        submission: Option<InFlightToken>,
    ) {
        self.denials.on_verdict(request, verdict, submission);
        if request.on_store_failure() == OnStoreFailure::Local {
            let now = self.clock.now();
            self.fallback.on_verdict(request, verdict, now);
            // A limiter that only peeks admits nothing in an outage, so it has no share.
            if request.mode == Mode::Charge {
                self.replicas.keep_counting(now);
            }
        }
        self.outage.decided(|| self.clock.now());
    }

    /// The answer to a request to which Redis, asked since `started`, gave none.
    pub(crate) fn decide_without(
        &self,
        request: &DecisionRequest<'_>,
        error: StoreError,
        started: Instant,
    ) -> Result<Decision, Rejection> {
        let insured = request.on_store_failure() == OnStoreFailure::Local;
        if !insured || !is_outage(error.kind()) {
            self.outage.answers(request, &error, self.clock.now());
            let answer = without_store(request, error, self.clock.now());
            observe::record_query(started, answer.as_ref().ok().map(Decision::origin));
            return answer;
        }
        let verdict = self.fallback.decide(request, self.replicas.count());
        let verdict = verdict.inspect_err(|full| {
            self.log_fallback(&error);
            observe::store_failed(full.kind());
            observe::record_query(started, None);
            if self.told_full.is_due(self.clock.now()) {
                tracing::warn!(error = %full, "local fallback is full (max_local_keys); new keys are rejected");
            }
        })?;
        Ok(self.decided_by_share(request, verdict, error, started))
    }

    /// The decision of this replica's share alone, since Redis gave no answer for this reason.
    fn decided_by_share(
        &self,
        request: &DecisionRequest<'_>,
        verdict: Verdict,
        error: StoreError,
        started: Instant,
    ) -> Decision {
        self.log_fallback(&error);
        if request.mode == Mode::Charge {
            self.reconciler.record(request, &verdict, self.replicas.count());
        }
        observe::record_query(started, Some(Origin::LocalFallback));
        let mut decision = request.decision(verdict, Origin::LocalFallback);
        tracing::debug!(error = %error.with_causes(), allowed = decision.is_allowed(), "decided by the local fallback");
        decision.store_error = Some(Box::new(error));
        decision
    }

    fn log_fallback(&self, error: &StoreError) {
        observe::store_failed(error.kind());
        self.outage
            .log_fallback(error, self.replicas.count(), self.clock.now());
    }

    /// Gives back what was used, or charges it whatever is left.
    pub(crate) async fn change(
        &self,
        request: &DecisionRequest<'_>,
        change: Change,
    ) -> Result<(), StoreError> {
        let in_force = match request.is_scaled() {
            true => Box::pin(within(request.deadline(), self.inherit(request))).await?,
            false => None,
        };
        self.change_as_asked(in_force.as_ref().unwrap_or(request), change)
            .await
    }

    pub(crate) async fn change_as_asked(
        &self,
        request: &DecisionRequest<'_>,
        change: Change,
    ) -> Result<(), StoreError> {
        let [limit] = &*request.limits else {
            return Ok(());
        };
        let _forgetting = self.denials.forget(request);
        let rest = match change {
            // What was borrowed comes back where it was spent: the store does not know yet that it
            // was.
            Change::Refund { whole_at } => self.leases.refund(limit, whole_at),
            // What is borrowed is spent before anything is owed.
            Change::ForceCharge => limit.cost - self.leases.charge(limit),
        };
        if rest == 0 {
            return Ok(());
        }
        let limit = RequestedLimit {
            cost: rest,
            ..limit.clone()
        };
        let answer = within(request.deadline(), self.store.change(&limit, change)).await;
        let verdict = answer.inspect_err(|error| observe::store_failed(error.kind()))?;
        if request.on_store_failure() == OnStoreFailure::Local {
            self.fallback.on_verdict(request, &verdict, self.clock.now());
        }
        Ok(())
    }

    /// Refunds a charge of the local fallback, or charges the share unconditionally. A refund does
    /// not fail.
    pub(crate) fn change_share(
        &self,
        request: &DecisionRequest<'_>,
        change: Change,
    ) -> Result<(), StoreError> {
        self.fallback.apply_change(request, change, self.replicas.count())
    }

    /// Forgets what was used.
    pub(crate) async fn reset(&self, request: &DecisionRequest<'_>) -> Result<(), StoreError> {
        // However it ends: Redis may have forgotten without saying so.
        let _forgetting = self.denials.forget(request);
        // Before, lest it be spent; and again, since more may have been lent in the meantime.
        self.leases.forget(request);
        for limit in &request.limits {
            self.denial_counts.forget(limit.identity);
        }
        let answer = within(request.deadline(), self.store.reset(request)).await;
        answer.inspect_err(|error| observe::store_failed(error.kind()))?;
        self.leases.forget(request);
        self.fallback.forget(request);
        Ok(())
    }

    pub(crate) async fn ready(&self, patience: Duration) -> Result<(), StoreError> {
        within(patience, self.store.ready()).await
    }

    /// What is guarded.
    pub(crate) fn store(&self) -> &RedisStore {
        &self.store
    }

    /// How many replicas share the limits.
    pub(crate) fn replicas(&self) -> u32 {
        self.replicas.count()
    }

    /// Leaves the other replicas their shares, returns leases, and reports permits that were
    /// admitted without Redis.
    pub(crate) async fn shutdown(&self) {
        tokio::join!(
            self.replicas.deregister(),
            self.leases.shutdown(),
            self.permit_leases.settle(),
            self.reconciler.flush()
        );
    }
}
