//! Requests to a service that answers at once, with and without a layer in front of it.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::{poll_fn, ready as at_once};
use std::hint::black_box;

use axum::body::Body;
use gungraun::{library_benchmark, library_benchmark_group};
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::{HeaderValue, Request, Response, StatusCode};
use limiter_instructions::DECISIONS;
use limiter_tower::{RateLimitHeaders, RateLimitLayer, ResponseConfig, key};
use tower::{Service, ServiceBuilder, service_fn};

use crate::setup::{self, ample, ready};

/// Sends [`DECISIONS`] requests that are ready to be sent.
type Client = Box<dyn FnMut()>;

fn client<S, B>(mut service: S) -> Client
where
    S: Service<Request<Body>, Response = Response<B>, Error: Debug> + 'static,
{
    let mut send = move |request| {
        ready(poll_fn(|context| service.poll_ready(context))).expect("the service is ready");
        let response = black_box(ready(service.call(black_box(request))));
        assert_eq!(response.expect("the service answers").status(), StatusCode::OK);
    };
    send(request());
    send(request());
    let mut requests: Vec<_> = (0..DECISIONS).map(|_| request()).collect();
    Box::new(move || requests.drain(..).for_each(&mut send))
}

fn request() -> Request<Body> {
    let mut request = Request::new(Body::empty());
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_static("localhost:3000"));
    headers.insert(USER_AGENT, HeaderValue::from_static("curl/7.88.1"));
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    headers.insert("x-api-key", HeaderValue::from_static("user-0000000"));
    request
}

fn without_layer() -> Client {
    client(service_fn(|_| at_once(answer())))
}

fn behind_layer() -> Client {
    let layer = RateLimitLayer::new(&setup::in_process(), ample("layer"))
        .key(key::header("x-api-key"))
        .responses(&ResponseConfig::new().headers(RateLimitHeaders::None));
    client(
        ServiceBuilder::new()
            .layer(layer)
            .service(service_fn(|_| at_once(answer()))),
    )
}

fn answer() -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Body::empty()))
}

#[library_benchmark]
#[bench::warm(without_layer())]
fn bare(mut send: Client) -> Client {
    send();
    send
}

#[library_benchmark]
#[bench::warm(behind_layer())]
fn plain(mut send: Client) -> Client {
    send();
    send
}

library_benchmark_group!(name = layer, benchmarks = [bare, plain]);
