//! The future of a check.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::{fmt, mem};

use crate::check::{Check, PendingDecision, PolicyRef};
use crate::concurrency::request::ConcurrencyRequest;
use crate::decision::{Decision, Rejection};
use crate::enforcement::EnforcementPlan;
use crate::observe;
use crate::policy::Policy;
use crate::request::LimitCharge;

impl<'a, P: PolicyRef + 'a> IntoFuture for Check<'a, P> {
    type Output = Result<Decision, Rejection>;
    type IntoFuture = CheckFuture<'a, P>;

    #[inline]
    fn into_future(self) -> CheckFuture<'a, P> {
        CheckFuture {
            check: self,
            progress: CheckProgress::Unasked,
        }
    }
}

/// The future of a [`Check`]. In process it is ready at the first poll, without an allocation.
#[must_use = "futures do nothing unless polled"]
pub struct CheckFuture<'a, P = &'a Policy> {
    check: Check<'a, P>,
    progress: CheckProgress<'a>,
}

enum CheckProgress<'a> {
    Unasked,
    Asked(PendingDecision<'a>),
    Answered,
}

impl<'a, P: PolicyRef + 'a> Future for CheckFuture<'a, P> {
    type Output = Result<Decision, Rejection>;

    /// The check is read where it is, and the decision is written where the caller wants it: moving
    /// either takes longer than deciding.
    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let CheckProgress::Unasked = this.progress {
            if let Some(check) = P::without_lookup(&this.check) {
                if !check.is_tried && check.is_plain() {
                    let undecided = Cell::new(None);
                    if check.limiter.is_in_process() {
                        this.progress = CheckProgress::Answered;
                        return check.try_decide_plain(&undecided);
                    }
                    let answer = check.try_decide_plain(&undecided);
                    if answer.is_ready() {
                        this.progress = CheckProgress::Answered;
                        return answer;
                    }
                    this.check.is_tried = true;
                    return this.poll_pending(context, undecided.get());
                }
            }
        }
        this.poll_pending(context, None)
    }
}

impl<'a, P: PolicyRef + 'a> CheckFuture<'a, P> {
    /// Polls the query to the store. `charge` is the identity and the cost of the only limit, if
    /// they are known.
    fn poll_pending(
        &mut self,
        context: &mut Context<'_>,
        charge: Option<LimitCharge>,
    ) -> Poll<Result<Decision, Rejection>> {
        #[expect(clippy::panic, reason = "a future must not be polled after its end")]
        let mut asked = match mem::replace(&mut self.progress, CheckProgress::Answered) {
            CheckProgress::Unasked => {
                let mut query = None;
                let answer = P::start(&mut self.check, charge, &mut query);
                match query {
                    Some(query) => query,
                    None => return answer,
                }
            }
            CheckProgress::Asked(asked) => asked,
            CheckProgress::Answered => panic!("`CheckFuture` polled after completion"),
        };
        let answer = asked.as_mut().poll(context);
        if answer.is_pending() {
            self.progress = CheckProgress::Asked(asked);
        }
        answer
    }
}

impl<'a> Check<'a> {
    /// The future of a check that [`try_decide`](Check::try_decide) left undecided.
    pub(super) fn query(self, charge: Option<LimitCharge>) -> Result<PendingDecision<'a>, Rejection> {
        let (limiter, first) = (self.limiter, self.first_ref().map(Policy::name));
        if !self.is_plain() {
            let (limiter, limits, mode) = self.into_parts();
            let decided = EnforcementPlan::new(limiter, limits, mode).decide();
            return Ok(if limiter.is_in_process() {
                Box::pin(decided)
            } else {
                observe::deciding(first, decided)
            });
        }
        if let Some(limit) = self.permit_peek() {
            limiter.open()?;
            let request = ConcurrencyRequest::new(limit.clone(), self.mode)?;
            return Ok(Box::pin(async move {
                limiter.inner.backend.peek_permits(&request).await
            }));
        }
        let request = self.request(charge)?;
        let deadline = request.deadline();
        Ok(observe::deciding(first, async move {
            let answer = limiter.inner.backend.decide(&request, deadline).await;
            limiter.report_answer(&request, &answer);
            answer
        }))
    }
}

impl<P> fmt::Debug for CheckFuture<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CheckFuture")
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use crate::check::*;

    /// The allocator of glibc keeps freed blocks of at most 1,032 bytes in a cache of the thread.
    /// The feature `metrics` adds 16 bytes to 1,024.
    const SMALL_ALLOCATION: usize = 1_024 + 16;

    #[tokio::test]
    async fn query_fits_small_allocation() {
        let limits = Limiter::redis("redis://127.0.0.1:1").namespace("size").build();
        let limits = limits.expect("valid");
        let policy = Policy::token_bucket("p").capacity(1).rate(1).build();
        let policy = policy.expect("valid");
        let query = limits.check(&policy, "key").query(None).expect("valid");
        let size = size_of_val(&*query);
        assert!(size <= SMALL_ALLOCATION, "{size} bytes");
    }
}
