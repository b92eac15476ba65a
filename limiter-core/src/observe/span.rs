//! The spans `limiter.decide`, `limiter.acquire`, `limiter.reserve` and `limiter.enter`: which
//! policy was asked, what was answered, and by whom. Never the key.

use std::pin::Pin;

use tracing::field::{Empty, debug};
use tracing::{Instrument, Span};

use crate::decision::{Allowed, Decision, Rejection};
use crate::policy::Policy;

/// The answer to a call, on the heap.
type BoxedDecision<'a, T> = Pin<Box<dyn Future<Output = Result<T, Rejection>> + Send + 'a>>;

/// Functions that poll an answer within a span of its own. Where nobody listens it costs a look,
/// and no room in the future.
macro_rules! spans {
    ($($(#[$doc:meta])* $function:ident = $name:literal;)*) => {$(
        $(#[$doc])*
        #[inline]
        pub(crate) fn $function<'a, T: AsDecision + 'a>(
            policy: Option<&Policy>,
            answer: impl Future<Output = Result<T, Rejection>> + Send + 'a,
        ) -> BoxedDecision<'a, T> {
            let policy = policy.map(Policy::name);
            let span = tracing::debug_span!($name, policy, outcome = Empty, origin = Empty);
            if span.is_disabled() {
                Box::pin(answer)
            } else {
                told(span, answer)
            }
        }
    )*};
}

spans! {
    /// A decision for which Redis is asked.
    deciding = "limiter.decide";
    /// A wait, with all that is asked in it.
    acquiring = "limiter.acquire";
    /// A reservation for which Redis is asked, or which waits.
    reserving = "limiter.reserve";
    /// Permits of what is in flight for which Redis is asked, or which are waited for.
    entering = "limiter.enter";
}

/// Polls within the span, and notes in it what came of it.
fn told<'a, T: AsDecision + 'a>(
    span: Span,
    answer: impl Future<Output = Result<T, Rejection>> + Send + 'a,
) -> BoxedDecision<'a, T> {
    let notes = span.clone();
    let answered = async move {
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
        notes.record("outcome", outcome);
        if let Some(decision) = decision {
            notes.record("origin", debug(decision.origin()));
        }
        answer
    };
    Box::pin(answered.instrument(span))
}

fn outcome(rejection: &Rejection) -> &'static str {
    match rejection {
        Rejection::Limited(_) | Rejection::Paused { .. } | Rejection::Forbidden { .. } => "denied",
        Rejection::TimedOut { .. } => "timed_out",
        Rejection::NeverFits { .. } | Rejection::Config(_) => "invalid",
        Rejection::Unavailable(_) if rejection.decision().is_some() => "denied",
        Rejection::NotConfigured { .. } | Rejection::Unavailable(_) => "error",
    }
}

/// An answer that contains a decision. The modules of the answers implement it.
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
