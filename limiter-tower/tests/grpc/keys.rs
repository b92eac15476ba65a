//! Keys as tonic's server finds them.

use http::uri::PathAndQuery;
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
