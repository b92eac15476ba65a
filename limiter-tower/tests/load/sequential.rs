//! A client that sends one request after the other is not denied by its own previous request.
#![cfg(unix)]

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Method, Request};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use limiter_core::{Limiter, Policy};
use limiter_testing::{Proxy, RedisServer};
use limiter_tower::{ConcurrencyLimitLayer, key};

const DEADLINE: Duration = Duration::from_secs(10);

fn policy() -> Policy {
    Policy::concurrency("flights")
        .max(1)
        .deadline(DEADLINE)
        .build()
        .unwrap()
}

/// Serves text, an empty body, and streams that report their end only in the last poll. A server
/// does not poll that often if the response states its length.
async fn serve(limits: &Limiter) -> String {
    let streamed = async || {
        let frames =
            ["a", "b"].map(|text| Ok::<_, Infallible>(Frame::data(Bytes::from_static(text.as_bytes()))));
        Body::new(StreamBody::new(tokio_stream::iter(frames)))
    };
    let app = Router::new()
        .route("/text", get(async || "found"))
        .route("/empty", get(async || ()))
        .route("/stream", get(streamed))
        .route(
            "/file",
            get(async move || ([(CONTENT_LENGTH, "2")], streamed().await)),
        )
        .layer(ConcurrencyLimitLayer::new(limits, policy()).key(key::header("x-api-key")));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}")
}

fn client() -> Client<HttpConnector, Body> {
    Client::builder(TokioExecutor::new()).build_http()
}

/// Sends requests one after the other, to the replicas in turn, and reads each response to its end.
async fn send(method: Method, replicas: &[String], requests: usize) -> Vec<u16> {
    let client = client();
    let mut statuses = Vec::new();
    let targets = ["/text", "/empty", "/stream", "/file", "/file"]
        .into_iter()
        .cycle()
        .zip(replicas.iter().cycle());
    for (path, replica) in targets.take(requests) {
        let request = Request::builder().method(&method).uri(format!("{replica}{path}"));
        let request = request.header("x-api-key", "ann");
        let response = client
            .request(request.body(Body::empty()).unwrap())
            .await
            .unwrap();
        statuses.push(response.status().as_u16());
        response.into_body().collect().await.unwrap();
    }
    statuses
}

fn replica(url: &str) -> Limiter {
    Limiter::redis(url).namespace("sequential").build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequential_client_is_admitted_by_one_replica() {
    let server = RedisServer::start();
    let limits = replica(&server.url());
    let statuses = send(Method::GET, &[serve(&limits).await], 300).await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequential_client_is_admitted_by_alternating_replicas() {
    for method in [Method::GET, Method::HEAD] {
        sequential_client_is_admitted(method).await;
    }
}

/// A response to HEAD has no body that is sent.
async fn sequential_client_is_admitted(method: Method) {
    let server = RedisServer::start();
    // Releases travel slower than the requests of the client.
    let slow = Proxy::start(server.port());
    let replicas = [replica(&slow.url()), replica(&server.url())];
    slow.set_delay(Duration::from_millis(5));
    let replicas = [serve(&replicas[0]).await, serve(&replicas[1]).await];
    let statuses = send(method.clone(), &replicas, 120).await;
    assert!(
        statuses.iter().all(|status| *status == 200),
        "{method}: {statuses:?}"
    );
}
