//! The future of a check.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::{fmt, mem};

use crate::check::{Check, PendingDecision};
use crate::concurrency::request::ConcurrencyRequest;
use crate::decision::{Decision, Rejection};
use crate::enforcement::EnforcementPlan;
use crate::observe;

impl<'a> IntoFuture for Check<'a> {
    type Output = Result<Decision, Rejection>;
    type IntoFuture = CheckFuture<'a>;

    #[inline]
    fn into_future(self) -> CheckFuture<'a> {
        CheckFuture {
            check: self,
            progress: CheckProgress::Unasked,
        }
    }
}

/// The future of a [`Check`]. In process it is ready at the first poll, without an allocation.
#[must_use = "futures do nothing unless polled"]
pub struct CheckFuture<'a> {
    check: Check<'a>,
    progress: CheckProgress<'a>,
}

enum CheckProgress<'a> {
    Unasked,
    Asked(PendingDecision<'a>),
    Answered,
}

impl Future for CheckFuture<'_> {
    type Output = Result<Decision, Rejection>;

    /// In process the check is read where it is, and the decision is written where the caller wants
    /// it: moving either takes longer than deciding.
    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let CheckProgress::Unasked = self.progress {
            if self.check.limiter.is_in_process() && self.check.is_plain() {
                self.progress = CheckProgress::Answered;
                return self.check.try_decide_plain();
            }
        }
        self.poll_pending(context)
    }
}

impl CheckFuture<'_> {
    fn poll_pending(&mut self, context: &mut Context<'_>) -> Poll<Result<Decision, Rejection>> {
        #[expect(clippy::panic, reason = "a future must not be polled after its end")]
        let mut asked = match mem::replace(&mut self.progress, CheckProgress::Answered) {
            CheckProgress::Unasked => {
                if !self.check.is_tried {
                    if let Poll::Ready(answer) = self.check.try_decide() {
                        return Poll::Ready(answer);
                    }
                }
                self.check.take().query()?
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
    fn query(self) -> Result<PendingDecision<'a>, Rejection> {
        let (limiter, first) = (self.limiter, self.first_policy());
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
        let request = self.request()?;
        let deadline = request.deadline();
        Ok(observe::deciding(first, async move {
            let answer = limiter.inner.backend.decide(&request, deadline).await;
            observe::answered(request.policies(), request.mode, &answer);
            answer
        }))
    }
}

impl fmt::Debug for CheckFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CheckFuture")
    }
}
