//! A question that is asked on behalf of those who wait, and what becomes of grants that nobody takes.
//!
//! It goes on in a task of the runtime of whoever had it asked, so that one who gives up meanwhile loses nothing that was
//! charged: what comes goes to the next, or back. Where that runtime ends first the answer is not known, and counts as spent.

use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tracing::Instrument;

use super::queue::{Asking, Name, Place};
use super::wanted::Wanted;
use super::{Backend, Limiter};
use crate::algorithm::{Change, Mode};
use crate::decision::{Allowed, Decision, Origin, Rejection};
use crate::request::Request;
use crate::store::Store;

/// The answers to a question that was asked so many times in a row.
pub(crate) type Decisions = SmallVec<[Result<Decision, Rejection>; 1]>;

impl Limiter {
    /// Has the store asked on behalf of a waiter that is first in its line, and of those behind it.
    pub(super) fn ask_for(&self, place: &Place, deadline: Duration) {
        // Whoever shuts the limiter down waits for it, too.
        let (limiter, open) = (self.clone(), self.inner.closing.subscribe());
        let asking = place.ask(&self.inner.queues);
        let round = async move {
            limiter.run(asking, deadline).await;
            drop(open);
        };
        tokio::spawn(round.in_current_span());
    }

    async fn run(&self, asking: Asking, deadline: Duration) {
        let request = asking.wanted.request(Mode::Charge);
        let answers = self.decide_run(&request, asking.times, deadline).await;
        let clock = &self.inner.clock;
        let untaken = asking.hand_out(answers, |denied| {
            clock.due(denied.decided_at(), denied.retry_after().unwrap_or_default())
        });
        // Before the line goes on: what comes back may be what its first waits for.
        self.return_untaken(&asking.wanted, asking.name(), &untaken).await;
    }

    /// The answers to a request that is asked so many times in a row: all of them, or the first ones.
    async fn decide_run(&self, request: &Request<'_>, times: usize, deadline: Duration) -> Decisions {
        #[cfg(feature = "redis")]
        if times > 1
            && let Backend::Redis(guard) = &self.inner.backend
        {
            return guard.decide_run(request, times, deadline).await;
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
    pub(super) fn return_later(&self, wanted: Wanted, untaken: Allowed, runtime: &Handle) {
        // In a runtime that is ending it is spent.
        let (limiter, open) = (self.clone(), self.inner.closing.subscribe());
        runtime.spawn(async move {
            limiter.return_untaken(&wanted, &wanted.queue(), &[untaken]).await;
            drop(open);
        });
    }

    async fn return_untaken(&self, wanted: &Wanted, name: &Name, untaken: &[Allowed]) {
        // What was allowed in place of the store was not charged there.
        let is_charged =
            |grant: &&Allowed| matches!(grant.origin(), Origin::Redis | Origin::Lease | Origin::Memory);
        let charged = untaken.iter().filter(is_charged).count();
        if charged == 0 {
            return;
        }
        for request in wanted.each(charged) {
            // Whether or not it was heard, nobody is there to be told.
            let _ = self.change(&request, Change::Refund { whole_at: 0 }).await;
        }
        self.inner.queues.came_back(name);
    }

    /// Gives back what the only limit of a request costs, or charges it whatever is left.
    pub(super) async fn change(&self, request: &Request<'_>, change: Change) -> Result<(), Rejection> {
        match &self.inner.backend {
            Backend::Memory(store) => {
                for limit in &request.limits {
                    store.change(limit, change).await?;
                }
            }
            #[cfg(feature = "redis")]
            Backend::Redis(guard) => guard.change(request, change).await?,
        }
        Ok(())
    }
}
