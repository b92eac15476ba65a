//! Waiting for permits that Redis counts, without a query of Redis by each waiter.
//!
//! The waiters of this process queue in its permit table, in order of arrival, and only the first
//! one queries Redis: after a pause that doubles, when the first lease ends, or when this process
//! releases a permit. The permit table can also hand a released permit to the first waiter without
//! a query.
//!
//! Tests: `tests/contract/concurrency.rs`, `tests/concurrency.rs`.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::algorithm::StepOutcome;
use crate::decision::{Decision, Origin, Rejection};
use crate::memory::permit_table::PermitGuard;
use crate::permits::acquire_deadline::AcquireDeadline;
use crate::permits::permit::{ConcurrencyPermit, PermitBacking, into_permit};
use crate::permits::request::ConcurrencyRequest;
use crate::redis::RedisBackend;
use crate::redis::permit_leases::PermitLease;
use crate::support::jitter::with_jitter;
use crate::support::real_time::{self, LATE_TIMER};
use crate::units::Timestamp;

/// Pauses between queries of the first waiter: the pause doubles from the first to the last value,
/// plus up to a quarter of jitter. A waiter queries sooner when the first lease ends or when this
/// process releases a permit.
const PAUSES: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_millis(160);

impl RedisBackend {
    /// Acquires permits after the calls of this process that wait already. Only the first waiter of
    /// the process queries Redis.
    pub(crate) async fn acquire_in_turn(
        &self,
        request: &ConcurrencyRequest<'_>,
        wait: &AcquireDeadline<'_>,
    ) -> Result<ConcurrencyPermit, Rejection> {
        let waiter = self
            .permit_table()
            .join(request.limit().identity, request.terms())?;
        let (mut retry_pause, mut last, mut rejection) = (*PAUSES.start(), None, None);
        let mut must_query = waiter.query_requested();
        loop {
            // Permits that were transferred during a query take precedence over its rejection.
            if let Some(held) = waiter.take_permits() {
                return into_permit(
                    transferred_decision(request, &held, last.as_deref(), wait.clock.now()),
                    PermitBacking::Leased(held),
                );
            }
            if let Some(rejection) = rejection {
                return Err(rejection);
            }
            if must_query {
                let request = request.under(waiter.wanted())?;
                match acquire_with_deadline(self, &request, wait, last.take()).await {
                    Ok(permit) => return Ok(permit),
                    Err(Rejection::Limited(denial)) => last = Some(denial),
                    Err(other) => rejection = Some(other),
                }
                must_query = false;
                continue;
            }
            let remaining = wait.remaining();
            if remaining.is_zero() {
                // A waiter that never became first has no reply of Redis.
                let denial = last.unwrap_or_else(|| Box::new(queued_decision(request, wait.clock.now())));
                return Err(wait.timed_out(Some(denial)));
            }
            let until_query = if waiter.is_head() {
                let first_lease_ends = last.as_ref().and_then(|denial| denial.first_lease_ends_after());
                with_jitter(retry_pause)
                    .min(first_lease_ends.unwrap_or(remaining))
                    .min(remaining)
            } else {
                remaining
            };
            tokio::select! {
                biased;
                () = waiter.notified() => must_query = waiter.query_requested(),
                () = wait.clock.sleep(wait.clock.now(), until_query) => {
                    must_query = waiter.is_head();
                    retry_pause = (retry_pause * 2).min(*PAUSES.end());
                }
            }
        }
    }
}

/// Decision for a call that timed out behind other waiters of this process. Earlier waiters are
/// assumed to take all permits.
fn queued_decision(request: &ConcurrencyRequest<'_>, now: Timestamp) -> Decision {
    let lease = u64::from(request.terms().lease_ms) * 1_000;
    let outcome = StepOutcome {
        fits: false,
        retry_after: lease,
        reset_after: lease,
        expires_after: lease,
        ..StepOutcome::default()
    };
    request
        .decision_request()
        .concurrency_decision(outcome, now, Origin::Lease)
}

/// Decision for permits that were transferred from another holder of this process.
fn transferred_decision(
    request: &ConcurrencyRequest<'_>,
    held: &PermitGuard<PermitLease>,
    last: Option<&Decision>,
    now: Timestamp,
) -> Decision {
    let lease = u64::from(held.terms().lease_ms) * 1_000;
    let outcome = StepOutcome {
        fits: true,
        remaining: last.map_or(0, Decision::remaining),
        retry_after: 0,
        reset_after: lease,
        expires_after: lease,
        ..StepOutcome::default()
    };
    let origin = match held.payload() {
        Some(lease) if lease.is_local_fallback() => Origin::LocalFallback,
        _ => Origin::Lease,
    };
    request
        .decision_request()
        .concurrency_decision(outcome, now, origin)
}

/// Queries Redis once. The caller's timeout may end before the store deadline, which is no store
/// failure: the local share decides only if the store itself failed, because Redis may just have
/// denied the call.
async fn acquire_with_deadline(
    redis: &RedisBackend,
    request: &ConcurrencyRequest<'_>,
    wait: &AcquireDeadline<'_>,
    last: Option<Box<Decision>>,
) -> Result<ConcurrencyPermit, Rejection> {
    let decision_request = request.decision_request();
    let timeout = wait.clock.real(wait.remaining().max(LATE_TIMER));
    // Permits that Redis admits for an abandoned query are released in the background.
    let result = redis.acquire(request, decision_request.deadline());
    match real_time::timeout(timeout, result).await {
        Ok(result) => result,
        Err(_) => Err(wait.timed_out(last)),
    }
}
