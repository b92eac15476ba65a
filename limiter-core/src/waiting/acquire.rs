//! The wait of one call: its builder, its place in the queue, and the loop that drives it.
//!
//! A call that finds no waiter is decided at once. Otherwise it takes a place in the queue of its
//! limits; the waiter at the head queries the store for the queue, and a grant goes to the waiter
//! that is at the head when the reply arrives.
//!
//! Invariants: within a process, waiters of a limit are served in order of arrival; a cancelled
//! waiter loses no permit. Tests: `tests/waiting.rs`, `tests/contract/waiting.rs`,
//! `tests/contract/failed_waits.rs`.

use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tracing::Instrument;

use crate::algorithm::Mode;
use crate::decision::{Allowed, Decision, Rejection};
use crate::error::{StoreError, StoreErrorKind};
use crate::limiter::{Limiter, shut_down};
use crate::observe::{self, ReportedLimit};
use crate::policy::OnStoreFailure;
use crate::request::DecisionRequest;
use crate::request::owned::OwnedRequest;
use crate::settlement::{PendingGrant, Reservation};
use crate::support::real_time::{self, LATE_TIMER};
use crate::units::Timestamp;
use crate::wait_queue::backlog::BacklogScope;
use crate::wait_queue::{Ticket, TicketState};
use crate::waiting::backlog::BacklogEstimate;
use crate::waiting::pacing::PacingBudget;
use crate::waiting::wait_budget::{WaitBudget, no_permit_within};
use crate::waiting::wait_limit::WaitSlot;

impl Limiter {
    /// Waits until a request is granted.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a grant for a cancelled waiter goes to the next one or is refunded.
    pub(crate) async fn wait(
        &self,
        request: &DecisionRequest<'_>,
        budget: WaitBudget<'_>,
    ) -> Result<Allowed, Rejection> {
        let result = self.wait_uncounted(request, budget).await;
        let limits = request.policies_and_keys();
        let limits = limits.map(|(policy, key)| ReportedLimit::new(policy, key));
        observe::record_wait(self.inner.backend.usage(), limits, request.mode, &result);
        result
    }

    /// Waits without counting the result in the metrics, for calls that are counted elsewhere.
    pub(crate) async fn wait_uncounted(
        &self,
        request: &DecisionRequest<'_>,
        budget: WaitBudget<'_>,
    ) -> Result<Allowed, Rejection> {
        if request.is_free() {
            let decision = self.inner.backend.decide(request, request.deadline()).await;
            decision.and_then(Decision::require)
        } else {
            let _waiting = observe::WaitingGauge::begin();
            let mut closing = self.inner.closing.subscribe();
            let remaining_time = PacingBudget::from(&self.inner.clock, budget.timeout);
            let granted = async {
                let mut slot = WaitSlot::new(budget.wait_limit, || request.queue());
                let grant = self
                    .wait_in_queue(request, budget, remaining_time.ends, &mut slot)
                    .await?;
                if grant.delay().is_zero() {
                    return Ok(grant);
                }
                // The call has left the queue; it keeps its slot during the delay.
                let grant = Reservation::of_request(self, request, grant);
                self.wait_for_delay(grant, Some(remaining_time), slot).await
            };
            tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => Err(shut_down().into()),
                result = granted => result,
            }
        }
    }

    async fn wait_in_queue(
        &self,
        request: &DecisionRequest<'_>,
        budget: WaitBudget<'_>,
        ends: Timestamp,
        slot: &mut WaitSlot<'_>,
    ) -> Result<Allowed, Rejection> {
        let (clock, queues) = (&self.inner.clock, &self.inner.queues);
        let timeout = budget.timeout;
        let query_until = clock.now().after(budget.max_query_time);
        let timed_out = |denial| no_permit_within(timeout, denial);
        // Without waiters, a call that is decided at once needs no place in the queue.
        let queue_id = request.queue();
        if !queues.has_waiters(&queue_id) {
            if let Some(result) = self.inner.backend.try_decide(request) {
                match result?.require() {
                    Err(Rejection::Limited(_)) => {}
                    result => return result,
                }
            }
        }
        let mut call = WaitingCall {
            ticket: queues.join(queue_id, OwnedRequest::from_request(request))?,
            limiter: self,
            runtime: Handle::try_current().ok(),
        };
        let _queued = budget.mark_queued();
        let (mut last, mut stall) = (None, None);
        // The estimate found a permit for this call after those of all earlier waiters.
        let mut needs_no_slot = false;
        let mut is_estimated = !budget.rejects_early;
        // True for a permit that is due after the timeout of the call.
        let is_due_late = |denied: &Decision| {
            (denied.retry_after()).is_some_and(|after| clock.due(denied.decided_at(), after) > ends)
        };
        loop {
            let now = clock.now();
            match call.ticket.poll_state(queues, now) {
                TicketState::Resolved(result) => return result,
                TicketState::Queued if timeout.is_zero() => {
                    return Box::pin(self.check_behind(request, &call.ticket)).await;
                }
                TicketState::Queued => {
                    if !needs_no_slot && !slot.try_take() {
                        let time = self.remaining_time(query_until, timeout);
                        let estimate =
                            self.estimate_backlog(request, &call.ticket, BacklogScope::Earlier, time);
                        reject_without_slot(estimate.await, timed_out(None))?;
                        needs_no_slot = true;
                        continue;
                    }
                    if !is_estimated {
                        is_estimated = true;
                        let time = self.remaining_time(query_until, timeout);
                        let estimate =
                            self.estimate_backlog(request, &call.ticket, BacklogScope::Earlier, time);
                        if let Some(Ok(Some(denied))) = estimate.await {
                            if is_due_late(&denied) {
                                return Err(Rejection::Limited(denied));
                            }
                        }
                        continue;
                    }
                    let stall_check_at = now.after(call.ticket.stall_check_pause());
                    tokio::select! {
                        biased;
                        () = call.ticket.notified() => {}
                        () = slot.evicted() => {}
                        () = clock.sleep_until(ends.min(stall_check_at)) => {
                            if clock.now() >= ends {
                                let denied = self.denial_after_wait(request, &call.ticket).await;
                                // The grant may have arrived at the same time.
                                return match call.ticket.poll_state(queues, clock.now()) {
                                    TicketState::Resolved(result) => result,
                                    _ => Err(timed_out(denied)),
                                };
                            }
                            self.poll_for_stalled_first(&call.ticket, request, &mut stall).await;
                        }
                    }
                }
                TicketState::RetryAt(decision, times) => {
                    // Permits that are due too late may be refunded earlier; a block does not end
                    // early.
                    if now >= ends || decision.is_blocked() {
                        return Err(timed_out(Some(decision)));
                    }
                    if budget.rejects_early && times.permits > ends {
                        return Err(Rejection::Limited(decision));
                    }
                    if !needs_no_slot && !slot.try_take() {
                        if call.ticket.is_only_waiter(queues) {
                            return Err(Rejection::Limited(decision));
                        }
                        // Other calls took the slots during the store query.
                        let time = self.remaining_time(query_until, timeout);
                        let estimate = self.estimate_backlog(request, &call.ticket, BacklogScope::All, time);
                        reject_without_slot(estimate.await, timed_out(None))?;
                        needs_no_slot = true;
                        continue;
                    }
                    last = Some(decision);
                    tokio::select! {
                        biased;
                        () = call.ticket.notified() => {}
                        () = slot.evicted() => {}
                        () = clock.sleep_until(times.query.min(ends)) => {}
                    }
                }
                TicketState::MustQuery(refunds) => {
                    // The request under the policy of the newest waiter.
                    let request = call.ticket.request();
                    let request = request.request(Mode::Charge);
                    if let Some(result) = self.inner.backend.try_decide(&request) {
                        match result?.require() {
                            Err(Rejection::Limited(decision)) => {
                                let Some(times) = self.retry_times(&decision) else {
                                    return Err(timed_out(Some(decision)));
                                };
                                call.ticket.denied(queues, decision, times, refunds);
                                continue;
                            }
                            // Allowed, or failed because the store is unavailable for an unknown
                            // time.
                            result => return result,
                        }
                    }
                    self.poll_on_behalf_of(&call.ticket, &request);
                    continue;
                }
                TicketState::QueryPending(until) => {
                    // The timeout of the call may end before the query, which serves other waiters
                    // too. The query then continues, and its grants go to them.
                    let remaining_time = self.remaining_time(query_until, timeout);
                    let now = Instant::now();
                    let time = until.saturating_duration_since(now);
                    let notified = real_time::timeout(remaining_time.min(time), call.ticket.notified());
                    if notified.await.is_ok() || time < remaining_time {
                        continue;
                    }
                    if let TicketState::Resolved(result) = call.ticket.poll_state(queues, clock.now()) {
                        return result;
                    }
                    // A timeout of the caller is no store failure. Only the local fallback decides
                    // then, because its share errs in neither direction.
                    let fallback = match request.on_store_failure() {
                        OnStoreFailure::Local => {
                            self.inner
                                .backend
                                .decide_without_store(request, remaining_time, now)
                        }
                        _ => None,
                    };
                    return match fallback.map(|result| result.and_then(Decision::require)) {
                        None => Err(timed_out(last)),
                        Some(Err(Rejection::Limited(denied))) => Err(timed_out(Some(denied))),
                        Some(result) => result,
                    };
                }
            }
        }
    }

    /// Decides a call that does not wait although other calls are queued: it is denied unless
    /// permits remain after theirs.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the decision of Redis continues in a task, and its grant is refunded.
    async fn check_behind(
        &self,
        request: &DecisionRequest<'_>,
        ticket: &Ticket,
    ) -> Result<Allowed, Rejection> {
        let estimate = self.estimate_backlog(request, ticket, BacklogScope::Earlier, Duration::MAX);
        reject_without_slot(estimate.await, no_permit_within(Duration::ZERO, None))?;
        if let Some(result) = self.inner.backend.try_decide(request) {
            return result?.require();
        }
        // Shutdown waits for this receiver.
        let (limiter, open) = (self.clone(), self.inner.closing.subscribe());
        let request = OwnedRequest::from_request(request);
        let decided = async move {
            let request = request.request(Mode::Charge);
            let decision = limiter.inner.backend.decide(&request, request.deadline()).await;
            let grant = Reservation::of_request(&limiter, &request, decision?.require()?);
            Ok::<_, Rejection>((PendingGrant::new(grant), open))
        };
        // The output of a task without a receiver is dropped, which refunds the grant.
        let decided = tokio::spawn(decided.in_current_span()).await;
        let (mut grant, _open) = decided.unwrap_or_else(|_| {
            let detail = "the Tokio runtime of the request has ended";
            Err(StoreError::new(StoreErrorKind::Connection, detail).into())
        })?;
        // No other code takes the grant.
        grant.take().ok_or_else(|| shut_down().into())
    }

    /// Returns the denial for a call that timed out in the queue, if it can be determined within
    /// [`LATE_TIMER`]. Each timed-out call gets a `retry_after` behind the earlier waiters, so that
    /// they do not all retry at once.
    async fn denial_after_wait(
        &self,
        request: &DecisionRequest<'_>,
        ticket: &Ticket,
    ) -> Option<Box<Decision>> {
        let brief = self.inner.clock.real(LATE_TIMER);
        let estimate = self
            .estimate_backlog(request, ticket, BacklogScope::Earlier, brief)
            .await;
        estimate?.ok().flatten()
    }

    /// Returns the real time available for a store query. A timeout of zero is a check without a
    /// bound; a late timer leaves at least [`LATE_TIMER`].
    pub(crate) fn remaining_time(&self, ends: Timestamp, timeout: Duration) -> Duration {
        let clock = &self.inner.clock;
        if timeout.is_zero() {
            Duration::MAX
        } else {
            clock.real(ends.since(clock.now()).max(LATE_TIMER))
        }
    }
}

/// Returns the rejection of a call without a free slot, or `Ok` if the estimate found a permit
/// after those of the other waiters.
fn reject_without_slot(estimate: BacklogEstimate, timeout_rejection: Rejection) -> Result<(), Rejection> {
    match estimate {
        Some(Ok(None)) => Ok(()),
        Some(Ok(Some(denied))) => Err(Rejection::Limited(denied)),
        Some(Err(rejection)) => Err(rejection),
        None => Err(timeout_rejection),
    }
}

/// A queued call, which leaves the queue on drop.
struct WaitingCall<'a> {
    ticket: Ticket,
    limiter: &'a Limiter,
    /// The drop may happen outside of the runtime in which the call waits.
    runtime: Option<Handle>,
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        let unused = self.ticket.remove(&self.limiter.inner.queues);
        if let Some(unused) = unused {
            let request = self.ticket.request();
            self.limiter.refund_later(&request, unused, self.runtime.as_ref());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::waiting::acquire::*;

    #[tokio::test]
    async fn call_above_max_waiting_is_overloaded() {
        let policy = crate::Policy::token_bucket("p")
            .capacity(1)
            .rate(1)
            .build()
            .unwrap();
        let clock = crate::ManualClock::new();
        let limits = Limiter::in_process().clock(&clock).max_waiting(2).build();
        let mut first = limits.acquire(&policy, "a").cost(1).into_future();
        assert!(first.as_mut().await.is_ok());
        let mut waiting = [(); 2].map(|()| limits.acquire(&policy, "a").into_future());
        for wait in &mut waiting {
            assert!(tokio::time::timeout(Duration::ZERO, wait).await.is_err());
        }
        let estimate = limits.acquire(&policy, "b").cost(1).await;
        assert!(estimate.is_ok(), "a call that does not wait needs no slot");
        let estimate = limits.acquire(&policy, "b").await;
        let Err(Rejection::Unavailable { error, .. }) = estimate else {
            unreachable!("{estimate:?}")
        };
        assert_eq!(error.kind(), StoreErrorKind::Overloaded);
        drop(waiting);
        assert!(limits.acquire(&policy, "c").await.is_ok());
    }

    /// A refund concerns the limit; the penalty limit of the same request must not hide it from
    /// waiters.
    #[tokio::test]
    async fn waiter_under_penalty_is_woken_by_refund() {
        let policy = crate::Policy::token_bucket("p").capacity(2).rate("1/h");
        let policy = policy.penalty("1000 in 1m: 1h").build().unwrap();
        let clock = crate::ManualClock::new();
        let limits = Limiter::in_process().clock(&clock).build();
        let reservation = limits.reserve(&policy, "a").cost(2).await.unwrap();
        let remaining_time = Duration::from_secs(86_400);
        let mut waiting = limits.acquire(&policy, "a").timeout(remaining_time).into_future();
        assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err());
        reservation.settle(1).await.unwrap();
        let estimate = tokio::time::timeout(Duration::from_secs(30), waiting).await;
        assert!(estimate.is_ok_and(|estimate| estimate.is_ok()));
        for is_refund in [false, true] {
            let mut waiting = limits.acquire(&policy, "a").timeout(remaining_time).into_future();
            assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err());
            if is_refund {
                limits.refund(&policy, "a").await.unwrap();
            } else {
                limits.reset(&policy, "a").await.unwrap();
                assert!(limits.check(&policy, "a").await.unwrap().is_allowed());
            }
            let estimate = tokio::time::timeout(Duration::from_secs(30), waiting).await;
            assert!(estimate.is_ok_and(|estimate| estimate.is_ok()));
        }
    }
}
