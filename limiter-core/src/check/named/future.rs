//! Checks by policy name.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::{fmt, mem};

use crate::algorithm::Mode;
use crate::check::named::ResolvedPolicies;
use crate::check::named::call::Question;
use crate::decision::{Decision, Rejection};
use crate::error::ConfigError;
use crate::units::Amount;

/// A check or a peek by policy name; it is sent when the value is awaited. Returned by
/// [`PolicyHandle::check`](crate::PolicyHandle::check) and
/// [`PolicyHandle::peek`](crate::PolicyHandle::peek).
#[derive(Clone, Debug)]
#[must_use = "nothing is sent or charged until this is awaited"]
pub struct NamedCheck<'a> {
    pub(crate) question: Question<'a>,
    pub(crate) mode: Mode,
}

impl<'a> NamedCheck<'a> {
    /// Sets the cost of the call, as [`Check::cost`](crate::future::Check::cost) does. Default: 1.
    pub fn cost<C>(mut self, cost: C) -> Self
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        self.question.cost = cost.try_into().map_err(Into::into);
        self
    }
}

impl<'a> IntoFuture for NamedCheck<'a> {
    type Output = Result<Decision, Rejection>;
    type IntoFuture = NamedDeciding<'a>;

    fn into_future(self) -> NamedDeciding<'a> {
        NamedDeciding(NamedProgress::Unasked(self))
    }
}

/// The future of a [`NamedCheck`]. In process it completes at the first poll, without an
/// allocation. Its cancel safety is that of [`Limiter::check`](crate::Limiter::check).
#[must_use = "futures do nothing unless polled"]
pub struct NamedDeciding<'a>(NamedProgress<'a>);

enum NamedProgress<'a> {
    Unasked(NamedCheck<'a>),
    Asked(Pin<Box<dyn Future<Output = Result<Decision, Rejection>> + Send + 'a>>),
    Answered,
}

impl Future for NamedDeciding<'_> {
    type Output = Result<Decision, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        #[expect(clippy::panic, reason = "as every future, this one ends once")]
        let mut asked = match mem::replace(&mut self.0, NamedProgress::Answered) {
            NamedProgress::Unasked(NamedCheck { question, mode }) => {
                let policy = match question.resolve(mode)? {
                    ResolvedPolicies::Policy(policy) => policy,
                    ResolvedPolicies::Allowed(decision) => return Poll::Ready(Ok(decision)),
                };
                if let Poll::Ready(answer) = question.check(&policy, mode).try_decide() {
                    return Poll::Ready(answer);
                }
                Box::pin(async move { question.check(&policy, mode).after_try().await })
            }
            NamedProgress::Asked(asked) => asked,
            NamedProgress::Answered => panic!("`NamedDeciding` polled after completion"),
        };
        let answer = asked.as_mut().poll(context);
        if answer.is_pending() {
            self.0 = NamedProgress::Asked(asked);
        }
        answer
    }
}

impl fmt::Debug for NamedDeciding<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NamedDeciding")
    }
}
