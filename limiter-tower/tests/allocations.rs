//! A layer that decides in process allocates for an allowed request only if it adds headers or
//! extensions.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test ends that way")]

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use allocation_counter::measure;
use http::{Request, Response};
use limiter_core::{Limiter, Policy};
use limiter_tower::key::{self, KeyExtractor};
use limiter_tower::{
    ConcurrencyLimitLayer, LoadShedLayer, Priority, RateLimitHeaders, RateLimitLayer, ResponseConfig,
};
use tower::{Layer, Service, service_fn};

fn answer(_: Request<()>) -> Ready<Result<Response<()>, Infallible>> {
    ready(Ok(Response::new(())))
}

fn status(
    service: &mut impl Service<Request<()>, Response = Response<impl Sized>>,
    request: Request<()>,
) -> u16 {
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_ready());
    match pin!(service.call(request)).poll(&mut context) {
        Poll::Ready(Ok(response)) => response.status().as_u16(),
        _ => panic!("an in-process decision must be ready at the first poll"),
    }
}

#[test]
fn allowed_request_allocates_for_decision_extension_only() {
    let limits = Limiter::in_process().build();
    let policy = Policy::token_bucket("api")
        .capacity(100)
        .rate("1/h")
        .build()
        .unwrap();
    let layer = RateLimitLayer::new(&limits, policy)
        .key(key::header("x-api-key"))
        .responses(&ResponseConfig::new().headers(RateLimitHeaders::None));
    let request = || Request::get("/").header("x-api-key", "ann").body(()).unwrap();

    for (layer, allocates) in [(layer.clone(), false), (layer.with_decision_extension(), true)] {
        let mut service = layer.layer(service_fn(answer));
        // The first decision initializes shared state.
        assert_eq!(status(&mut service, request()), 200);
        let request = request();
        let counted = measure(|| assert_eq!(status(&mut service, request), 200));
        assert_eq!(counted.count_total > 0, allocates, "{counted:?}");
    }
}

#[test]
fn request_in_flight_allocates_nothing() {
    let limits = Limiter::in_process().build();
    let policy = Policy::concurrency("flights").max(10).build().unwrap();
    let mut service = ConcurrencyLimitLayer::new(&limits, policy)
        .key(key::header("x-api-key"))
        .responses(&ResponseConfig::new().headers(RateLimitHeaders::None))
        .layer(service_fn(|_: Request<()>| {
            ready(Ok::<_, Infallible>(Response::new(String::new())))
        }));
    let request = || Request::get("/").header("x-api-key", "ann").body(()).unwrap();
    assert_eq!(status(&mut service, request()), 200);
    let request = request();
    let counted = measure(|| assert_eq!(status(&mut service, request), 200));
    assert_eq!(counted.count_total, 0, "{counted:?}");
}

#[test]
fn load_shed_layer_allocates_nothing() {
    let mut service = LoadShedLayer::new(10)
        .priority(|_: &Request<()>| Priority::High)
        .layer(service_fn(|_: Request<()>| {
            ready(Ok::<_, Infallible>(Response::new(String::new())))
        }));
    let request = Request::new(());
    let counted = measure(|| assert_eq!(status(&mut service, request), 200));
    assert_eq!(counted.count_total, 0, "{counted:?}");
}

/// A response with spare capacity for headers, so that only the values allocate.
fn answer_with_header_capacity(_: Request<()>) -> Ready<Result<Response<()>, Infallible>> {
    let mut response = Response::new(());
    response.headers_mut().reserve(8);
    ready(Ok(response))
}

#[test]
fn headers_allocate_one_buffer_and_its_shared_handle() {
    let limits = Limiter::in_process().build();
    let policy = Policy::token_bucket("api")
        .capacity(100)
        .rate("1/h")
        .build()
        .unwrap();
    let layer = RateLimitLayer::new(&limits, policy).key(key::header("x-api-key"));
    let request = || Request::get("/").header("x-api-key", "ann").body(()).unwrap();

    for (dialect, allocations) in [
        (RateLimitHeaders::None, 2),
        (RateLimitHeaders::Draft11, 4),
        (RateLimitHeaders::Draft10, 4),
        (RateLimitHeaders::Draft7, 4),
        (RateLimitHeaders::Legacy, 4),
    ] {
        let mut service = layer
            .clone()
            .responses(&ResponseConfig::new().headers(dialect))
            .layer(service_fn(answer_with_header_capacity));
        assert_eq!(status(&mut service, request()), 200);
        let request = request();
        let counted = measure(|| assert_eq!(status(&mut service, request), 200));
        // The header capacity takes two.
        assert_eq!(counted.count_total, allocations, "{dialect:?}: {counted:?}");
    }
}

/// Values of headers, paths and extensions are borrowed from the request.
#[test]
fn formatted_key_allocates_once() {
    let mut request = Request::get("/search").header("x-forwarded-for", "203.0.113.9, 192.0.2.1");
    let headers = request.headers_mut().unwrap();
    headers.insert("forwarded", "for=\"[2001:db8:1111:2222::1]:80\"".parse().unwrap());
    headers.insert("x-api-key", "ann".parse().unwrap());
    let request = request.body(()).unwrap();
    let allocations = |extractor: &dyn KeyExtractor<()>| {
        let counted = measure(|| drop(extractor.extract(&request)));
        counted.count_total
    };
    assert_eq!(allocations(&key::header("x-api-key")), 0);
    assert_eq!(allocations(&key::path()), 0);
    assert_eq!(allocations(&key::client_ip(key::TrustedProxies::hops(1))), 1);
    assert_eq!(
        allocations(&key::client_ip(key::TrustedProxies::hops(1)).forwarded()),
        1
    );
    assert_eq!(allocations(&(key::header("x-api-key"), key::path())), 1);
}
