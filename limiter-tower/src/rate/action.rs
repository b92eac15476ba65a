//! What is done next with a request: once its key was looked for, and once the limiter has
//! answered.

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

/// What is done next with a request.
pub(crate) enum Next {
    /// The inner service is called, and nothing is done with its response.
    Pass,
    /// The inner service is called.
    Call(Grant),
    /// The limiter's answer is waited for.
    Decide(Deciding<Grant>),
    /// The extractor's is.
    Extract(PendingKey),
    /// It is answered in place of the inner service.
    Reject(Rejection),
    Refuse(KeyRejection),
}

/// By what a request goes on.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) decision: Decision,
    /// What is settled once it is answered.
    pub(crate) settling: Option<Box<Settling>>,
    pub(crate) costs: Costs,
}

impl Next {
    /// What follows from an extractor's answer. The limiter is asked, if it can answer at once.
    #[inline(never)]
    pub(crate) fn after<B>(answer: Extraction<'_>, limits: &Arc<LayerConfig>, request: &Request<B>) -> Self {
        let question = match answer {
            Extraction::Key(key) => RequestScope::Key(key),
            Extraction::Limits(terms) => RequestScope::RequestLimits(terms),
            Extraction::Skip => return Self::Pass,
            Extraction::Reject(refusal) => return Self::Refuse(refusal),
            Extraction::Pending(later) => return Self::Extract(later),
        };
        let mut settling = None;
        match limits.try_decide(&question, &mut settling) {
            Poll::Ready(Ok(decision)) if decision.is_allowed() => Self::Call(Grant {
                decision,
                settling,
                costs: limits.costs(&question),
            }),
            Poll::Ready(denied) => Self::Reject(limits.log_rejection(denied)),
            Poll::Pending => {
                let bound = wait::timeout(request.headers());
                let (limits, question) = (Arc::clone(limits), question.into_owned());
                Self::Decide(Box::pin(async move {
                    let (decision, settling) = limits.decide(&question, bound).await?;
                    Ok(Grant {
                        decision,
                        settling,
                        costs: limits.costs(&question),
                    })
                }))
            }
        }
    }
}

impl From<Result<Grant, Rejection>> for Next {
    fn from(decided: Result<Grant, Rejection>) -> Self {
        match decided {
            Ok(granted) => Self::Call(granted),
            Err(rejection) => Self::Reject(rejection),
        }
    }
}

/// The limiter's answer on its way, a `T` where the request goes on. Nothing is asked before the
/// first poll.
///
/// The limiter's own future borrows the limiter, the policy and the key, and a `Service::Future`
/// can borrow nothing: hence the box.
pub(crate) type Deciding<T> = Pin<Box<dyn Future<Output = Result<T, Rejection>> + Send>>;
