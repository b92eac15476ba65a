//! The charge of a request: policies, waits and settlements.
#![expect(clippy::unwrap_used, reason = "a test ends that way")]

#[path = "decisions/cancelled.rs"]
mod cancelled;
#[path = "decisions/fairness.rs"]
mod fairness;
#[path = "decisions/headers.rs"]
mod headers;
#[path = "decisions/modes.rs"]
mod modes;
#[path = "decisions/pending_keys.rs"]
mod pending_keys;
#[path = "decisions/request_limits.rs"]
mod request_limits;
#[path = "decisions/settlement.rs"]
mod settlement;
mod support;
#[path = "decisions/waiting.rs"]
mod waiting;

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use http::{Request, Response};
use limiter_core::{Limiter, Policy};
use tower::Service;

/// `capacity` at once, and one more each second.
fn bucket(name: &str, capacity: u32) -> Policy {
    Policy::token_bucket(name)
        .capacity(capacity)
        .rate("1/s")
        .build()
        .unwrap()
}

async fn left(limits: &Limiter, policy: &Policy, key: &str) -> u64 {
    limits.peek(policy, key).await.unwrap().remaining()
}

/// Calls a ready service and polls its future once.
fn begin<S>(service: &mut S, request: Request<String>) -> (Pin<Box<S::Future>>, Poll<S::Response>)
where
    S: Service<Request<String>, Error = Infallible>,
{
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_ready());
    let mut response = Box::pin(service.call(request));
    let polled = response.as_mut().poll(&mut context).map(Result::unwrap);
    (response, polled)
}

fn retry_after<B>(response: &Response<B>) -> &str {
    response.headers()["retry-after"].to_str().unwrap()
}
