//! Concurrent requests: limits, waits and the release of permits.
#![expect(clippy::unwrap_used, reason = "a test ends that way")]

#[path = "load/bodies.rs"]
mod bodies;
#[path = "load/grpc.rs"]
mod grpc;
#[path = "load/in_flight.rs"]
mod in_flight;
#[path = "load/max_wait.rs"]
mod max_wait;
#[path = "load/random_cancellation.rs"]
mod random_cancellation;
#[path = "load/redis.rs"]
mod redis;
#[path = "load/sequential.rs"]
mod sequential;
#[path = "load/shed.rs"]
mod shed;
mod support;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use limiter_core::{Limiter, Policy};
use tokio::sync::mpsc;
use tower::Service;

fn at_once(max: u32) -> Policy {
    Policy::concurrency("flights").max(max).build().unwrap()
}

async fn remaining(limits: &Limiter, policy: &Policy, key: &str) -> u64 {
    limits.peek(policy, key).await.unwrap().remaining()
}

/// Polls once.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Calls a ready service and polls its future once.
fn begin<S, B>(service: &mut S, request: Request<B>) -> (Pin<Box<S::Future>>, Poll<S::Response>)
where
    S: Service<Request<B>, Error = Infallible>,
{
    assert!(
        service
            .poll_ready(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    );
    let mut response = Box::pin(service.call(request));
    let polled = poll_once(response.as_mut()).map(Result::unwrap);
    (response, polled)
}

/// The response of an inner service that responds at the first poll.
fn answer<S, B>(service: &mut S, request: Request<B>) -> S::Response
where
    S: Service<Request<B>, Error = Infallible>,
{
    match begin(service, request).1 {
        Poll::Ready(response) => response,
        Poll::Pending => unreachable!("the service must respond at the first poll"),
    }
}

/// A body whose frames the test sends, of at least 7 bytes.
#[derive(Debug)]
struct Sent(mpsc::UnboundedReceiver<Result<Frame<Bytes>, &'static str>>);

impl Body for Sent {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.0.poll_recv(context)
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(7);
        hint
    }
}

type Sender = mpsc::UnboundedSender<Result<Frame<Bytes>, &'static str>>;

fn data() -> Result<Frame<Bytes>, &'static str> {
    Ok(Frame::data(Bytes::from_static(b"text")))
}

fn trailers() -> Result<Frame<Bytes>, &'static str> {
    Ok(Frame::trailers(HeaderMap::new()))
}

/// An inner service whose response bodies contain the frames that the test sends.
#[derive(Clone, Debug, Default)]
struct Streams(Arc<Mutex<Vec<Sender>>>);

impl Streams {
    /// The sender of the last response's frames.
    fn last(&self) -> Sender {
        self.0.lock().unwrap().pop().unwrap()
    }
}

impl Service<Request<String>> for Streams {
    type Response = Response<Sent>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Sent>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.lock().unwrap().push(sender);
        std::future::ready(Ok(Response::new(Sent(receiver))))
    }
}
