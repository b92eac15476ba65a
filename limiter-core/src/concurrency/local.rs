//! Permits that are counted in this process, where that is what limits them.

use crate::algorithm::{Mode, StepOutcome};
use crate::concurrency::deadline::AcquireDeadline;
use crate::concurrency::permit::{ConcurrencyPermit, PermitBacking, permitted};
use crate::concurrency::request::ConcurrencyRequest;
use crate::decision::outage::without_store;
use crate::decision::{Decision, Origin, Rejection};
use crate::limiter::Limiter;
use crate::request::LimitRequest;

impl Limiter {
    /// Asks the store in this process, which needs no time.
    pub(crate) fn enter_here(&self, asked: &ConcurrencyRequest<'_>) -> Result<ConcurrencyPermit, Rejection> {
        let (identity, terms) = (asked.limit().identity, asked.terms());
        let counted = if terms.cost == 0 {
            let held = self.inner.holders.number(identity);
            Ok(Ok(held))
        } else {
            self.inner.holders.count(identity, terms.cost, terms.max)
        };
        let (stand, held) = match counted {
            Ok(Ok(held)) if terms.cost == 0 => (Some(PermitBacking::Nothing), held),
            Ok(Ok(held)) => (
                Some(PermitBacking::Here(self.inner.holders.held(identity, terms, ()))),
                held,
            ),
            Ok(Err(held)) => (None, held),
            Err(error) => {
                let decision = without_store(asked.request(), error, self.inner.clock.now())?;
                return permitted(decision, PermitBacking::Nothing);
            }
        };
        let decision = self.decision_here(asked, stand.is_some(), held);
        permitted(decision, stand.unwrap_or(PermitBacking::Nothing))
    }

    /// The decision in this process, with so many permits held after it.
    fn decision_here(&self, asked: &ConcurrencyRequest<'_>, fits: bool, held: u64) -> Decision {
        let terms = asked.terms();
        let lease = u64::from(terms.lease_ms) * 1_000;
        let reset_after = if held == 0 { 0 } else { lease };
        let outcome = StepOutcome {
            fits,
            remaining: terms.max.saturating_sub(held),
            retry_after: if fits { 0 } else { lease },
            reset_after,
            expires_after: reset_after,
            ..StepOutcome::default()
        };
        let now = self.inner.clock.now();
        asked.request().concurrency_decision(outcome, now, Origin::Memory)
    }

    /// The same, in this process, for a question that was not checked yet.
    pub(crate) fn peek_here(&self, ask: LimitRequest<'_>) -> Result<Decision, Rejection> {
        Ok(self.peek_local(&ConcurrencyRequest::new(ask, Mode::Peek)?))
    }

    pub(crate) fn peek_local(&self, asked: &ConcurrencyRequest<'_>) -> Decision {
        let (held, terms) = (self.inner.holders.number(asked.limit().identity), asked.terms());
        let fits = terms.cost == 0 || held.saturating_add(terms.cost) <= terms.max;
        self.decision_here(asked, fits, held)
    }

    /// Waits in process.
    pub(crate) async fn wait_here(
        &self,
        asked: &ConcurrencyRequest<'_>,
        wait: &AcquireDeadline<'_>,
    ) -> Result<ConcurrencyPermit, Rejection> {
        let (holders, identity) = (&self.inner.holders, asked.limit().identity);
        let waiter = holders.join(identity, asked.terms())?;
        loop {
            if let Some(held) = waiter.passed() {
                let decision = self.decision_here(asked, true, holders.number(identity));
                return permitted(decision, PermitBacking::Here(held));
            }
            if waiter.query_requested() {
                match self.enter_here(&asked.under(waiter.wanted())?) {
                    Err(Rejection::Limited(_)) => {}
                    answer => return answer,
                }
            }
            tokio::select! {
                biased;
                () = waiter.notified() => {}
                () = wait.is_over() => {
                    // As it is now: it may never have been its turn, and what there is belongs to
                    // those before it.
                    let asked = asked.under(waiter.wanted())?;
                    let denied = self.decision_here(&asked, false, holders.number(identity));
                    return Err(wait.timed_out(Some(Box::new(denied))));
                }
            }
        }
    }
}
