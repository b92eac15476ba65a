//! The future of a limited request: decides, then calls or answers.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use limiter_core::Rejection;
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::afterwards::Afterwards;
use crate::body::ResponseBody;
use crate::decide::{Deciding, Limits, Question};
use crate::key::{self, Later, Refusal};
use crate::respond::Protocol;
use crate::wait;

pin_project! {
    /// The future of [`RateLimit`](crate::RateLimit).
    ///
    /// In process the limiter was asked when the service was called, or when an extractor that has to wait had found the key.
    /// Redis is asked at the first poll, not before; until it has answered, the future holds the inner service that was found ready,
    /// and a denial gives it back uncalled. So it does while it waits.
    ///
    /// # Cancel safety
    ///
    /// With Redis, dropped before the first poll it has charged nothing; dropped while Redis is asked, it may have. Dropped while it
    /// waits, it leaves the line and is charged nothing: what Redis grants it then goes to the next, or is given back. Dropped
    /// while the inner service is called, the request stays charged, at its estimate where that was to be settled.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S: Service<Request<B>>, B> {
        #[pin]
        state: State<S, B>,
    }
}

pin_project! {
    #[project = StateProj]
    // What is rarer than to call is boxed, and makes the future no larger.
    enum State<S: Service<Request<B>>, B> {
        Extracting { extracting: Option<Box<Extracting<S, B>>> },
        Deciding { asked: Option<Box<Asked<S, B>>> },
        // Nothing is done with the response, as with most where no headers are written.
        Passing { #[pin] inner: S::Future },
        Calling { #[pin] inner: S::Future, afterwards: Afterwards },
        Answered { answer: Option<Box<Answered>> },
    }
}

/// A key that is being found, and the call that waits for it.
struct Extracting<S, B> {
    later: Later,
    limits: Arc<Limits>,
    ready: S,
    request: Request<B>,
}

/// A question on its way, and the call that waits for its answer.
struct Asked<S, B> {
    deciding: Deciding,
    ready: S,
    request: Request<B>,
}

/// What is said in place of the inner service, to whom, and who says it.
struct Answered {
    answer: Answer,
    protocol: Protocol,
    limits: Arc<Limits>,
}

enum Answer {
    Rejected(Rejection),
    Refused(Refusal),
}

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    pub(crate) fn extracting(later: Later, limits: Arc<Limits>, ready: S, request: Request<B>) -> Self {
        let extracting = Extracting {
            later,
            limits,
            ready,
            request,
        };
        Self {
            state: State::Extracting {
                extracting: Some(Box::new(extracting)),
            },
        }
    }

    pub(crate) fn deciding(deciding: Deciding, ready: S, request: Request<B>) -> Self {
        let asked = Asked {
            deciding,
            ready,
            request,
        };
        Self {
            state: State::Deciding {
                asked: Some(Box::new(asked)),
            },
        }
    }

    #[inline]
    pub(crate) fn passing(inner: S::Future) -> Self {
        Self {
            state: State::Passing { inner },
        }
    }

    pub(crate) fn calling(inner: S::Future, afterwards: Afterwards) -> Self {
        Self {
            state: State::Calling { inner, afterwards },
        }
    }

    pub(crate) fn rejected(rejection: Rejection, protocol: Protocol, limits: Arc<Limits>) -> Self {
        Self::answered(Answer::Rejected(rejection), protocol, limits)
    }

    pub(crate) fn refused(refusal: Refusal, protocol: Protocol, limits: Arc<Limits>) -> Self {
        Self::answered(Answer::Refused(refusal), protocol, limits)
    }

    fn answered(answer: Answer, protocol: Protocol, limits: Arc<Limits>) -> Self {
        Self {
            state: State::answered(answer, protocol, limits),
        }
    }
}

impl<S: Service<Request<B>>, B> State<S, B> {
    fn answered(answer: Answer, protocol: Protocol, limits: Arc<Limits>) -> Self {
        let answered = Answered {
            answer,
            protocol,
            limits,
        };
        Self::Answered {
            answer: Some(Box::new(answered)),
        }
    }
}

impl<S: Service<Request<B>>, B> Extracting<S, B> {
    /// What follows from the extractor's answer, as if it had come at once.
    fn answered(self, answer: key::Answer<'static>) -> State<S, B> {
        let Self {
            later: _,
            limits,
            mut ready,
            mut request,
        } = self;
        let question = match answer {
            key::Answer::Key(key) => Question::Key(key),
            key::Answer::Terms(terms) => Question::Terms(terms),
            key::Answer::Skip => {
                return State::Passing {
                    inner: ready.call(request),
                };
            }
            key::Answer::Refuse(refusal) => {
                return State::answered(Answer::Refused(refusal), Protocol::of(&request), limits);
            }
            key::Answer::Later(later) => {
                return State::Extracting {
                    extracting: Some(Box::new(Self {
                        later,
                        limits,
                        ready,
                        request,
                    })),
                };
            }
        };
        let mut settling = None;
        match limits.at_once(&question, &mut settling) {
            Poll::Ready(Ok(decision)) if decision.is_allowed() => {
                let costs = limits.costs(&question);
                let afterwards = limits.afterwards(decision, settling, &costs, &mut request);
                State::Calling {
                    inner: ready.call(request),
                    afterwards,
                }
            }
            Poll::Ready(denied) => {
                let rejection = limits.why(denied);
                State::answered(Answer::Rejected(rejection), Protocol::of(&request), limits)
            }
            Poll::Pending => {
                let bound = wait::timeout(request.headers());
                let asked = Asked {
                    deciding: limits.decide(question, bound),
                    ready,
                    request,
                };
                State::Deciding {
                    asked: Some(Box::new(asked)),
                }
            }
        }
    }
}

impl<S, B, ResBody> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<ResBody>>,
{
    type Output = Result<Response<ResponseBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Passing { inner } => {
                    let response = ready!(inner.poll(context))?;
                    return Poll::Ready(Ok(response.map(ResponseBody::inner)));
                }
                StateProj::Calling { inner, afterwards } => {
                    let response = ready!(inner.poll(context))?;
                    return Poll::Ready(Ok(afterwards.respond(response)));
                }
                StateProj::Extracting { extracting } => {
                    let Some(waiting) = extracting else { ended() };
                    let answer = ready!(Pin::new(&mut waiting.later).poll(context));
                    let Some(waiting) = extracting.take() else { ended() };
                    waiting.answered(answer)
                }
                StateProj::Deciding { asked } => {
                    let Some(waiting) = asked else { ended() };
                    let answer = ready!(Pin::new(&mut waiting.deciding).poll(context));
                    let Some(waiting) = asked.take() else { ended() };
                    let Asked {
                        deciding,
                        mut ready,
                        mut request,
                    } = *waiting;
                    match answer {
                        Ok((decision, settling)) => {
                            let limits = deciding.limits();
                            let afterwards =
                                limits.afterwards(decision, settling, deciding.costs(), &mut request);
                            State::Calling {
                                inner: ready.call(request),
                                afterwards,
                            }
                        }
                        Err(rejection) => {
                            let limits = Arc::clone(deciding.limits());
                            State::answered(Answer::Rejected(rejection), Protocol::of(&request), limits)
                        }
                    }
                }
                StateProj::Answered { answer } => {
                    let Some(answer) = answer.take() else { ended() };
                    let Answered {
                        answer,
                        protocol,
                        limits,
                    } = *answer;
                    let responder = limits.responder();
                    return Poll::Ready(Ok(match answer {
                        Answer::Rejected(rejection) => responder.rejected(rejection, &protocol),
                        Answer::Refused(refusal) => responder.refused(refusal, &protocol),
                    }));
                }
            };
            state.set(next);
        }
    }
}

/// What is said in place of an inner service, whatever the type of its bodies.
pub(crate) type Own = Box<Response<ResponseBody<Infallible>>>;

#[cold]
pub(crate) fn ended() -> ! {
    #[expect(clippy::panic, reason = "as every future, this one ends once")]
    {
        panic!("a response polled for again after it was given")
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for ResponseFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Extracting { .. } => "Extracting",
            State::Deciding { .. } => "Deciding",
            State::Passing { .. } | State::Calling { .. } => "Calling",
            State::Answered { .. } => "Answered",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
