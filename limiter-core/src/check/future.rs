//! The future of a check.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::{fmt, mem};

use crate::check::fast_path::Looked;
use crate::check::{Asked, Check};
use crate::decision::{Decision, Rejection};
use crate::enforcement::EnforcementPlan;
use crate::observe;
#[cfg(feature = "redis")]
use crate::request::DecisionRequest;
#[cfg(feature = "redis")]
pub(crate) use crate::support::one_or_many::OneOrMany;

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
    Asked(Asked<'a>),
    Answered,
}

impl Future for CheckFuture<'_> {
    type Output = Result<Decision, Rejection>;

    /// In process the question is read where it lies, and the answer is written where the caller
    /// wants it: both are larger than what is done with them takes time.
    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let CheckProgress::Unasked = self.progress {
            if self.check.alone_in_memory().is_some() && self.check.is_plain() {
                self.progress = CheckProgress::Answered;
                if let Some((store, ask)) = self.check.alone_in_memory() {
                    return self.check.decide_alone(store, ask);
                }
            }
        }
        self.poll_elsewhere(context)
    }
}

impl CheckFuture<'_> {
    fn poll_elsewhere(&mut self, context: &mut Context<'_>) -> Poll<Result<Decision, Rejection>> {
        let looked = match self.progress {
            // What its policies, or the limiter, say beyond what a store knows is seen to first.
            CheckProgress::Unasked if !self.check.is_plain() => {
                let first = self.check.first_policy();
                let limiter = self.check.limiter;
                let decided = EnforcementPlan::new(self.check.take()).decide();
                self.progress = CheckProgress::Asked(if limiter.is_in_process() {
                    Box::pin(decided)
                } else {
                    observe::deciding(first, decided)
                });
                Looked::Unknown
            }
            CheckProgress::Unasked => self.check.look(),
            _ => Looked::Unknown,
        };
        if let Looked::Answered(answer) = looked {
            self.progress = CheckProgress::Answered;
            return Poll::Ready(answer);
        }
        #[expect(clippy::panic, reason = "as every future, this one ends once")]
        let mut asked = match mem::replace(&mut self.progress, CheckProgress::Answered) {
            CheckProgress::Unasked if self.check.peek_permits().is_some() => {
                let check = self.check.take();
                check.look_at_what_is_in_flight()
            }
            CheckProgress::Unasked => {
                let limiter = self.check.limiter;
                let request = match (looked, self.check.take()) {
                    #[cfg(feature = "redis")]
                    (
                        Looked::Charge(charge),
                        Check {
                            asks: OneOrMany::One(ask),
                            mode,
                            ..
                        },
                    ) => DecisionRequest::alone(ask, charge, mode),
                    (_, check) => {
                        let request = check.request()?;
                        if let Some(answer) = limiter.decide_now(&request) {
                            observe::answered(request.policies(), request.mode, &answer);
                            return Poll::Ready(answer);
                        }
                        request
                    }
                };
                let deadline = request.deadline();
                let first = request.limits.first().map(|limit| limit.policy);
                observe::deciding(first, async move {
                    let answer = limiter.decide(&request, deadline).await;
                    observe::answered(request.policies(), request.mode, &answer);
                    answer
                })
            }
            CheckProgress::Asked(asked) => asked,
            CheckProgress::Answered => panic!("a decision polled again after it was made"),
        };
        let answer = asked.as_mut().poll(context);
        if answer.is_pending() {
            self.progress = CheckProgress::Asked(asked);
        }
        answer
    }
}

impl fmt::Debug for CheckFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deciding")
    }
}
