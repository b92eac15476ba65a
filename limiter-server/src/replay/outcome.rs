//! The results of single decisions of a replay.

use std::future::IntoFuture;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use limiter_core::{Decision, Origin, Rejection};

/// The result of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Admitted,
    Denied,
    Undecided,
}

/// The result of one decision, with the time after which the call is or would be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    pub(super) wait: Option<Duration>,
}

impl Outcome {
    pub(super) const UNDECIDED: Self = Self {
        verdict: Verdict::Undecided,
        wait: None,
    };
}

/// Returns the stricter verdict: one policy that denies a line denies it.
pub(super) fn strictest(a: Verdict, b: Verdict) -> Verdict {
    match (a, b) {
        (Verdict::Denied, _) | (_, Verdict::Denied) => Verdict::Denied,
        (Verdict::Undecided, _) | (_, Verdict::Undecided) => Verdict::Undecided,
        _ => Verdict::Admitted,
    }
}

/// Polls a call of an in-process limiter, which is ready at once.
fn now<F: IntoFuture>(call: F) -> Option<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(call.into_future()).poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Returns the result of a call; `None` if no policy of the name is in force at its time.
pub(super) fn outcome(check: impl IntoFuture<Output = Result<Decision, Rejection>>) -> Option<Outcome> {
    let of = |verdict, wait| Some(Outcome { verdict, wait });
    match now(check) {
        Some(Err(Rejection::NotConfigured { .. })) => None,
        // A full table.
        Some(Ok(decision)) if decision.store_error().is_some() => of(Verdict::Undecided, None),
        Some(Ok(decision)) if decision.is_allowed() && !decision.would_deny() => {
            let delay = Some(decision.delay()).filter(|delay| !delay.is_zero());
            of(Verdict::Admitted, delay)
        }
        Some(Ok(decision)) => {
            let denied = decision.denied_by().map(|limit| limit.retry_after());
            let wait = denied.filter(|_| decision.origin() != Origin::KeyList);
            of(Verdict::Denied, wait)
        }
        Some(Err(Rejection::NeverFits { .. })) => of(Verdict::Denied, None),
        // A full table, or a cost that the policy cannot count.
        Some(Err(_)) | None => of(Verdict::Undecided, None),
    }
}

/// A cost that is charged after the response denies nothing.
pub(super) fn settled(charge: impl IntoFuture<Output = Result<(), Rejection>>) -> Outcome {
    let verdict = match now(charge) {
        Some(Ok(())) => Verdict::Admitted,
        _ => Verdict::Undecided,
    };
    Outcome { verdict, wait: None }
}
