//! Shared helpers of the tests.
#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends that way")]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body_util::BodyExt;
use limiter_core::{Decision, Limiter, ManualClock, Policy};
use tower::Service;

/// A limiter with a manual clock.
pub(crate) fn limiter() -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::in_process().clock(&clock).build(), clock)
}

/// One call a minute.
pub(crate) fn one_a_minute() -> Policy {
    Policy::sliding_window("one-a-minute")
        .limit(1)
        .window("1m")
        .build()
        .unwrap()
}

pub(crate) fn at_most(limit: u32) -> Policy {
    Policy::sliding_window("at-most")
        .limit(limit)
        .window("1m")
        .build()
        .unwrap()
}

pub(crate) fn request(api_key: &str) -> Request<String> {
    Request::builder()
        .header("x-api-key", api_key)
        .body(String::new())
        .unwrap()
}

pub(crate) async fn text<B>(response: Response<B>) -> String
where
    B: http_body::Body<Data = bytes::Bytes>,
    B::Error: std::fmt::Debug,
{
    let body = response.into_body().collect().await.unwrap();
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}

/// An inner service that checks its contract: it panics if the called instance was not ready. It
/// answers with the remaining permits of the decision in the request's extensions, and counts its
/// calls.
#[derive(Debug, Default)]
pub(crate) struct Strict {
    ready: bool,
    calls: Arc<AtomicUsize>,
}

impl Strict {
    pub(crate) fn calls(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.calls)
    }
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self {
            ready: false,
            calls: self.calls(),
        }
    }
}

impl Service<Request<String>> for Strict {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called before it was ready");
        self.calls.fetch_add(1, Ordering::SeqCst);
        let remaining = request.extensions().get::<Decision>().map(Decision::remaining);
        std::future::ready(Ok(Response::new(format!("{remaining:?}"))))
    }
}
