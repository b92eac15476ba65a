//! A question that is asked on behalf of those who wait, and what becomes of grants that nobody
//! takes.
//!
//! It goes on in a task of the runtime of whoever had it asked, so that one who gives up meanwhile
//! loses nothing that was charged: what comes goes to the next, or back. Where that runtime ends
//! first, or stands still, the answer is not known, and counts as spent.

use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tracing::Instrument;

use crate::algorithm::{Change, Mode};
use crate::decision::{Allowed, Decision, Decisions, Origin, Rejection};
use crate::limiter::{Backend, Limiter};
use crate::request::DecisionRequest;
use crate::request::owned::OwnedRequest;
#[cfg(feature = "redis")]
use crate::support::deadline::no_answer_within;
use crate::support::jitter::varied;
use crate::units::Timestamp;
pub(crate) use crate::waiting::queue::{PendingQuery, QueueId, StallWatch, Ticket};

/// After its deadlines a question that is not heard of is lost, and the line goes on without it.
const GRACE: Duration = Duration::from_secs(1);

/// For so long who is first believes a denial, and up to a quarter longer: no less than the denial
/// is remembered for all others.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

const FOR_EVER: Duration = Duration::from_secs(86_400);

/// When a question that begins now counts as lost.
fn lost_at(request: &DecisionRequest<'_>) -> Instant {
    // The question, what gives its grants back, limit by limit, and a little for a busy machine.
    let returns = request.limits.iter().map(|limit| limit.policy.deadline());
    let longest = returns.fold(request.deadline().saturating_add(GRACE), Duration::saturating_add);
    let now = Instant::now();
    now.checked_add(longest).unwrap_or(now + FOR_EVER)
}

impl Limiter {
    /// Has the store asked on behalf of a waiter that is first in its line, and of those behind it:
    /// by the policies' deadline, since it is not for that one alone.
    pub(crate) fn poll_on_behalf_of(&self, place: &Ticket, request: &DecisionRequest<'_>) {
        let asking = place.begin_query(&self.inner.queues, lost_at(request));
        self.go_and_ask(asking, request.deadline());
    }

    /// When who is first asks again after a denial: when permits are due, and every now and then
    /// before, since they may come back in another process, or be forgotten by the store. `None`
    /// where nobody knows when they are due.
    pub(crate) fn asks_again_at(&self, denied: &Decision) -> Option<Timestamp> {
        let clock = &self.inner.clock;
        let due = clock.due(denied.decided_at(), denied.retry_after()?);
        Some(due.min(clock.now().after(varied(LOOK_AGAIN_AFTER))))
    }

    /// The same by one that is behind, where who is first seems not to be polled.
    pub(crate) async fn go_on_for(
        &self,
        place: &Ticket,
        request: &DecisionRequest<'_>,
        seen: &mut Option<StallWatch>,
    ) {
        let (clock, queues) = (&self.inner.clock, &self.inner.queues);
        if !place.is_stalled(queues, clock.now(), seen) {
            return;
        }
        // Those who were called at this moment are polled first.
        tokio::task::yield_now().await;
        if let Some(asking) = place.begin_query_for_first(queues, clock.now(), *seen, lost_at(request)) {
            tracing::debug!("first waiter is not polled; the next waiter queries the store");
            self.go_and_ask(asking, request.deadline());
        }
    }

    fn go_and_ask(&self, asking: PendingQuery, deadline: Duration) {
        // Whoever shuts the limiter down waits for it, too.
        let (limiter, open) = (self.clone(), self.inner.closing.subscribe());
        let round = async move {
            limiter.execute(asking, deadline).await;
            drop(open);
        };
        tokio::spawn(round.in_current_span());
    }

    /// The answer to one whose time was over `patience` after `started`, before that of the
    /// question that is asked for its whole line: its share decides, where there is one.
    #[cfg_attr(
        not(feature = "redis"),
        expect(unused_variables, reason = "a store in this process answers at once")
    )]
    pub(crate) fn decide_alone(
        &self,
        request: &DecisionRequest<'_>,
        patience: Duration,
        started: Instant,
    ) -> Option<Result<Decision, Rejection>> {
        match &self.inner.backend {
            Backend::Memory(_) => None,
            #[cfg(feature = "redis")]
            Backend::Redis(guard) => Some(guard.decide_without(request, no_answer_within(patience), started)),
        }
    }

    async fn execute(&self, asking: PendingQuery, deadline: Duration) {
        let request = asking.wanted.request(Mode::Charge);
        let answers = self.decide_run(&request, asking.times, deadline).await;
        let now = self.inner.clock.now();
        let untaken = asking.hand_out(answers, |denied| self.asks_again_at(denied).unwrap_or(now));
        // Before the line goes on: what comes back may be what its first waits for.
        self.return_untaken(&asking.wanted, asking.name(), &untaken).await;
    }

    /// The answers to a request that is asked so many times in a row: all of them, or the first
    /// ones.
    async fn decide_run(&self, request: &DecisionRequest<'_>, times: usize, deadline: Duration) -> Decisions {
        #[cfg(feature = "redis")]
        if times > 1 {
            if let Backend::Redis(guard) = &self.inner.backend {
                return guard.decide_run(request, times, deadline).await;
            }
        }
        let mut answers = Decisions::new();
        for _ in 0..times {
            let answer = self.decide(request, deadline).await;
            let is_last = !answer.as_ref().is_ok_and(Decision::is_allowed);
            answers.push(answer);
            if is_last {
                break;
            }
        }
        answers
    }

    /// Gives a grant back whose waiter is gone, in the background.
    pub(crate) fn return_later(&self, wanted: OwnedRequest, untaken: Allowed, runtime: &Handle) {
        // In a runtime that is ending it is spent.
        let (limiter, open) = (self.clone(), self.inner.closing.subscribe());
        runtime.spawn(async move {
            limiter.return_untaken(&wanted, &wanted.queue(), &[untaken]).await;
            drop(open);
        });
    }

    async fn return_untaken(&self, wanted: &OwnedRequest, name: &QueueId, untaken: &[Allowed]) {
        if untaken.is_empty() {
            return;
        }
        let _coming_back = self.inner.queues.coming_back(name);
        // What was allowed in place of the store was not charged there, but to this replica's
        // share.
        #[cfg(feature = "redis")]
        if let Backend::Redis(guard) = &self.inner.backend {
            let insured = |grant: &&Allowed| grant.origin() == Origin::LocalFallback;
            for _ in untaken.iter().filter(insured) {
                for request in wanted.each(1) {
                    // Nobody is there to be told.
                    let _ = guard.change_share(&request, Change::Refund { whole_at: 0 });
                }
            }
        }
        let is_charged =
            |grant: &&Allowed| matches!(grant.origin(), Origin::Redis | Origin::Lease | Origin::Memory);
        let charged = untaken.iter().filter(is_charged).count();
        if charged == 0 {
            return;
        }
        for request in wanted.each(charged) {
            // Whether or not it was heard, nobody is there to be told.
            let _ = self.apply_change(&request, Change::Refund { whole_at: 0 }).await;
        }
    }
}
