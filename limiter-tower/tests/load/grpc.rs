//! Streams of a tonic server, which are in flight for as long as they last.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::PathAndQuery;
use limiter_core::Limiter;
use limiter_tower::ConcurrencyLimitLayer;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::client::Grpc;
use tonic::server::NamedService;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

use super::{at_once, remaining};

type Ticks = mpsc::UnboundedSender<Result<(), Status>>;

/// A service with one streaming method; the test sends its messages.
#[derive(Clone, Debug, Default)]
struct Ticker(Arc<Mutex<Vec<Ticks>>>);

impl NamedService for Ticker {
    const NAME: &'static str = "ticker.Ticker";
}

impl Service<http::Request<tonic::body::Body>> for Ticker {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.lock().unwrap().push(sender);
        Box::pin(async move {
            let mut receiver = Some(receiver);
            let ticks = service_fn(move |_: Request<()>| {
                let ticks = UnboundedReceiverStream::new(receiver.take().unwrap());
                std::future::ready(Ok::<_, Status>(Response::new(ticks)))
            });
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<(), ()>::default());
            Ok(grpc.server_streaming(ticks, request).await)
        })
    }
}

async fn tick(channel: &Channel) -> Result<Streaming<()>, Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static("/ticker.Ticker/Tick");
    let codec = ProstCodec::<(), ()>::default();
    let response = client.server_streaming(Request::new(()), path, codec).await?;
    Ok(response.into_inner())
}

#[tokio::test]
async fn stream_holds_permit_until_end_or_disconnect() {
    let limits = Limiter::in_process().build();
    let policy = at_once(1);
    let ticker = Ticker::default();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder()
        .layer(ConcurrencyLimitLayer::new(&limits, &policy).key(|_: &http::Request<tonic::body::Body>| "all"))
        .add_service(ticker.clone())
        .serve_with_incoming(TcpListenerStream::new(listener));
    let server = tokio::spawn(server);
    let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
    let channel = endpoint.connect().await.unwrap();

    for status in [None, Some(Status::internal("broken"))] {
        let mut stream = tick(&channel).await.unwrap();
        let ticks = ticker.0.lock().unwrap().pop().unwrap();
        for _ in 0..3 {
            ticks.send(Ok(())).unwrap();
            assert_eq!(stream.message().await.unwrap(), Some(()));
            let denied = tick(&channel).await.unwrap_err();
            assert_eq!(denied.code(), Code::ResourceExhausted);
            assert_eq!(denied.message(), "too many requests at once");
        }
        let code = status.as_ref().map(Status::code);
        if let Some(status) = status {
            ticks.send(Err(status)).unwrap();
        }
        drop(ticks);
        let end = stream.message().await;
        assert_eq!(end.err().map(|status| status.code()), code);
        assert_eq!(remaining(&limits, &policy, "all").await, 1);
    }

    let stream = tick(&channel).await.unwrap();
    assert_eq!(remaining(&limits, &policy, "all").await, 0);
    drop(stream);
    let leaves = async {
        while remaining(&limits, &policy, "all").await == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), leaves)
        .await
        .unwrap();
    server.abort();
}

#[cfg(feature = "tonic")]
#[test]
fn tonic_service_name_is_forwarded() {
    use limiter_tower::{ConcurrencyLimit, key};

    assert_eq!(
        <ConcurrencyLimit<Ticker, key::Global> as NamedService>::NAME,
        "ticker.Ticker"
    );
}
