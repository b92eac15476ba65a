//! The spans `limiter.decide`, `limiter.acquire`, `limiter.reserve` and `limiter.enter` with
//! policy, outcome and origin.
//!
//! A call that queries Redis or waits is polled within a span, which records the outcome when the
//! call ends. Without a subscriber, a call costs one check.
//!
//! Invariant: a span never contains a key. Tests: `tests/spans.rs`.

use std::pin::Pin;

use tracing::field::{Empty, debug};
use tracing::{Instrument, Span};

use crate::decision::{Allowed, Decision, Rejection};

/// A boxed call.
type BoxedDecision<'a, T> = Pin<Box<dyn Future<Output = Result<T, Rejection>> + Send + 'a>>;

/// Functions that poll a call within its own span. Without a subscriber they cost one check and no
/// space in the future.
macro_rules! spans {
    ($($(#[$doc:meta])* $function:ident = $name:literal;)*) => {$(
        $(#[$doc])*
        #[inline]
        pub(crate) fn $function<'a, T: AsDecision + 'a>(
            policy: Option<&str>,
            answer: impl Future<Output = Result<T, Rejection>> + Send + 'a,
        ) -> BoxedDecision<'a, T> {
            let span = tracing::debug_span!($name, policy, outcome = Empty, origin = Empty);
            if span.is_disabled() {
                Box::pin(answer)
            } else {
                record_result(span, answer)
            }
        }
    )*};
}

spans! {
    /// A decision that queries Redis.
    deciding = "limiter.decide";
    /// A wait with all its queries.
    acquiring = "limiter.acquire";
    /// A reservation that queries Redis or waits.
    reserving = "limiter.reserve";
    /// An acquisition of concurrency permits that queries Redis or waits.
    entering = "limiter.enter";
}

/// Polls within the span and records outcome and origin.
fn record_result<'a, T: AsDecision + 'a>(
    span: Span,
    answer: impl Future<Output = Result<T, Rejection>> + Send + 'a,
) -> BoxedDecision<'a, T> {
    let recorded_span = span.clone();
    let recorded_call = async move {
        let answer = answer.await;
        let (outcome, decision) = match &answer {
            Ok(decided) => {
                let decision = decided.as_decision();
                let outcome = if decision.is_allowed() {
                    "allowed"
                } else {
                    "denied"
                };
                (outcome, Some(decision))
            }
            Err(rejection) => (outcome(rejection), rejection.decision()),
        };
        recorded_span.record("outcome", outcome);
        if let Some(decision) = decision {
            recorded_span.record("origin", debug(decision.origin()));
        }
        answer
    };
    Box::pin(recorded_call.instrument(span))
}

fn outcome(rejection: &Rejection) -> &'static str {
    match rejection {
        Rejection::Limited(_) | Rejection::Paused { .. } | Rejection::Forbidden { .. } => "denied",
        Rejection::TimedOut { .. } => "timed_out",
        Rejection::NeverFits { .. } | Rejection::Config(_) => "invalid",
        Rejection::Unavailable { .. } if rejection.decision().is_some() => "denied",
        Rejection::NotConfigured { .. } | Rejection::Unavailable { .. } => "error",
    }
}

/// A result that contains a decision. The modules of the result types implement it.
pub(crate) trait AsDecision {
    fn as_decision(&self) -> &Decision;
}

impl AsDecision for Decision {
    fn as_decision(&self) -> &Decision {
        self
    }
}

impl AsDecision for Allowed {
    fn as_decision(&self) -> &Decision {
        self
    }
}
