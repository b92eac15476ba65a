//! What is done next with a request: once its key was looked for, and once the limiter has answered.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use http::Request;
use limiter_core::{Decision, Rejection};

use crate::decide::{Limits, Question};
use crate::headers::Costs;
use crate::key::{Answer, Later, Refusal};
use crate::settle::Settling;
use crate::wait;

/// What is done next with a request.
pub(crate) enum Next {
    /// The inner service is called, and nothing is done with its response.
    Pass,
    /// The inner service is called.
    Call(Granted),
    /// The limiter's answer is waited for.
    Decide(Deciding<Granted>),
    /// The extractor's is.
    Extract(Later),
    /// It is answered in place of the inner service.
    Reject(Rejection),
    Refuse(Refusal),
}

/// By what a request goes on.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) decision: Decision,
    /// What is settled once it is answered.
    pub(crate) settling: Option<Box<Settling>>,
    pub(crate) costs: Costs,
}

impl Next {
    /// What follows from an extractor's answer. The limiter is asked, if it can answer at once.
    #[inline(never)]
    pub(crate) fn after<B>(answer: Answer<'_>, limits: &Arc<Limits>, request: &Request<B>) -> Self {
        let question = match answer {
            Answer::Key(key) => Question::Key(key),
            Answer::Terms(terms) => Question::Terms(terms),
            Answer::Skip => return Self::Pass,
            Answer::Refuse(refusal) => return Self::Refuse(refusal),
            Answer::Later(later) => return Self::Extract(later),
        };
        let mut settling = None;
        match limits.at_once(&question, &mut settling) {
            Poll::Ready(Ok(decision)) if decision.is_allowed() => Self::Call(Granted {
                decision,
                settling,
                costs: limits.costs(&question),
            }),
            Poll::Ready(denied) => Self::Reject(limits.why(denied)),
            Poll::Pending => {
                let bound = wait::timeout(request.headers());
                let (limits, question) = (Arc::clone(limits), question.into_owned());
                Self::Decide(Box::pin(async move {
                    let (decision, settling) = limits.ask(&question, bound).await?;
                    Ok(Granted {
                        decision,
                        settling,
                        costs: limits.costs(&question),
                    })
                }))
            }
        }
    }
}

impl From<Result<Granted, Rejection>> for Next {
    fn from(decided: Result<Granted, Rejection>) -> Self {
        match decided {
            Ok(granted) => Self::Call(granted),
            Err(rejection) => Self::Reject(rejection),
        }
    }
}

/// The limiter's answer on its way, a `T` where the request goes on. Nothing is asked before the first poll.
///
/// The limiter's own future borrows the limiter, the policy and the key, and a `Service::Future` can borrow nothing: hence the box.
pub(crate) type Deciding<T> = Pin<Box<dyn Future<Output = Result<T, Rejection>> + Send>>;
