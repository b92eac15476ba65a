//! The service: finds the key, and lets the future decide.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use crate::body::ResponseBody;
use crate::decide::{Limits, Question};
use crate::future::ResponseFuture;
use crate::key::{Answer, ExtractKey};
use crate::respond::Protocol;
use crate::wait;

/// A service whose requests are limited. Made by [`RateLimitLayer`](crate::RateLimitLayer).
///
/// `S` is the inner service, `E` finds the key. Readiness and backpressure are those of the inner service, and the
/// instance of it that was found ready is the one that is called.
pub struct RateLimit<S, E> {
    inner: S,
    limits: Arc<Limits>,
    key: Arc<E>,
}

impl<S, E> RateLimit<S, E> {
    pub(crate) fn new(inner: S, limits: Arc<Limits>, key: Arc<E>) -> Self {
        Self { inner, limits, key }
    }

    /// The inner service.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// The inner service, to change it.
    pub fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service, without the limit.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, E, B, ResBody> Service<Request<B>> for RateLimit<S, E>
where
    S: Service<Request<B>, Response = Response<ResBody>> + Clone,
    E: ExtractKey<B>,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let answer = self.key.extract(&request);
        // Where the answer lies: it is moved no further for those that pass, which are most.
        if let Answer::Key(key) = &answer
            && self.limits.passes(key)
        {
            drop(answer);
            return ResponseFuture::passing(self.inner.call(request));
        }
        let question = match answer {
            Answer::Key(key) => Question::Key(key),
            Answer::Terms(terms) => Question::Terms(terms),
            Answer::Skip => return ResponseFuture::passing(self.inner.call(request)),
            Answer::Refuse(refusal) => {
                drop(self.take_ready());
                let limits = Arc::clone(&self.limits);
                return ResponseFuture::refused(refusal, Protocol::of(&request), limits);
            }
            Answer::Later(later) => {
                let limits = Arc::clone(&self.limits);
                return ResponseFuture::extracting(later, limits, self.take_ready(), request);
            }
        };
        let mut settling = None;
        match self.limits.at_once(&question, &mut settling) {
            Poll::Ready(Ok(decision)) if decision.is_allowed() => {
                let costs = self.limits.costs(&question);
                let afterwards = self.limits.afterwards(decision, settling, &costs, &mut request);
                ResponseFuture::calling(self.inner.call(request), afterwards)
            }
            Poll::Ready(denied) => {
                // What it has reserved to be ready, others may need.
                drop(self.take_ready());
                let limits = Arc::clone(&self.limits);
                ResponseFuture::rejected(limits.why(denied), Protocol::of(&request), limits)
            }
            Poll::Pending => {
                let bound = wait::timeout(request.headers());
                let deciding = Arc::clone(&self.limits).decide(question.into_owned(), bound);
                ResponseFuture::deciding(deciding, self.take_ready(), request)
            }
        }
    }
}

impl<S: Clone, E> RateLimit<S, E> {
    /// The inner service that was found ready. A clone stays behind, which is not.
    fn take_ready(&mut self) -> S {
        let unready = self.inner.clone();
        mem::replace(&mut self.inner, unready)
    }
}

impl<S: Clone, E> Clone for RateLimit<S, E> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            limits: Arc::clone(&self.limits),
            key: Arc::clone(&self.key),
        }
    }
}

impl<S: fmt::Debug, E> fmt::Debug for RateLimit<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService, E> tonic::server::NamedService for RateLimit<S, E> {
    const NAME: &'static str = S::NAME;
}
