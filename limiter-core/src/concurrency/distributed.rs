//! Permits that Redis counts, and who waits for them.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::algorithm::StepOutcome;
use crate::concurrency::deadline::AcquireDeadline;
use crate::concurrency::leases::PermitLease;
use crate::concurrency::permit::{ConcurrencyPermit, PermitBacking, permitted};
use crate::concurrency::request::ConcurrencyRequest;
use crate::concurrency::table::PermitGuard;
use crate::decision::{Decision, Origin, Rejection};
use crate::support::jitter::varied;
use crate::support::real_time;
use crate::tier::RedisBackend;
use crate::units::Timestamp;
use crate::waiting::LATE_TIMER;

/// Who is next for permits in Redis asks again after a pause that doubles from the first to the
/// last of these, longer by up to a quarter; sooner when the first lease ends, and when a permit is
/// given back here.
const PAUSES: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_millis(160);

/// Waits for permits in Redis. Only who is first asks.
pub(crate) async fn wait_there(
    guard: &RedisBackend,
    asked: &ConcurrencyRequest<'_>,
    wait: &AcquireDeadline<'_>,
) -> Result<ConcurrencyPermit, Rejection> {
    let waiter = guard.held().join(asked.limit().identity, asked.terms())?;
    let (mut pause, mut last) = (*PAUSES.start(), None);
    let mut asks = waiter.query_requested();
    loop {
        if asks {
            let asked = asked.under(waiter.wanted())?;
            last = match acquire_with_deadline(guard, &asked, wait, last).await {
                Err(Rejection::Limited(denied)) => Some(denied),
                answer => return answer,
            };
        }
        let left = wait.remaining();
        if left.is_zero() {
            // One whose turn it never was has heard nothing of Redis.
            let denied = last.unwrap_or_else(|| Box::new(behind_others(asked, wait.clock.now())));
            return Err(wait.timed_out(Some(denied)));
        }
        let until_asked = if waiter.is_first() {
            let first_lease_ends = last.as_ref().and_then(|denied| denied.first_lease_ends_after());
            varied(pause).min(first_lease_ends.unwrap_or(left)).min(left)
        } else {
            left
        };
        tokio::select! {
            biased;
            () = waiter.notified() => asks = waiter.query_requested(),
            () = wait.clock.sleep(wait.clock.now(), until_asked) => {
                asks = waiter.is_first();
                pause = (pause * 2).min(*PAUSES.end());
            }
        }
        if let Some(held) = waiter.passed() {
            return permitted(
                handed_on(asked, &held, last.as_deref(), wait.clock.now()),
                PermitBacking::Leased(held),
            );
        }
    }
}

/// The decision about a call that others of this process come before: for all that it knows, these
/// take what there is.
fn behind_others(asked: &ConcurrencyRequest<'_>, now: Timestamp) -> Decision {
    let lease = u64::from(asked.terms().lease_ms) * 1_000;
    let outcome = StepOutcome {
        fits: false,
        retry_after: lease,
        reset_after: lease,
        expires_after: lease,
        ..StepOutcome::default()
    };
    asked.request().concurrency_decision(outcome, now, Origin::Lease)
}

/// The decision about permits that another holder of this process has had before.
fn handed_on(
    asked: &ConcurrencyRequest<'_>,
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
    let origin = match held.carried() {
        Some(lease) if lease.is_insured() => Origin::LocalFallback,
        _ => Origin::Lease,
    };
    asked.request().concurrency_decision(outcome, now, origin)
}

/// Asks once. The caller's time may end before the store's deadline does, which is no failure of
/// the store: this replica's share decides only where the store has none, since the store may have
/// said a moment ago that there is no room.
async fn acquire_with_deadline(
    guard: &RedisBackend,
    asked: &ConcurrencyRequest<'_>,
    wait: &AcquireDeadline<'_>,
    last: Option<Box<Decision>>,
) -> Result<ConcurrencyPermit, Rejection> {
    let request = asked.request();
    let patience = wait.clock.real(wait.remaining().max(LATE_TIMER));
    // What is admitted for a question that was given up goes back in the background.
    let answer = guard.enter(asked, request.deadline());
    let Ok(answer) = real_time::timeout(patience, answer).await else {
        return Err(wait.timed_out(last));
    };
    let (decision, held) = answer?;
    permitted(
        decision,
        held.map_or(PermitBacking::Nothing, PermitBacking::Leased),
    )
}
