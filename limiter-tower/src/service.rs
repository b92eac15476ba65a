//! The service: finds the key, and lets the future decide.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use crate::body::ResponseBody;
use crate::decide::Limits;
use crate::future::ResponseFuture;
use crate::guarded::Guarded;
use crate::key::{Answer, ExtractKey};
use crate::next::Next;

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

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let limits = &self.guard.limits;
        let next = {
            let answer = self.guard.key.extract(&request);
            match &answer {
                // Looked at where it lies, and moved no further for those that pass, which are most.
                Answer::Key(key) if limits.passes(key) => Next::Pass,
                _ => Next::after(answer, limits, &request),
            }
        };
        match next {
            Next::Pass => ResponseFuture::passing(self.inner.call(request)),
            next => self.go_on(next, request),
        }
    }
}

impl<S: Clone, E> RateLimit<S, E> {
    #[inline(never)]
    fn go_on<B>(&mut self, next: Next, mut request: Request<B>) -> ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        match next {
            // The instance that was found ready is called where it lies.
            Next::Call(granted) => {
                let afterwards = self.guard.limits.afterwards(granted, &mut request);
                ResponseFuture::calling(self.inner.call(request), afterwards)
            }
            other => {
                let limits = Arc::clone(&self.guard.limits);
                ResponseFuture::next(other, limits, self.take_ready(), request)
            }
        }
    }
}
