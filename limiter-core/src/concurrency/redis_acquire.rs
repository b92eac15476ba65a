//! Permits of what is in flight: from Redis, or, while it is out, as the policy says.

use std::time::{Duration, Instant};

use crate::algorithm::StepOutcome;
use crate::concurrency::leases::{AcquireOutcome, PermitLease};
use crate::concurrency::redis_store::Occupancy;
use crate::concurrency::request::ConcurrencyRequest;
use crate::concurrency::table::{PermitGuard, PermitTable, PermitTerms};
use crate::decision::outage::without_store;
use crate::decision::{Decision, Origin, Rejection};
use crate::error::StoreError;
use crate::observe;
use crate::policy::OnStoreFailure;
use crate::redis::backend::RedisBackend;
use crate::redis::outage_log::is_outage;
use crate::request::DecisionRequest;
use crate::units::micros_ceil;

/// When to ask again while Redis is out. It is back by then, or it is not.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);

impl RedisBackend {
    /// What is held of limits that this replica has permits of.
    pub(crate) fn held(&self) -> &std::sync::Arc<PermitTable<PermitLease>> {
        self.holding.held()
    }

    /// Asks for permits of a request's only limit. What is allowed and not held is not guarded: the
    /// store is out, and the policy allows it.
    pub(crate) async fn enter(
        &self,
        asked: &ConcurrencyRequest<'_>,
        deadline: Duration,
    ) -> Result<(Decision, Option<PermitGuard<PermitLease>>), Rejection> {
        let (request, limit, terms) = (asked.request(), asked.limit(), asked.terms());
        let insured = request.on_store_failure() == OnStoreFailure::Local;
        let started = Instant::now();
        let error = match self.holding.enter(limit, terms, deadline).await {
            Ok(entered) => {
                observe::record_query(started, Some(Origin::Redis));
                if insured {
                    let now = self.clock.now();
                    self.replicas.keep_counting(now);
                }
                self.outage.decided(|| self.clock.now());
                return Ok(match entered {
                    AcquireOutcome::Admitted(held, standing) => (
                        decision_from_occupancy(request, &standing, terms, true),
                        Some(held),
                    ),
                    AcquireOutcome::Denied(standing) => {
                        (decision_from_occupancy(request, &standing, terms, false), None)
                    }
                });
            }
            Err(error) => error,
        };
        if !insured || !is_outage(error.kind()) {
            self.outage.answers(request, &error, self.clock.now());
            let answer = without_store(request, error, self.clock.now());
            observe::record_query(started, answer.as_ref().ok().map(Decision::origin));
            return Ok((answer?, None));
        }
        observe::store_failed(error.kind());
        self.outage
            .log_fallback(&error, self.replicas.count(), self.clock.now());
        let share = terms.max.div_ceil(u64::from(self.replicas.count().max(1)));
        let alone = self.holding.enter_alone(limit, terms, share);
        let alone = alone.inspect_err(|error| {
            observe::store_failed(error.kind());
            observe::record_query(started, None);
        })?;
        observe::record_query(started, Some(Origin::LocalFallback));
        let (held, number) = match alone {
            Ok(held) => (Some(held), self.holding.held().number(limit.identity)),
            Err(number) => (None, number),
        };
        let lease = u64::from(terms.lease_ms) * 1_000;
        let outcome = StepOutcome {
            fits: held.is_some(),
            remaining: share.saturating_sub(number),
            retry_after: if held.is_some() {
                0
            } else {
                micros_ceil(ASK_AGAIN_AFTER)
            },
            reset_after: lease,
            expires_after: lease,
            ..StepOutcome::default()
        };
        let mut decision = request.concurrency_decision(outcome, self.clock.now(), Origin::LocalFallback);
        tracing::debug!(error = %error.with_causes(), allowed = decision.is_allowed(), "decided by the local fallback");
        decision.store_error = Some(Box::new(error));
        Ok((decision, held))
    }

    /// Says what an enter would be told.
    pub(crate) async fn peek_held(
        &self,
        asked: &ConcurrencyRequest<'_>,
        deadline: Duration,
    ) -> Result<Decision, Rejection> {
        let (request, limit, terms) = (asked.request(), asked.limit(), asked.terms());
        match self.holding.peek(limit, deadline).await {
            Ok(standing) => {
                let fits = terms.cost == 0 || standing.held.saturating_add(terms.cost) <= terms.max;
                Ok(decision_from_occupancy(request, &standing, terms, fits))
            }
            Err(error) => without_store(request, error, self.clock.now()),
        }
    }

    /// Forgets who holds permits.
    pub(crate) async fn reset_held(&self, asked: &ConcurrencyRequest<'_>) -> Result<(), StoreError> {
        let deadline = asked.request().deadline();
        self.holding.reset(asked.limit(), deadline).await
    }
}

fn decision_from_occupancy(
    request: &DecisionRequest<'_>,
    standing: &Occupancy,
    terms: PermitTerms,
    fits: bool,
) -> Decision {
    let outcome = StepOutcome {
        fits,
        remaining: terms.max.saturating_sub(standing.held),
        retry_after: if fits { 0 } else { standing.first_ends.max(1) },
        // As in process; holders may have longer leases than this policy gives.
        reset_after: match standing.held {
            0 => 0,
            _ => standing.last_ends.max(u64::from(terms.lease_ms) * 1_000),
        },
        expires_after: standing.last_ends,
        ..StepOutcome::default()
    };
    request.concurrency_decision(outcome, standing.decided_at, Origin::Redis)
}
