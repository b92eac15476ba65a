//! Concurrency limits that are counted in this process.

use crate::algorithm::{Mode, StepOutcome};
use crate::concurrency::deadline::AcquireDeadline;
use crate::concurrency::permit::{ConcurrencyPermit, PermitBacking, into_permit};
use crate::concurrency::request::ConcurrencyRequest;
use crate::decision::outage::without_store;
use crate::decision::{Decision, Origin, Rejection};
use crate::limiter::Limiter;
use crate::request::LimitRequest;

impl Limiter {
    /// Acquires a permit from the table of this process, without waiting.
    pub(crate) fn try_acquire_local(
        &self,
        request: &ConcurrencyRequest<'_>,
    ) -> Result<ConcurrencyPermit, Rejection> {
        self.expire_detached();
        let (identity, terms) = (request.limit().identity, request.terms());
        let counted = if terms.cost == 0 {
            let held = self.inner.holders.count_held(identity);
            Ok(Ok(held))
        } else {
            self.inner.holders.try_count(identity, terms.cost, terms.max)
        };
        let (backing, held) = match counted {
            Ok(Ok(held)) if terms.cost == 0 => (Some(PermitBacking::Nothing), held),
            Ok(Ok(held)) => (
                Some(PermitBacking::Local(self.inner.holders.guard(
                    identity,
                    terms,
                    (),
                ))),
                held,
            ),
            Ok(Err(held)) => (None, held),
            Err(error) => {
                let decision = without_store(request.decision_request(), error, self.inner.clock.now())?;
                return into_permit(decision, PermitBacking::Nothing);
            }
        };
        let decision = self.local_decision(request, backing.is_some(), held);
        into_permit(decision, backing.unwrap_or(PermitBacking::Nothing))
    }

    /// Builds the decision for `held` permits in this process.
    fn local_decision(&self, request: &ConcurrencyRequest<'_>, fits: bool, held: u64) -> Decision {
        let terms = request.terms();
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
        request
            .decision_request()
            .concurrency_decision(outcome, now, Origin::Memory)
    }

    /// Returns the decision for a request without acquiring permits.
    pub(crate) fn peek_local_request(&self, request: LimitRequest<'_>) -> Result<Decision, Rejection> {
        Ok(self.peek_local(&ConcurrencyRequest::new(request, Mode::Peek)?))
    }

    pub(crate) fn peek_local(&self, request: &ConcurrencyRequest<'_>) -> Decision {
        self.expire_detached();
        let (held, terms) = (
            self.inner.holders.count_held(request.limit().identity),
            request.terms(),
        );
        let fits = terms.cost == 0 || held.saturating_add(terms.cost) <= terms.max;
        self.local_decision(request, fits, held)
    }

    /// Waits in the queue of this process.
    pub(crate) async fn wait_local(
        &self,
        request: &ConcurrencyRequest<'_>,
        wait: &AcquireDeadline<'_>,
    ) -> Result<ConcurrencyPermit, Rejection> {
        let (holders, identity) = (&self.inner.holders, request.limit().identity);
        let waiter = holders.join(identity, request.terms())?;
        loop {
            if let Some(held) = waiter.take_permits() {
                let decision = self.local_decision(request, true, holders.count_held(identity));
                return into_permit(decision, PermitBacking::Local(held));
            }
            if waiter.query_requested() {
                match self.try_acquire_local(&request.under(waiter.wanted())?) {
                    Err(Rejection::Limited(_)) => {}
                    result => return result,
                }
            }
            tokio::select! {
                biased;
                () = waiter.notified() => {}
                () = self.detached_expires() => self.expire_detached(),
                () = wait.expired() => {
                    // The current occupancy: this waiter may never have been first, and the free
                    // permits belong to earlier waiters.
                    let request = request.under(waiter.wanted())?;
                    let denial = self.local_decision(&request, false, holders.count_held(identity));
                    return Err(wait.timed_out(Some(Box::new(denial))));
                }
            }
        }
    }
}
