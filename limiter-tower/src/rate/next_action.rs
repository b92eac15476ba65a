//! The next action for a request, after the key was extracted and after the limiter has decided.
//!
//! A request may pass, call the inner service, wait for an extractor or for the limiter, or be
//! rejected. [`NextAction`] represents these actions, so that the service and the future share one
//! implementation.
//!
//! Tests: `tests/contract/paths.rs` (every action), `tests/decisions/pending_keys.rs`,
//! `tests/contract.rs` (`in_process_request_is_decided_in_call`).

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use http::Request;
use limiter_core::{Decision, Rejection};

use crate::headers::Costs;
use crate::key::{Extraction, KeyRejection, PendingKey};
use crate::rate::config::{LayerConfig, RequestScope};
use crate::rate::wait;
use crate::settlement::Settling;

/// The next action for a request.
pub(crate) enum NextAction {
    /// Call the inner service and return its response unchanged.
    Pass,
    /// Call the inner service and complete its response.
    Call(Grant),
    /// Wait for the limiter.
    Decide(PendingDecision<Grant>),
    /// Wait for the key extractor.
    Extract(PendingKey),
    /// Reject the request with the limiter's rejection.
    Reject(Rejection),
    /// Reject the request with the extractor's response.
    Refuse(KeyRejection),
}

/// The permission for a request to call the inner service.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) decision: Decision,
    /// The charge that is settled after the response.
    pub(crate) settling: Option<Box<Settling>>,
    pub(crate) costs: Costs,
}

impl NextAction {
    /// Returns the action after an extraction. Calls the limiter if it can decide without waiting.
    #[inline(never)]
    pub(crate) fn after<B>(answer: Extraction<'_>, limits: &Arc<LayerConfig>, request: &Request<B>) -> Self {
        let scope = match answer {
            Extraction::Key(key) => RequestScope::Key(key),
            Extraction::Limits(request_limits) => RequestScope::RequestLimits(request_limits),
            Extraction::Skip => return Self::Pass,
            Extraction::Reject(rejection) => return Self::Refuse(rejection),
            Extraction::Pending(pending) => return Self::Extract(pending),
        };
        let mut settling = None;
        match limits.try_decide(&scope, &mut settling) {
            Poll::Ready(Ok(decision)) if decision.is_allowed() => Self::Call(Grant {
                decision,
                settling,
                costs: limits.costs(&scope),
            }),
            Poll::Ready(denied) => Self::Reject(limits.log_rejection(denied)),
            Poll::Pending => {
                let bound = wait::timeout(request.headers());
                let (limits, scope) = (Arc::clone(limits), scope.into_owned());
                Self::Decide(Box::pin(async move {
                    let (decision, settling) = limits.decide(&scope, bound).await?;
                    Ok(Grant {
                        decision,
                        settling,
                        costs: limits.costs(&scope),
                    })
                }))
            }
        }
    }
}

impl NextAction {
    /// Returns the action for a request with one key, from its decision.
    #[cold]
    pub(crate) fn from_decision(answer: Result<Decision, Rejection>, limits: &LayerConfig) -> Self {
        match answer {
            Ok(decision) if decision.is_allowed() => Self::Call(Grant {
                decision,
                settling: None,
                costs: limits.layer_costs(),
            }),
            denied => Self::Reject(limits.log_rejection(denied)),
        }
    }
}

impl From<Result<Grant, Rejection>> for NextAction {
    fn from(decided: Result<Grant, Rejection>) -> Self {
        match decided {
            Ok(granted) => Self::Call(granted),
            Err(rejection) => Self::Reject(rejection),
        }
    }
}

/// A pending decision, with a `T` for an allowed request. The limiter is called at the first poll.
///
/// The limiter's own future borrows the limiter, the policy and the key. A `Service::Future` cannot
/// borrow, so the decision is boxed together with its inputs.
pub(crate) type PendingDecision<T> = Pin<Box<dyn Future<Output = Result<T, Rejection>> + Send>>;
