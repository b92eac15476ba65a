//! The gRPC method of the quota service, written by hand so that building needs no protobuf
//! compiler.
//!
//! The service refuses invalid clients before it reads their messages. A task for each stream
//! applies the reports in their order to a `QuotaStream`, until the client leaves, a report is
//! invalid, or the server shuts down. A stream has a channel of `MAX_UNREAD` responses; responses
//! beyond it are lost.
//!
//! Tests: `tests/quota_streams.rs`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use axum::extract::ConnectInfo;
use futures_util::stream::{Map, StreamExt as _};
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, Bytes, Service, StdError, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::access::Client;
use crate::gateway::envoy::rpc::BoxFuture;
use crate::gateway::envoy::status_of_denial;
use crate::gateway::quota::messages::{QuotaResponse, UsageReports};
use crate::gateway::quota::stream::QuotaStream;
use crate::gateway::quota::subscriber::{ResponseSender, StreamAction};
use crate::gateway::readiness::ReadinessState;
use crate::gateway::{Gateway, credentials};

/// The name of the service.
pub const RATE_LIMIT_QUOTA_SERVICE: &str = "envoy.service.rate_limit_quota.v3.RateLimitQuotaService";
const STREAM_QUOTAS: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
/// The number of responses that a stream may have to read.
const MAX_UNREAD: usize = 2_048;

/// The responses of a stream. An action becomes a message when the stream reads it.
type Responses = Map<
    ReceiverStream<Result<StreamAction, Status>>,
    fn(Result<StreamAction, Status>) -> Result<QuotaResponse, Status>,
>;

/// The quota service in front of a gateway.
#[derive(Clone, Debug)]
pub struct QuotaServer {
    gateway: Gateway,
}

impl QuotaServer {
    /// Creates a service for this gateway.
    #[must_use]
    pub fn new(gateway: Gateway) -> Self {
        Self { gateway }
    }
}

impl NamedService for QuotaServer {
    const NAME: &'static str = RATE_LIMIT_QUOTA_SERVICE;
}

struct StreamQuotas {
    gateway: Gateway,
    client: Client,
    peer: String,
}

impl StreamingService<UsageReports> for StreamQuotas {
    type Response = QuotaResponse;
    type ResponseStream = Responses;
    type Future = BoxFuture<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<UsageReports>>) -> Self::Future {
        let (responses, unread) = mpsc::channel(MAX_UNREAD);
        let (gateway, client, peer) = (self.gateway.clone(), self.client.clone(), self.peer.clone());
        Box::pin(async move {
            if !gateway.readiness().is_ready() {
                return Err(Status::unavailable(
                    "the server has no policies yet or is shutting down",
                ));
            }
            let stream = QuotaStream::open(gateway.clone(), client, peer, responses.clone())?;
            tokio::spawn(async move {
                let read = read_reports(gateway, stream, request.into_inner(), &responses);
                if let Err(status) = read.await {
                    // The client has left if this fails.
                    let _ = responses.send(Err(status)).await;
                }
            });
            let responses: Responses =
                ReceiverStream::new(unread).map(|action| action.map(QuotaResponse::from));
            Ok(Response::new(responses))
        })
    }
}

/// Applies the reports of a stream until it ends, or the server shuts down.
async fn read_reports(
    gateway: Gateway,
    mut stream: QuotaStream,
    mut reports: Streaming<UsageReports>,
    responses: &ResponseSender,
) -> Result<(), Status> {
    let mut states = gateway.readiness().subscribe();
    loop {
        let report = tokio::select! {
            report = reports.message() => report?,
            () = responses.closed() => None,
            _ = states.wait_for(|state| *state == ReadinessState::Ending) => {
                return Err(Status::unavailable("the server is shutting down"));
            }
        };
        match report {
            Some(report) => stream.report(report).await?,
            None => return Ok(()),
        }
    }
}

impl<B> Service<http::Request<B>> for QuotaServer
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        if request.uri().path() != STREAM_QUOTAS {
            return Box::pin(async {
                let detail = "the service has the method StreamRateLimitQuotas";
                Ok(Status::new(Code::Unimplemented, detail).into_http())
            });
        }
        // Invalid clients are refused before their messages are read.
        let client = credentials::client(request.headers(), request.extensions());
        if let Err(denial) = self.gateway.access().validate(&client) {
            return Box::pin(async move { Ok(status_of_denial(&denial).into_http()) });
        }
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let method = StreamQuotas {
            gateway: self.gateway.clone(),
            client,
            peer: peer.map_or_else(|| "unix socket".to_owned(), |peer| peer.0.to_string()),
        };
        let max = self.gateway.limits().max_message_bytes;
        let request = request.map(|body| body.map_err(|error| Status::from_error(error.into())));
        Box::pin(async move {
            let codec: ProstCodec<QuotaResponse, UsageReports> = ProstCodec::default();
            let mut grpc = Grpc::new(codec).apply_max_message_size_config(Some(max), None);
            Ok(grpc.streaming(method, request).await)
        })
    }
}
