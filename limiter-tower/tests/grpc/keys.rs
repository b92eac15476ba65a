//! Keys as tonic's server finds them.

use http::uri::PathAndQuery;
use http::{Response, StatusCode};
use limiter_tower::key::KeyRejection;
use limiter_tower::{RateLimitLayer, key, skip};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Code;
use tonic::client::Grpc;
use tonic::service::Routes;
use tonic::transport::{Channel, Server};
use tonic_prost::ProstCodec;

use crate::support::{limiter, one_a_minute};

/// The code of a call to a method that the server does not have: a call that passes the layer is
/// UNIMPLEMENTED.
async fn code(channel: &Channel, method: &'static str) -> Code {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let answer = client.unary::<(), (), _>(
        tonic::Request::new(()),
        PathAndQuery::from_static(method),
        ProstCodec::default(),
    );
    answer.await.unwrap_err().code()
}

#[tokio::test]
async fn tonic_server_provides_peer_and_method() {
    let (limits, _clock) = limiter();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let layer = RateLimitLayer::new(&limits, one_a_minute())
        .key((key::peer_ip(), key::grpc_method()))
        .skip(skip::probes());
    let server = Server::builder()
        .layer(layer)
        .add_routes(Routes::default())
        .serve_with_incoming(TcpListenerStream::new(listener));
    let server = tokio::spawn(server);
    let channel = async || {
        let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
        endpoint.connect().await.unwrap()
    };

    let (first, second) = (channel().await, channel().await);
    assert_eq!(code(&first, "/greeter.Greeter/Greet").await, Code::Unimplemented);
    assert_eq!(
        code(&second, "/greeter.Greeter/Greet").await,
        Code::ResourceExhausted,
        "the same peer"
    );
    assert_eq!(code(&second, "/greeter.Greeter/Leave").await, Code::Unimplemented);
    for _ in 0..3 {
        assert_eq!(
            code(&first, "/grpc.health.v1.Health/Check").await,
            Code::Unimplemented
        );
    }
    server.abort();
}

/// Clients reject responses whose headers are longer than 16 KiB.
#[tokio::test]
async fn long_message_of_rejection_does_not_hide_its_code() {
    let (limits, _clock) = limiter();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let page = Response::builder().status(StatusCode::UNAUTHORIZED);
    let page = page.header("content-type", "text/plain; charset=utf-8");
    let page = page.body("\u{fc}".repeat(8_192).into()).unwrap();
    let by_user = key::header("x-user").or_reject(KeyRejection::from(page));
    let server = Server::builder()
        .layer(RateLimitLayer::new(&limits, one_a_minute()).key(by_user))
        .add_routes(Routes::default())
        .serve_with_incoming(TcpListenerStream::new(listener));
    let server = tokio::spawn(server);
    let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
    let channel = endpoint.connect().await.unwrap();
    assert_eq!(
        code(&channel, "/greeter.Greeter/Greet").await,
        Code::Unauthenticated
    );
    server.abort();
}
