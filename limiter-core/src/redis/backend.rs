//! The store in Redis, with the caches in front of it and the fallback behind it.
//!
//! A request is decided by the first of these that can: leased tokens, the deny cache, the script
//! in Redis within the deadline of the policies, the local fallback (if Redis does not reply and a
//! policy selects it).
//!
//! Tests: `tests/contract`, `tests/local_fallback.rs`, `tests/outages.rs`, `limiter-faults`.

mod awaiting_reports;
pub(crate) mod inheritance;
mod invalidating_lender;
mod penalty;
mod refunds;
mod repeated_decisions;
mod upkeep;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::algorithm::{Mode, UsageCorrection};
use crate::decision::{Decision, Origin, Rejection, SingleOutcome};
use crate::error::StoreError;
use crate::observe::{self, UsageRecorder};
use crate::penalty::denial_counts::DenialCounts;
use crate::policy::OnStoreFailure;
use crate::redis::backend::invalidating_lender::InvalidatingLender;
use crate::redis::backend::upkeep::UPKEEP_INTERVAL;
use crate::redis::converted_limits::ConvertedLimits;
use crate::redis::deny_cache::{DenyCache, InFlightToken, LimitCost};
use crate::redis::local_fallback::LocalFallback;
use crate::redis::outage_log::{Outage, is_outage};
use crate::redis::pending_refunds::{PendingAtSubmission, PendingRefunds};
use crate::redis::permit_leases::PermitLeases;
use crate::redis::permit_leases::store::{self, ConcurrencyStore};
use crate::redis::reconciler::Reconciler;
use crate::redis::replicas::Replicas;
use crate::redis::settings::BackendSettings;
use crate::redis::token_lease::Leases;
use crate::redis::usage::UsageReporter;
use crate::redis::{READY_WITHIN, RedisStore};
use crate::request::{DecisionRequest, IdentifiedLimit, ValidatedLimit, Verdict};
use crate::store_failure::without_store;
use crate::support::clock::Clock;
use crate::support::log_throttle::LogThrottle;
use crate::support::real_time::{CallDeadline, with_deadline};
use crate::support::sync::atomic::{AtomicU64, Ordering};
use crate::units::Timestamp;

/// Redis, the caches in front of it, and the fallback for its outages.
#[derive(Debug)]
pub(crate) struct RedisBackend {
    pub(crate) store: RedisStore,
    pub(crate) denials: Arc<DenyCache>,
    refunds: PendingRefunds,
    leases: Leases<InvalidatingLender>,
    pub(crate) fallback: Arc<LocalFallback>,
    reconciler: Reconciler,
    pub(crate) permit_leases: Arc<PermitLeases>,
    pub(crate) replicas: Replicas,
    pub(crate) clock: Clock,
    pub(crate) converted: Arc<ConvertedLimits>,
    full_log: LogThrottle,
    pub(crate) denial_counts: DenialCounts,
    pub(crate) outage: Outage,
    /// Reports the usage, if it is enabled.
    usage: Option<UsageReporter>,
    /// The local time from which a reply performs the next upkeep, in microseconds.
    upkeep_at: AtomicU64,
}

impl RedisBackend {
    pub(crate) fn new(store: RedisStore, settings: BackendSettings) -> Self {
        let clock = store.clock.clone();
        let fallback = Arc::new(LocalFallback::new(clock.clone(), settings.max_local_keys));
        let denials = Arc::new(DenyCache::new(clock.clone(), settings.deny_cache));
        let converted = Arc::<ConvertedLimits>::default();
        let lender = InvalidatingLender {
            lender: store.lender(),
            denials: Arc::clone(&denials),
            converted: Arc::clone(&converted),
        };
        Self {
            leases: Leases::new(lender, clock.clone()),
            permit_leases: PermitLeases::new(
                ConcurrencyStore::of(&store),
                clock.clone(),
                settings.max_waiting,
            ),
            reconciler: Reconciler::new(
                Arc::clone(&fallback),
                Arc::clone(&converted),
                store.permit_reporter(),
            ),
            replicas: Replicas::new(settings.replicas, store.heartbeat(), clock.clone()),
            store,
            denials,
            refunds: PendingRefunds::default(),
            fallback,
            clock,
            converted,
            full_log: LogThrottle::default(),
            denial_counts: DenialCounts::default(),
            outage: Outage::default(),
            usage: None,
            upkeep_at: AtomicU64::new(0),
        }
    }

    /// Reports the decisions to Redis.
    pub(crate) fn with_usage(self, usage: Option<UsageReporter>) -> Self {
        Self { usage, ..self }
    }

    /// Returns the recorder of the usage, if it is reported.
    #[inline]
    pub(crate) fn usage(&self) -> Option<&UsageRecorder> {
        self.usage.as_ref().map(UsageReporter::recorder)
    }

    /// Decides a request from leased tokens, or by a denial in the deny cache.
    pub(crate) fn try_decide(&self, request: &DecisionRequest<'_>) -> Option<Decision> {
        // A lease that is granted while replicas reconcile must not be spent besides their shares.
        if !self.is_reconciling(request) {
            if let Some(decision) = self.leases.decide(request) {
                return Some(decision);
            }
        }
        let mut verdict = self.denials.decide(request)?;
        self.leases.complete(request, &mut verdict, u64::MAX);
        Some(request.decision(verdict, Origin::DenyCache))
    }

    /// Returns the denial that Redis would answer to a charge of one limit, or `None` if the deny
    /// cache has no denial. A limit with leased tokens is decided as a request, since leased tokens
    /// are spent first.
    pub(crate) fn try_decide_one(&self, limit: IdentifiedLimit<'_>, mode: Mode) -> Option<SingleOutcome> {
        if mode != Mode::Charge || limit.policy.lease().is_some() {
            return None;
        }
        let (decided_at, result) = self.denials.decide_one(LimitCost {
            identity: limit.identity,
            algorithm: limit.policy.algorithm(),
            cost: limit.cost,
        })?;
        Some(SingleOutcome {
            decided_at,
            fits: false,
            result,
            origin: Origin::DenyCache,
        })
    }

    /// Decides a request that [`try_decide`](Self::try_decide) left undecided, within the deadline.
    pub(crate) async fn decide(
        &self,
        request: &DecisionRequest<'_>,
        deadline: Duration,
    ) -> Result<Decision, Rejection> {
        if request.is_scaled() {
            // Boxed, so that the future of other decisions stays small.
            return Box::pin(self.decide_inheriting(request, deadline)).await;
        }
        self.decide_unscaled(request, deadline).await
    }

    pub(crate) async fn decide_unscaled(
        &self,
        request: &DecisionRequest<'_>,
        deadline: Duration,
    ) -> Result<Decision, Rejection> {
        if self.is_reconciling(request) {
            // Boxed, so that the future of other decisions stays small.
            return Box::pin(self.decide_reconciling(request, deadline)).await;
        }
        match self.refunds_at_submission(request) {
            None => self.decide_once(request, deadline).await,
            // Boxed, so that the future of other decisions stays small.
            Some(pending) => Box::pin(self.decide_with_refunds(request, deadline, pending)).await,
        }
    }

    /// Returns the refunds of the request's limits that are pending now. A refund invalidates the
    /// denials of its limits before it is pending, so nearly no call takes the lock of the table.
    pub(crate) fn refunds_at_submission(&self, request: &DecisionRequest<'_>) -> Option<PendingAtSubmission> {
        if !self.denials.is_invalidated(request) {
            return None;
        }
        let limits = request.limits.iter().map(|limit| limit.identity);
        self.refunds.at_submission(limits)
    }

    /// Returns whether the share has to admit a call besides Redis. While permits of an outage are
    /// not reported, each call makes sure that a task reports them.
    #[inline]
    pub(crate) fn is_reconciling(&self, request: &DecisionRequest<'_>) -> bool {
        if self.fallback.unreported().is_empty() {
            return false;
        }
        self.reconciler.keep_reporting();
        self.fallback.is_reconciling(request)
    }

    async fn decide_once(
        &self,
        request: &DecisionRequest<'_>,
        deadline: Duration,
    ) -> Result<Decision, Rejection> {
        // The clock is read once before the request to Redis, and once after it.
        let started = Instant::now();
        let in_flight = self.denials.in_flight_token(request, started);
        // Nearly all policies lease no tokens.
        let leases = request.leasable().map(|_| &self.leases);
        let (answer, held) = match leases.and_then(|leases| leases.request_refill(request)) {
            Some(refill) => (
                CallDeadline::since(started, deadline).within(pin!(refill)).await,
                u64::MAX,
            ),
            None => {
                let held = leases.map_or(0, |leases| leases.held(request));
                let decision = pin!(self.store.decide_since(started, request));
                (
                    CallDeadline::since(started, deadline).within(decision).await,
                    held,
                )
            }
        };
        let error = match answer {
            Ok(mut verdict) => {
                self.on_verdict(request, &verdict, in_flight);
                if let Some(leases) = leases {
                    leases.complete(request, &mut verdict, held);
                }
                observe::record_query(started, Some(Origin::Redis));
                return Ok(request.decision(verdict, Origin::Redis));
            }
            Err(error) => error,
        };
        self.decide_without(request, error, started)
    }

    /// Records a reply of Redis.
    pub(crate) fn on_verdict(
        &self,
        request: &DecisionRequest<'_>,
        verdict: &Verdict,
        in_flight: Option<InFlightToken>,
    ) {
        self.denials.on_verdict(request, verdict, in_flight);
        let now = self.clock.now();
        if request.on_store_failure() == OnStoreFailure::Local {
            self.fallback.on_verdict(request, verdict, now);
        }
        self.on_reply(request, request.mode, now);
    }

    /// Performs the duties after a reply of Redis (`upkeep.rs`), if they are due.
    #[inline]
    pub(crate) fn on_reply(&self, request: &DecisionRequest<'_>, mode: Mode, now: Timestamp) {
        let due = self.upkeep_at.load(Ordering::Relaxed);
        // A test's clock may have been set back.
        if now.as_micros() >= due || due - now.as_micros() > UPKEEP_INTERVAL {
            self.perform_upkeep(request, mode, now);
        }
    }

    /// Decides a request to which Redis, which received it at `started`, has not replied.
    pub(crate) fn decide_without(
        &self,
        request: &DecisionRequest<'_>,
        error: StoreError,
        started: Instant,
    ) -> Result<Decision, Rejection> {
        self.converted.on_failure(error.kind());
        // The server's clock is unknown.
        let in_force = request.in_force_at(self.clock.now());
        let request = in_force.as_ref().unwrap_or(request);
        if !Self::falls_back(request, &error) {
            self.outage.log_failure_mode(request, &error, self.clock.now());
            let answer = without_store(request, error, self.clock.now());
            observe::record_query(started, answer.as_ref().ok().map(Decision::origin));
            return answer;
        }
        let verdict = self.fallback.decide(request, self.replicas.count());
        let verdict = verdict.inspect_err(|full| {
            self.log_fallback(&error);
            observe::store_failed(full.kind());
            observe::record_query(started, None);
            if self.full_log.is_due(self.clock.now()) {
                tracing::warn!(error = %full, "local fallback is full (max_local_keys); new keys are rejected");
            }
        })?;
        Ok(self.decided_by_share(request, verdict, error, started))
    }

    /// Returns whether the local fallback decides a request, since Redis failed with `error`.
    pub(crate) fn falls_back(request: &DecisionRequest<'_>, error: &StoreError) -> bool {
        request.on_store_failure() == OnStoreFailure::Local && is_outage(error.kind())
    }

    /// Returns the decision from this replica's share, because Redis failed with `error`.
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

    /// Refunds the cost of the request's limits, or charges it even if too little is left.
    pub(crate) async fn change(
        &self,
        request: &DecisionRequest<'_>,
        change: UsageCorrection,
    ) -> Result<(), StoreError> {
        let in_force = match request.is_scaled() {
            true => Box::pin(self.inherit_for_change(request)).await?,
            false => None,
        };
        self.change_unscaled(in_force.as_ref().unwrap_or(request), change)
            .await
    }

    pub(crate) async fn change_unscaled(
        &self,
        request: &DecisionRequest<'_>,
        change: UsageCorrection,
    ) -> Result<(), StoreError> {
        let [limit] = &*request.limits else {
            return Ok(());
        };
        let _forgetting = self.denials.forget(request);
        let rest = match change {
            // Leased tokens return to the lease: Redis has not received their usage yet.
            UsageCorrection::Refund { whole_at } => self.leases.refund(limit, whole_at),
            // Leased tokens are spent before the store records debt.
            UsageCorrection::ForceCharge => limit.cost - self.leases.charge(limit),
        };
        if rest == 0 {
            return Ok(());
        }
        let limit = ValidatedLimit {
            cost: rest,
            ..limit.clone()
        };
        let answer = with_deadline(request.deadline(), self.store.change(&limit, change)).await;
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
        change: UsageCorrection,
    ) -> Result<(), StoreError> {
        self.fallback.apply_change(request, change, self.replicas.count())
    }

    /// Deletes the state of every limit of the request, in Redis and in the caches.
    pub(crate) async fn reset(&self, request: &DecisionRequest<'_>) -> Result<(), StoreError> {
        // Also if the command fails: Redis may have deleted the state without a reply.
        let _forgetting = self.denials.forget(request);
        // Before the command, so that no leased token is spent meanwhile; and after it, since Redis
        // may have granted more tokens in the meantime.
        self.leases.forget(request);
        for limit in &request.limits {
            self.denial_counts.forget(limit.identity);
        }
        let answer = with_deadline(request.deadline(), self.store.reset(request)).await;
        answer.inspect_err(|error| observe::store_failed(error.kind()))?;
        self.leases.forget(request);
        self.fallback.forget(request);
        Ok(())
    }

    pub(crate) async fn ready(&self, patience: Duration) -> Result<(), StoreError> {
        let permits = store::nothing(READY_WITHIN);
        with_deadline(patience, self.store.ready([permits])).await
    }

    /// Returns the connection to Redis with its scripts.
    pub(crate) fn store(&self) -> &RedisStore {
        &self.store
    }

    /// Returns the number of replicas that share the limits.
    pub(crate) fn replicas(&self) -> u32 {
        self.replicas.count()
    }

    /// Leaves the other replicas their shares, returns leases, and reports permits that were
    /// admitted without Redis.
    pub(crate) async fn shutdown(&self) {
        let usage = async {
            if let Some(usage) = &self.usage {
                usage.shutdown().await;
            }
        };
        tokio::join!(
            usage,
            self.replicas.deregister(),
            self.leases.shutdown(),
            self.permit_leases.settle(),
            self.reconciler.flush()
        );
    }
}
