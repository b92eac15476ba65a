//! Clients as people use them, against servers on loopback.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use http::Request;
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use limiter_core::Rejection;
use limiter_tower::{RateLimitLayer, outbound};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::client::Grpc;
use tonic::service::Routes;
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower::{ServiceBuilder, ServiceExt};

use crate::rejection;
use crate::support::{at_most, limiter};

async fn serve(app: Router) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = axum::serve(listener, app);
    (address, tokio::spawn(async { server.await.unwrap() }))
}

#[tokio::test]
async fn hyper_client_respects_limit_and_pause_of_server() {
    let app = Router::new().route("/ok", get(async || "hello")).route(
        "/full",
        get(async || (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "5")])),
    );
    let (address, server) = serve(app).await;
    let (limits, clock) = limiter();
    let client = ServiceBuilder::new()
        .layer(RateLimitLayer::outbound(&limits, at_most(3)))
        .service(Client::builder(TokioExecutor::new()).build_http::<String>());
    let send = async |path: &str| {
        let request = Request::get(format!("http://{address}{path}")).body(String::new());
        client.clone().oneshot(request.unwrap()).await
    };

    let response = send("/ok").await.unwrap();
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(body.to_bytes(), "hello");
    assert_eq!(send("/full").await.unwrap().status(), 429);
    let paused = rejection(send("/ok").await);
    assert!(matches!(paused, Rejection::Paused { retry_after } if retry_after == Duration::from_secs(5)));
    clock.advance(Duration::from_secs(5));
    assert_eq!(send("/ok").await.unwrap().status(), 200);
    assert!(matches!(rejection(send("/ok").await), Rejection::Limited(_)));

    server.abort();
    let _ = server.await;
    clock.advance(Duration::from_secs(60));
    let error = send("/ok").await.unwrap_err();
    assert!(error.is::<hyper_util::client::legacy::Error>());
    assert!(outbound::rejection(&*error).is_none());
}

/// Responds to every call with a status and a retry delay of 250 ms.
async fn grpc_server() -> (Channel, JoinHandle<()>) {
    let exhausted = async || {
        let mut status = Status::resource_exhausted("not now");
        let pushback = "250".parse().unwrap();
        status.metadata_mut().insert("grpc-retry-pushback-ms", pushback);
        status.into_http::<axum::body::Body>()
    };
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder()
        .add_routes(Routes::from(Router::new().fallback(exhausted)))
        .serve_with_incoming(TcpListenerStream::new(listener));
    let server = tokio::spawn(async { server.await.unwrap() });
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    (channel.connect().await.unwrap(), server)
}

/// Calls like code that tonic generates.
async fn call<T>(channel: T) -> Status
where
    T: tonic::client::GrpcService<tonic::body::Body>,
    T::Error: Into<outbound::BoxError>,
    T::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <T::ResponseBody as http_body::Body>::Error: Into<outbound::BoxError> + Send,
{
    let mut client = Grpc::new(channel);
    if let Err(error) = client.ready().await {
        panic!("{}", error.into());
    }
    let path = http::uri::PathAndQuery::from_static("/greeter.Greeter/Greet");
    client
        .unary::<(), (), _>(tonic::Request::new(()), path, ProstCodec::default())
        .await
        .unwrap_err()
}

#[tokio::test]
async fn tonic_client_respects_pushback_of_server() {
    let (channel, server) = grpc_server().await;
    let (limits, clock) = limiter();
    let channel = ServiceBuilder::new()
        .layer(RateLimitLayer::outbound(&limits, at_most(2)))
        .service(channel);

    let theirs = call(channel.clone()).await;
    assert_eq!(
        (theirs.code(), theirs.message()),
        (Code::ResourceExhausted, "not now")
    );
    assert!(outbound::rejection(&theirs).is_none());

    let ours = call(channel.clone()).await;
    let expected = if cfg!(feature = "tonic") {
        Code::ResourceExhausted
    } else {
        Code::Unknown
    };
    assert_eq!(ours.code(), expected);
    let Some(Rejection::Paused { retry_after }) = outbound::rejection(&ours) else {
        panic!("{ours:?}")
    };
    assert_eq!(*retry_after, Duration::from_millis(250));

    clock.advance(Duration::from_millis(250));
    assert_eq!(call(channel.clone()).await.message(), "not now");
    clock.advance(Duration::from_millis(250));
    let limited = call(channel).await;
    assert!(matches!(
        outbound::rejection(&limited),
        Some(Rejection::Limited(_))
    ));
    server.abort();
}
