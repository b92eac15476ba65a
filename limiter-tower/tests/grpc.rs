//! The responses that gRPC clients receive, on the wire and through tonic's server and client.
#![expect(clippy::unwrap_used, reason = "a test ends that way")]

#[path = "grpc/details.rs"]
mod details;
#[cfg(feature = "tonic")]
#[path = "grpc/keys.rs"]
mod keys;
mod support;

use std::time::Duration;

use http::{Request, StatusCode};
use http_body::Body as _;
use limiter_tower::{RateLimitLayer, key};
use support::{Strict, limiter, one_a_minute};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::client::Grpc;
use tonic::service::Routes;
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;
use tower::{Layer, ServiceExt};

fn grpc_request(content_type: &str, api_key: Option<&str>) -> Request<String> {
    let request = Request::post("/greeter/greet").header("content-type", content_type);
    let request = api_key
        .into_iter()
        .fold(request, |request, api_key| request.header("x-api-key", api_key));
    request.body(String::new()).unwrap()
}

#[tokio::test]
async fn denial_is_trailers_only() {
    let (limits, _clock) = limiter();
    let service = RateLimitLayer::new(&limits, one_a_minute())
        .key(key::header("x-api-key"))
        .layer(Strict::default());

    let answer = async |content_type: &str| {
        let request = grpc_request(content_type, Some("ann"));
        service.clone().oneshot(request).await.unwrap()
    };
    let allowed = answer("application/grpc").await;
    assert!(!allowed.headers().contains_key("grpc-status"));
    for content_type in ["application/grpc", "application/grpc+proto"] {
        let denied = answer(content_type).await;
        assert_eq!(denied.status(), StatusCode::OK);
        assert_eq!(denied.headers()["content-type"], "application/grpc");
        assert_eq!(denied.headers()["grpc-status"], "8");
        assert_eq!(
            denied.headers()["grpc-message"],
            "rate limit reached, retry after 60 seconds"
        );
        for http in ["retry-after", "ratelimit", "ratelimit-policy"] {
            assert!(!denied.headers().contains_key(http), "{http}");
        }
        assert!(denied.body().is_end_stream(), "no body, not even an empty frame");
    }
    let http = answer("application/json").await;
    assert_eq!(
        http.status(),
        StatusCode::TOO_MANY_REQUESTS,
        "one layer serves both"
    );
}

#[tokio::test]
async fn rejections_and_outages_have_separate_codes() {
    let (limits, _clock) = limiter();
    let layer = RateLimitLayer::new(&limits, one_a_minute());
    let code = async |by: key::Header, api_key: Option<&str>| {
        let service = layer.clone().key(by).layer(Strict::default());
        let response = service
            .oneshot(grpc_request("application/grpc", api_key))
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        response.headers()["grpc-status"].to_str().unwrap().to_owned()
    };
    let by_api_key = || key::header("x-api-key");

    assert_eq!(code(by_api_key(), None).await, "3", "INVALID_ARGUMENT");
    assert_eq!(
        code(by_api_key().or_reject(StatusCode::UNAUTHORIZED), None).await,
        "16",
        "UNAUTHENTICATED"
    );
    assert_eq!(
        code(by_api_key().or_reject(StatusCode::FORBIDDEN), None).await,
        "7",
        "PERMISSION_DENIED"
    );
    limits.shutdown(Duration::ZERO).await;
    assert_eq!(code(by_api_key(), Some("ann")).await, "14", "UNAVAILABLE");
}

/// Calls a method that no service of the server has, with an API key: a call that passes the layer
/// is UNIMPLEMENTED.
async fn call(channel: &Channel, api_key: &'static str) -> Status {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let mut request = tonic::Request::new(());
    request
        .metadata_mut()
        .insert("x-api-key", api_key.parse().unwrap());
    let path = http::uri::PathAndQuery::from_static("/greeter.Greeter/Greet");
    client
        .unary::<(), (), _>(request, path, ProstCodec::default())
        .await
        .unwrap_err()
}

#[tokio::test]
async fn tonic_client_receives_resource_exhausted() {
    let (limits, clock) = limiter();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder()
        .layer(RateLimitLayer::new(&limits, one_a_minute()).key(key::header("x-api-key")))
        .add_routes(Routes::default())
        .serve_with_incoming(TcpListenerStream::new(listener));
    let server = tokio::spawn(server);
    let channel = Channel::from_shared(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap();

    assert_eq!(call(&channel, "ann").await.code(), Code::Unimplemented);
    let denied = call(&channel, "ann").await;
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert_eq!(denied.message(), "rate limit reached, retry after 60 seconds");
    let retry = denied.get_details_retry_info().unwrap();
    assert_eq!(retry.retry_delay, Some(Duration::from_secs(60)));
    assert_eq!(denied.metadata().get("grpc-retry-pushback-ms").unwrap(), "60000");
    assert_eq!(call(&channel, "bob").await.code(), Code::Unimplemented);
    clock.advance(Duration::from_secs(60));
    assert_eq!(call(&channel, "ann").await.code(), Code::Unimplemented);
    server.abort();
}

#[cfg(feature = "tonic")]
#[test]
fn tonic_service_name_is_forwarded() {
    use limiter_tower::RateLimit;
    use tonic::server::NamedService;

    #[derive(Clone)]
    struct Greeter;

    impl NamedService for Greeter {
        const NAME: &'static str = "greeter.Greeter";
    }
    assert_eq!(
        <RateLimit<Greeter, key::Global> as NamedService>::NAME,
        "greeter.Greeter"
    );
}
