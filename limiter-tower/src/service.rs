//! The service: finds the key, and lets the future decide.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use crate::body::ResponseBody;
use crate::decide::{Limits, Question};
use crate::future::ResponseFuture;
use crate::guarded::Guarded;
use crate::key::{Answer, ExtractKey};
use crate::respond::Protocol;
use crate::wait;

/// A service whose requests are limited. Made by [`RateLimitLayer`](crate::RateLimitLayer). `S` is the inner service, `E` finds the key.
pub type RateLimit<S, E> = Guarded<S, Limits, E>;

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
        let answer = self.guard.key.extract(&request);
        // Where the answer lies: it is moved no further for those that pass, which are most.
        if let Answer::Key(key) = &answer
            && self.guard.limits.passes(key)
        {
            drop(answer);
            return ResponseFuture::passing(self.inner.call(request));
        }
        let question = match answer {
            Answer::Key(key) => Question::Key(key),
            Answer::Terms(terms) => Question::Terms(terms),
            Answer::Skip => return ResponseFuture::passing(self.inner.call(request)),
            Answer::Refuse(refusal) => {
                self.release_ready();
                let limits = Arc::clone(&self.guard.limits);
                return ResponseFuture::refused(refusal, Protocol::of(&request), limits);
            }
            Answer::Later(later) => {
                let limits = Arc::clone(&self.guard.limits);
                return ResponseFuture::extracting(later, limits, self.take_ready(), request);
            }
        };
        let mut settling = None;
        match self.guard.limits.at_once(&question, &mut settling) {
            Poll::Ready(Ok(decision)) if decision.is_allowed() => {
                let costs = self.guard.limits.costs(&question);
                let afterwards = self.guard.limits.afterwards(decision, settling, &costs, &mut request);
                ResponseFuture::calling(self.inner.call(request), afterwards)
            }
            Poll::Ready(denied) => {
                // What it has reserved to be ready, others may need.
                self.release_ready();
                let limits = Arc::clone(&self.guard.limits);
                ResponseFuture::rejected(limits.why(denied), Protocol::of(&request), limits)
            }
            Poll::Pending => {
                let bound = wait::timeout(request.headers());
                let deciding = Arc::clone(&self.guard.limits).decide(question.into_owned(), bound);
                ResponseFuture::deciding(deciding, self.take_ready(), request)
            }
        }
    }
}
