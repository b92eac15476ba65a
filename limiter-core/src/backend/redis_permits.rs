//! Concurrency permits from Redis and, while it is unavailable, from the local fallback.
//!
//! Redis counts the leases of all processes (`redis/permit_leases.rs`), and the permit table of
//! this process counts its own. If Redis does not reply and a policy selects it, this replica
//! admits its share of the maximum by the table; the housekeeper registers these permits
//! afterwards. `queue` has the calls that wait, `detached` the permits that a client holds by an
//! id.
//!
//! Tests: `tests/concurrency.rs`, `tests/contract/concurrency.rs`, `tests/detached.rs`.

mod detached;
mod queue;

use std::time::{Duration, Instant};

use crate::algorithm::{Mode, StepOutcome};
use crate::decision::{Decision, Origin, Rejection};
use crate::error::StoreError;
use crate::memory::permit_table::{PermitGuard, PermitTable, PermitTerms};
use crate::observe;
use crate::permits::permit::{ConcurrencyPermit, PermitBacking, into_permit};
use crate::permits::request::ConcurrencyRequest;
use crate::redis::RedisBackend;
use crate::redis::permit_leases::store::Occupancy;
use crate::redis::permit_leases::{AcquireOutcome, LocalAcquireOutcome, PermitLease};
use crate::request::DecisionRequest;
use crate::store_failure::without_store;
use crate::units::micros_ceil;

/// `retry_after` of a denial by the local fallback.
const FALLBACK_RETRY_AFTER: Duration = Duration::from_millis(500);

impl RedisBackend {
    /// Returns the permits that this replica holds.
    pub(super) fn permit_table(&self) -> &std::sync::Arc<PermitTable<PermitLease>> {
        self.permit_leases.table()
    }

    /// Acquires the permits of a request with one limit if they are available.
    pub(crate) async fn acquire(
        &self,
        acquire: &ConcurrencyRequest<'_>,
        deadline: Duration,
    ) -> Result<ConcurrencyPermit, Rejection> {
        let (decision, held) = self.enter(acquire, deadline).await?;
        into_permit(
            decision,
            held.map_or(PermitBacking::Nothing, PermitBacking::Leased),
        )
    }

    /// Acquires the permits of a request with one limit. An allowed decision without a guard means
    /// that the store is unavailable and the policy allows the call.
    async fn enter(
        &self,
        acquire: &ConcurrencyRequest<'_>,
        deadline: Duration,
    ) -> Result<(Decision, Option<PermitGuard<PermitLease>>), Rejection> {
        let (request, limit, terms) = (acquire.decision_request(), acquire.limit(), acquire.terms());
        let started = Instant::now();
        let error = match self.permit_leases.enter(limit, terms, deadline).await {
            Ok(acquired) => {
                self.record_entry(request, started);
                return Ok(match acquired {
                    AcquireOutcome::Admitted(held, occupancy) => {
                        (decision_from_occupancy(request, terms, Ok(occupancy)), Some(held))
                    }
                    AcquireOutcome::Denied(occupancy) => {
                        (decision_from_occupancy(request, terms, Err(occupancy)), None)
                    }
                });
            }
            Err(error) => error,
        };
        self.enter_without_redis(acquire, error, started)
    }

    /// Records an answer of Redis to a request for a permit.
    pub(super) fn record_entry(&self, request: &DecisionRequest<'_>, started: Instant) {
        observe::record_query(started, Some(Origin::Redis));
        self.on_reply(request, Mode::Charge, self.clock.now());
    }

    /// Decides by the policy, since Redis gave no answer.
    pub(super) fn enter_without_redis(
        &self,
        acquire: &ConcurrencyRequest<'_>,
        error: StoreError,
        started: Instant,
    ) -> Result<(Decision, Option<PermitGuard<PermitLease>>), Rejection> {
        let (request, limit, terms) = (acquire.decision_request(), acquire.limit(), acquire.terms());
        if !Self::falls_back(request, &error) {
            self.outage.log_failure_mode(request, &error, self.clock.now());
            let result = without_store(request, error, self.clock.now());
            observe::record_query(started, result.as_ref().ok().map(Decision::origin));
            return Ok((result?, None));
        }
        observe::store_failed(error.kind());
        self.outage
            .log_fallback(&error, self.replicas.count(), self.clock.now());
        let share = self.permit_share(terms);
        let local = self.permit_leases.acquire_local(limit, terms, share);
        let local = local.inspect_err(|error| {
            observe::store_failed(error.kind());
            observe::record_query(started, None);
        })?;
        observe::record_query(started, Some(Origin::LocalFallback));
        let (held, number) = match local {
            LocalAcquireOutcome::Admitted(held, number) => (Some(held), number),
            LocalAcquireOutcome::Denied(number) => (None, number),
        };
        let fits = held.is_some();
        let decision = self.share_decision(acquire, (fits, share.saturating_sub(number)), error);
        Ok((decision, held))
    }

    /// Returns a decision by this replica's share, of which these permits remain, because Redis
    /// failed with `error`.
    fn share_decision(
        &self,
        acquire: &ConcurrencyRequest<'_>,
        (fits, remaining): (bool, u64),
        error: StoreError,
    ) -> Decision {
        let lease = u64::from(acquire.terms().lease_ms) * 1_000;
        let outcome = StepOutcome {
            fits,
            remaining,
            retry_after: if fits {
                0
            } else {
                micros_ceil(FALLBACK_RETRY_AFTER)
            },
            reset_after: lease,
            expires_after: lease,
            ..StepOutcome::default()
        };
        let request = acquire.decision_request();
        let mut decision = request.concurrency_decision(outcome, self.clock.now(), Origin::LocalFallback);
        tracing::debug!(error = %error.with_causes(), allowed = decision.is_allowed(), "decided by the local fallback");
        decision.store_error = Some(Box::new(error));
        decision
    }

    /// Returns the permits that this replica admits alone.
    fn permit_share(&self, terms: PermitTerms) -> u64 {
        terms.max.div_ceil(u64::from(self.replicas.count().max(1)))
    }

    /// Returns the decision of an acquisition without acquiring permits.
    pub(crate) async fn peek_permits(
        &self,
        acquire: &ConcurrencyRequest<'_>,
        deadline: Duration,
    ) -> Result<Decision, Rejection> {
        let (request, limit, terms) = (acquire.decision_request(), acquire.limit(), acquire.terms());
        match self.permit_leases.peek(limit, deadline).await {
            Ok(occupancy) => {
                let fits = terms.cost == 0 || occupancy.held.saturating_add(terms.cost) <= terms.max;
                let occupancy = if fits { Ok(occupancy) } else { Err(occupancy) };
                Ok(decision_from_occupancy(request, terms, occupancy))
            }
            Err(error) if Self::falls_back(request, &error) => {
                observe::store_failed(error.kind());
                let held = self.permit_table().count_held(limit.identity);
                let remaining = self.permit_share(terms).saturating_sub(held);
                let fits = terms.cost <= remaining;
                Ok(self.share_decision(acquire, (fits, remaining), error))
            }
            Err(error) => without_store(request, error, self.clock.now()),
        }
    }

    /// Removes the permits of other processes.
    pub(crate) async fn reset_permits(&self, acquire: &ConcurrencyRequest<'_>) -> Result<(), StoreError> {
        let deadline = acquire.decision_request().deadline();
        self.permit_leases.reset(acquire.limit(), deadline).await
    }
}

/// Returns the decision about concurrency permits: the occupancy of their key afterwards, as an
/// error if the request does not fit.
pub(super) fn decision_from_occupancy(
    request: &DecisionRequest<'_>,
    terms: PermitTerms,
    occupancy: Result<Occupancy, Occupancy>,
) -> Decision {
    let (fits, Ok(occupancy) | Err(occupancy)) = (occupancy.is_ok(), occupancy);
    let outcome = StepOutcome {
        fits,
        remaining: terms.max.saturating_sub(occupancy.held),
        retry_after: if fits { 0 } else { occupancy.first_ends.max(1) },
        // Consistent with the in-process table; holders may have longer leases than this policy
        // gives.
        reset_after: match occupancy.held {
            0 => 0,
            _ => occupancy.last_ends.max(u64::from(terms.lease_ms) * 1_000),
        },
        expires_after: occupancy.last_ends,
        ..StepOutcome::default()
    };
    request.concurrency_decision(outcome, occupancy.decided_at, Origin::Redis)
}
