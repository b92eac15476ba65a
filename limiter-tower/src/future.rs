//! The future of a limited request: decides, then calls or answers.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use limiter_core::{Decision, Rejection};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::body::ResponseBody;
use crate::decide::{Deciding, Limits};
use crate::key::{self, Later, Refusal};
use crate::respond::{self, Protocol};

pin_project! {
    /// The future of [`RateLimit`](crate::RateLimit).
    ///
    /// In process the limiter was asked when the service was called, or when an extractor that has to wait had found the key.
    /// Redis is asked at the first poll, not before; until it
    /// has answered, the future holds the inner service that was found ready, and a denial gives it back uncalled.
    ///
    /// # Cancel safety
    ///
    /// With Redis, dropped before the first poll it has charged nothing; dropped while Redis is asked, it may have. It spawns
    /// nothing, so nothing goes on after it.
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
        Calling { #[pin] inner: S::Future, shown: Option<Box<Decision>> },
        Answered { answer: Option<Box<(Answer, Protocol)>> },
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

/// What is said in place of the inner service.
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

    pub(crate) fn calling(inner: S::Future, shown: Option<Box<Decision>>) -> Self {
        Self {
            state: State::Calling { inner, shown },
        }
    }

    pub(crate) fn rejected(rejection: Rejection, protocol: Protocol) -> Self {
        Self::answered(Answer::Rejected(rejection), protocol)
    }

    pub(crate) fn refused(refusal: Refusal, protocol: Protocol) -> Self {
        Self::answered(Answer::Refused(refusal), protocol)
    }

    fn answered(answer: Answer, protocol: Protocol) -> Self {
        Self {
            state: State::answered(answer, protocol),
        }
    }
}

impl<S: Service<Request<B>>, B> State<S, B> {
    fn answered(answer: Answer, protocol: Protocol) -> Self {
        Self::Answered {
            answer: Some(Box::new((answer, protocol))),
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
        match answer {
            key::Answer::Key(key) => match limits.at_once(&key) {
                Poll::Ready(Ok(decision)) if decision.is_allowed() => {
                    let shown = limits.show(decision, &mut request);
                    State::Calling {
                        inner: ready.call(request),
                        shown,
                    }
                }
                Poll::Ready(denied) => {
                    State::answered(Answer::Rejected(limits.why(denied)), Protocol::of(&request))
                }
                Poll::Pending => {
                    let asked = Asked {
                        deciding: limits.decide(key),
                        ready,
                        request,
                    };
                    State::Deciding {
                        asked: Some(Box::new(asked)),
                    }
                }
            },
            key::Answer::Skip => State::Calling {
                inner: ready.call(request),
                shown: None,
            },
            key::Answer::Refuse(refusal) => State::answered(Answer::Refused(refusal), Protocol::of(&request)),
            key::Answer::Later(later) => State::Extracting {
                extracting: Some(Box::new(Self {
                    later,
                    limits,
                    ready,
                    request,
                })),
            },
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
                StateProj::Calling { inner, shown } => {
                    let mut response = match ready!(inner.poll(context)) {
                        Ok(response) => response,
                        Err(error) => return Poll::Ready(Err(error)),
                    };
                    if let Some(decision) = shown.take() {
                        // One that is there already is a more specific layer's, further in.
                        response.extensions_mut().get_or_insert_with(|| *decision);
                    }
                    return Poll::Ready(Ok(response.map(ResponseBody::inner)));
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
                        Ok(decision) => {
                            let shown = deciding.limits().show(decision, &mut request);
                            State::Calling {
                                inner: ready.call(request),
                                shown,
                            }
                        }
                        Err(rejection) => {
                            State::answered(Answer::Rejected(rejection), Protocol::of(&request))
                        }
                    }
                }
                StateProj::Answered { answer } => {
                    let Some(answer) = answer.take() else { ended() };
                    return Poll::Ready(Ok(match *answer {
                        (Answer::Rejected(rejection), protocol) => respond::rejected(rejection, &protocol),
                        (Answer::Refused(refusal), protocol) => respond::refused(refusal, &protocol),
                    }));
                }
            };
            state.set(next);
        }
    }
}

#[cold]
fn ended() -> ! {
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
            State::Calling { .. } => "Calling",
            State::Answered { .. } => "Answered",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
