//! The service: extracts the key, and returns a future that decides.

use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use limiter_core::__private::Passage;
use tower_service::Service;

use crate::gate::{Gate, impl_service};
use crate::key::{Extraction, KeyExtractor};
use crate::rate::config::LayerConfig;
use crate::rate::future::ResponseFuture;
use crate::rate::next_action::NextAction;
use crate::responses::body::ResponseBody;

/// A service with a rate limit. Created by [`RateLimitLayer`](crate::RateLimitLayer). `S` is the
/// inner service, `E` extracts the key.
pub struct RateLimit<S, E> {
    gate: Gate<S, LayerConfig, E>,
}

impl_service!(RateLimit, LayerConfig);

impl<S, E, B, ResBody> Service<Request<B>> for RateLimit<S, E>
where
    S: Service<Request<B>, Response = Response<ResBody>> + Clone,
    E: KeyExtractor<B>,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.gate.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let limits = &self.gate.shared.config;
        let next = {
            let answer = self.gate.shared.key.extract(&request);
            match &answer {
                // The key is not moved for requests that pass, which most do.
                Extraction::Key(key) => match limits.try_pass(key) {
                    Passage::Allowed => NextAction::Pass,
                    Passage::Decided(answer) => NextAction::from_decision(answer, limits),
                    Passage::Undecided => NextAction::after(answer, limits, &request),
                },
                _ => NextAction::after(answer, limits, &request),
            }
        };
        match next {
            NextAction::Pass => ResponseFuture::passing(self.gate.inner.call(request)),
            next => self.call_inner(next, request),
        }
    }
}

impl<S: Clone, E> RateLimit<S, E> {
    #[inline(never)]
    fn call_inner<B>(&mut self, next: NextAction, mut request: Request<B>) -> ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        match next {
            // The ready instance is called in place.
            NextAction::Call(granted) => {
                let response_hooks = self.gate.shared.config.response_hooks(granted, &mut request);
                ResponseFuture::calling(self.gate.inner.call(request), response_hooks)
            }
            other => {
                let limits = Arc::clone(&self.gate.shared.config);
                ResponseFuture::next(other, limits, self.gate.take_ready(), request)
            }
        }
    }
}
