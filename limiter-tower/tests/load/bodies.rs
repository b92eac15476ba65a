//! Until when a permit is held.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Empty, Full};
use limiter_core::Limiter;
use limiter_core::concurrency::ConcurrencyPermit;
use limiter_tower::typestate::WithKey;
use limiter_tower::{ConcurrencyLimitLayer, LoadShedLayer, key};
use tower::{Layer, ServiceExt, service_fn};

use super::support::{limiter, request};
use super::{Sent, Streams, answer, at_once, begin, data, poll_once, remaining, trailers};

fn layer(limits: &Limiter) -> ConcurrencyLimitLayer<WithKey<key::Header>> {
    ConcurrencyLimitLayer::new(limits, at_once(1)).key(key::header("x-api-key"))
}

type Next<B> = Option<Result<http_body::Frame<<B as Body>::Data>, <B as Body>::Error>>;

fn next<B: Body + Unpin>(body: &mut B) -> Poll<Next<B>> {
    Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test]
async fn permit_is_held_until_end_of_body() {
    let (limits, _clock) = limiter();
    let policy = at_once(1);
    let streams = Streams::default();
    let mut service = layer(&limits).layer(streams.clone());
    // The end of the body: trailers, an error, or no more frames.
    for last in [Some(trailers()), Some(Err("broken")), None] {
        let mut response = answer(&mut service, request("ann"));
        let body = response.body_mut();
        let sender = streams.last();
        assert_eq!(body.size_hint().lower(), 7, "the size hint of the inner body");
        assert!(next(body).is_pending());
        for _ in 0..3 {
            sender.send(data()).unwrap();
            assert!(matches!(next(body), Poll::Ready(Some(Ok(frame))) if frame.is_data()));
            assert_eq!(remaining(&limits, &policy, "ann").await, 0);
            assert!(body.held().unwrap().permit().is_valid());
        }
        assert_eq!(answer(&mut service, request("ann")).status(), 429);
        match last {
            Some(last) => sender.send(last).unwrap(),
            None => drop(sender),
        }
        assert!(next(body).is_ready());
        assert!(body.held().is_none());
        assert_eq!(
            remaining(&limits, &policy, "ann").await,
            1,
            "although the body still exists"
        );
    }
}

#[tokio::test]
async fn partially_read_body_releases_permit_on_drop() {
    let (limits, _clock) = limiter();
    let streams = Streams::default();
    let mut service = layer(&limits).layer(streams.clone());
    for frames in 0..3 {
        let mut response = answer(&mut service, request("ann"));
        let sender = streams.last();
        for _ in 0..frames {
            sender.send(data()).unwrap();
            assert!(next(response.body_mut()).is_ready());
        }
        assert_eq!(remaining(&limits, &at_once(1), "ann").await, 0);
        drop(response);
        assert_eq!(remaining(&limits, &at_once(1), "ann").await, 1);
    }
}

/// A server does not poll a body that reports its end.
#[tokio::test]
async fn body_that_reports_its_end_holds_no_permit() {
    let (limits, _clock) = limiter();
    let empty =
        service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())));
    let mut service = layer(&limits).layer(empty);
    let response = answer(&mut service, request("ann"));
    assert!(response.body().is_end_stream() && response.body().held().is_none());
    assert_eq!(remaining(&limits, &at_once(1), "ann").await, 1);

    let text = service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"text"))))
    });
    let mut service = layer(&limits).layer(text);
    let mut response = answer(&mut service, request("ann"));
    let body = response.body_mut();
    assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(4), false));
    assert_eq!(remaining(&limits, &at_once(1), "ann").await, 0);
    assert!(next(body).is_ready());
    assert!(body.is_end_stream(), "its last frame was data");
    assert_eq!(remaining(&limits, &at_once(1), "ann").await, 1);
}

#[tokio::test]
async fn failing_inner_service_releases_permit() {
    let (limits, _clock) = limiter();
    let fails = service_fn(async |_: Request<String>| Err::<Response<String>, _>("broken"));
    let mut service = layer(&limits).layer(fails);
    let mut failed = Box::pin(tower::Service::call(&mut service, request("ann")));
    assert_eq!(remaining(&limits, &at_once(1), "ann").await, 0);
    assert!(matches!(poll_once(failed.as_mut()), Poll::Ready(Err("broken"))));
    assert_eq!(
        remaining(&limits, &at_once(1), "ann").await,
        1,
        "although the future still exists"
    );
}

#[tokio::test]
async fn panicking_inner_service_releases_permit() {
    let (limits, _clock) = limiter();
    let in_call = service_fn(|request: Request<String>| {
        assert!(request.headers().is_empty(), "intended panic");
        std::future::ready(Ok::<_, Infallible>(Response::new(String::new())))
    });
    let in_future = service_fn(async |request: Request<String>| {
        assert!(request.headers().is_empty(), "intended panic");
        Ok::<_, Infallible>(Response::new(String::new()))
    });
    let mut first = layer(&limits).layer(in_call);
    let mut second = layer(&limits).layer(in_future);
    for _ in 0..3 {
        assert!(catch_unwind(AssertUnwindSafe(|| begin(&mut first, request("ann")).1)).is_err());
        assert_eq!(remaining(&limits, &at_once(1), "ann").await, 1);
        assert!(catch_unwind(AssertUnwindSafe(|| begin(&mut second, request("ann")).1)).is_err());
        assert_eq!(remaining(&limits, &at_once(1), "ann").await, 1);
    }
}

#[tokio::test]
async fn handler_can_keep_its_permit_extension() {
    let (limits, _clock) = limiter();
    let (sender, mut shares) = tokio::sync::mpsc::unbounded_channel();
    let keeps = service_fn(move |mut request: Request<String>| {
        let permit = request.extensions_mut().remove::<Arc<ConcurrencyPermit>>();
        sender.send(permit).unwrap();
        std::future::ready(Ok::<_, Infallible>(Response::new(String::new())))
    });
    let shared = layer(&limits).with_permit_extension();
    let mut service = shared
        .skip(|request: &Request<String>| request.uri() == "/free")
        .layer(keeps);

    let response = answer(&mut service, request("ann"));
    let permit = shares.recv().await.unwrap().unwrap();
    assert!(response.body().held().is_none() && permit.is_valid());
    drop(response);
    assert_eq!(answer(&mut service, request("ann")).status(), 429);
    drop(permit);
    assert_eq!(remaining(&limits, &at_once(1), "ann").await, 1);

    let free = Request::get("/free").body(String::new()).unwrap();
    assert_eq!(answer(&mut service, free).status(), 200);
    assert!(shares.recv().await.unwrap().is_none());
}

/// A body of two frames that states its exact size and does not report its end.
struct Exact(Sent);

impl Body for Exact {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Next<Sent>> {
        Pin::new(&mut self.0).poll_frame(context)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(8)
    }
}

/// A server states the exact size as the length of the response, and polls no further frame.
#[tokio::test]
async fn body_of_exact_size_releases_permit_with_its_last_byte() {
    let (limits, _clock) = limiter();
    let streams = Streams::default();
    let exact = streams.clone().map_response(|response| response.map(Exact));
    let shed = LoadShedLayer::new(1);
    let mut shedding = shed.layer(exact.clone());
    let mut limited = layer(&limits).layer(exact);
    let mut response = answer(&mut limited, request("ann"));
    let mut shed_response = answer(&mut shedding, request("ann"));
    let (of_shed, of_limited) = (streams.last(), streams.last());
    for free in [0, 1] {
        of_limited.send(data()).unwrap();
        of_shed.send(data()).unwrap();
        assert!(matches!(next(response.body_mut()), Poll::Ready(Some(Ok(frame))) if Frame::is_data(&frame)));
        assert!(next(shed_response.body_mut()).is_ready());
        assert_eq!(remaining(&limits, &at_once(1), "ann").await, free);
        assert_eq!(1 - shed.in_flight(), usize::try_from(free).unwrap());
    }
}
