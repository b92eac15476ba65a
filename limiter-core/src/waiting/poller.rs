//! Store queries on behalf of a queue, and refunds of grants that no waiter takes.
//!
//! A query runs in a task of the runtime of the waiter that started it, so a waiter that is
//! cancelled meanwhile loses no charge: the grants go to the next waiter or are refunded. If the
//! runtime ends or stalls first, the reply is unknown and the charge is lost.
//!
//! Tests: `tests/waiting.rs` (`late_grant_goes_to_next_waiter`, `unused_grants_are_refunded`,
//! `ended_runtime_blocks_no_other`).

use std::time::{Duration, Instant};

use smallvec::smallvec;
use tokio::runtime::Handle;
use tracing::Instrument;

use crate::algorithm::{Mode, UsageCorrection};
use crate::decision::{Allowed, Decision, Origin};
use crate::limiter::Limiter;
use crate::request::DecisionRequest;
use crate::request::owned::OwnedRequest;
use crate::settlement::Reservation;
use crate::support::jitter::with_jitter;
use crate::units::Amount;
use crate::wait_queue::RetryTimes;
pub(crate) use crate::wait_queue::{PendingQuery, QueueId, StallWatch, Ticket};

/// A query without a reply this long after its deadlines is considered lost, and the queue
/// continues without it.
const GRACE: Duration = Duration::from_secs(1);

/// Maximum pause of the first waiter after a denial, plus up to a quarter of jitter: at least as
/// long as the deny cache keeps a denial.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);

const NO_LIMIT: Duration = Duration::from_secs(86_400);

/// Returns the time at which a query that starts now is considered lost.
fn lost_at(request: &DecisionRequest<'_>) -> Instant {
    // The query itself, the refunds of its grants (one per limit), and a margin for a busy machine.
    let returns = request.limits.iter().map(|limit| limit.policy.deadline());
    let longest = returns.fold(request.deadline().saturating_add(GRACE), Duration::saturating_add);
    let now = Instant::now();
    now.checked_add(longest).unwrap_or(now + NO_LIMIT)
}

impl Limiter {
    /// Starts a store query for the first waiter and the waiters behind it with the same request.
    /// The policies' deadline applies, because the query serves more than one waiter.
    pub(crate) fn poll_on_behalf_of(&self, ticket: &Ticket, request: &DecisionRequest<'_>) {
        let query = ticket.begin_query(&self.inner.queues, lost_at(request));
        self.spawn_query(query, request.deadline());
    }

    /// Returns the times that follow from a denial that was just received. The next query is when
    /// permits are due, or earlier at regular intervals, because permits may return in another
    /// process or the store may lose its state. `None` if the time at which permits are due is
    /// unknown.
    pub(crate) fn retry_times(&self, denial: &Decision) -> Option<RetryTimes> {
        let clock = &self.inner.clock;
        let permits = clock.due(denial.decided_at(), denial.retry_after()?);
        let query = permits.min(clock.now().after(with_jitter(MAX_RETRY_PAUSE)));
        Some(RetryTimes { permits, query })
    }

    /// Called by a waiter that is not first: polls the store on behalf of the first waiter if the
    /// first waiter is not being polled.
    pub(crate) async fn poll_for_stalled_first(
        &self,
        ticket: &Ticket,
        request: &DecisionRequest<'_>,
        stall: &mut Option<StallWatch>,
    ) {
        let (clock, queues) = (&self.inner.clock, &self.inner.queues);
        if !ticket.is_stalled(queues, clock.now(), stall) {
            return;
        }
        // Waiters that were notified at this moment are polled first.
        tokio::task::yield_now().await;
        if let Some(query) = ticket.begin_query_for_first(queues, clock.now(), *stall, lost_at(request)) {
            tracing::debug!("first waiter is not polled; the next waiter queries the store");
            self.spawn_query(query, request.deadline());
        }
    }

    fn spawn_query(&self, query: PendingQuery, deadline: Duration) {
        // Shutdown waits for this receiver.
        let (limiter, open) = (self.clone(), self.inner.closing.subscribe());
        let task = async move {
            limiter.execute(query, deadline).await;
            drop(open);
        };
        tokio::spawn(task.in_current_span());
    }

    async fn execute(&self, query: PendingQuery, deadline: Duration) {
        let request = query.requested.request(Mode::Charge);
        let results = self
            .inner
            .backend
            .decide_repeatedly(&request, query.repetitions, deadline)
            .await;
        let at_once = RetryTimes::when_due(self.inner.clock.now());
        let unused = query.hand_out(results, |denial| self.retry_times(denial).unwrap_or(at_once));
        // Before the queue continues: its first waiter may be waiting for the refunded permits.
        self.refund_unused(&query.requested, query.id(), &unused).await;
    }

    /// Refunds a grant of a cancelled waiter: at once in process, with Redis in the background. The
    /// waiter may have kept it for long, so usage that came back by itself is not refunded again.
    pub(crate) fn refund_later(&self, request: &OwnedRequest, unused: Allowed, runtime: Option<&Handle>) {
        let request = request.request(Mode::Charge);
        let grant = Reservation::of_request(self, &request, unused);
        let nothing = smallvec![Amount::ZERO; grant.len()];
        // If the runtime is ending, the charge is lost. No caller needs the result.
        let _ = grant.settle_in_background(runtime, nothing, |_, _| ());
    }

    async fn refund_unused(&self, request: &OwnedRequest, name: &QueueId, unused: &[Allowed]) {
        if unused.is_empty() {
            return;
        }
        let _notifier = self.inner.queues.refund_notifier(name);
        let refund = UsageCorrection::Refund { whole_at: 0 };
        // A grant by the local fallback was charged to this replica's share and not to the store.
        let is_local = |grant: &&Allowed| grant.origin() == Origin::LocalFallback;
        for _ in unused.iter().filter(is_local) {
            for request in request.per_limit(1) {
                // The waiter is gone, so no caller needs the result.
                let _ = self.inner.backend.change_share(&request, refund);
            }
        }
        let is_charged =
            |grant: &&Allowed| matches!(grant.origin(), Origin::Redis | Origin::Lease | Origin::Memory);
        for grant in unused {
            for request in request.per_limit(1) {
                let cost = request.limits.first().map_or(0, |limit| limit.cost);
                self.inner.backend.correct_share(&request, refund, (grant, cost));
            }
        }
        let charged = unused.iter().filter(is_charged).count();
        if charged == 0 {
            return;
        }
        for request in request.per_limit(charged) {
            // The waiter is gone, so no caller needs the result.
            let _ = self.apply_change(&request, refund).await;
        }
    }
}
