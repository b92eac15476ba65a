//! The gRPC service, written by hand so that building needs no protobuf compiler.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::extract::ConnectInfo;
use http_body_util::BodyExt;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, Bytes, Service, StdError, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::access::Client;
use crate::gateway::envoy::messages::{RateLimitRequest, RateLimitResponse};
use crate::gateway::envoy::status_of_denial;
use crate::gateway::{Gateway, credentials};

/// The name of the service.
pub const RATE_LIMIT_SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The rate limit service in front of a gateway.
#[derive(Clone, Debug)]
pub struct RateLimitServer {
    gateway: Gateway,
}

impl RateLimitServer {
    /// A service for this gateway.
    #[must_use]
    pub fn new(gateway: Gateway) -> Self {
        Self { gateway }
    }
}

impl NamedService for RateLimitServer {
    const NAME: &'static str = RATE_LIMIT_SERVICE;
}

struct ShouldRateLimit {
    gateway: Gateway,
    client: Client,
    peer: Option<IpAddr>,
}

impl UnaryService<RateLimitRequest> for ShouldRateLimit {
    type Response = RateLimitResponse;
    type Future = BoxFuture<Result<Response<RateLimitResponse>, Status>>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let (gateway, client, peer) = (self.gateway.clone(), self.client.clone(), self.peer);
        Box::pin(async move {
            let Some(_place) = gateway.admission().begin_call() else {
                return Err(Status::unavailable(
                    "too many calls are in flight; retry after a pause",
                ));
            };
            let request = request.into_inner();
            let response = gateway.rate_limit_of_peer(&client, peer, request).await?;
            Ok(Response::new(response))
        })
    }
}

impl<B> Service<http::Request<B>> for RateLimitServer
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
        if request.uri().path() != SHOULD_RATE_LIMIT {
            return Box::pin(async {
                let status = Status::new(Code::Unimplemented, "the service has the method ShouldRateLimit");
                Ok(status.into_http())
            });
        }
        // Invalid clients are refused before their messages are read.
        let client = credentials::client(request.headers(), request.extensions());
        if let Err(denial) = self.gateway.access().validate(&client) {
            return Box::pin(async move { Ok(status_of_denial(&denial).into_http()) });
        }
        let gateway = self.gateway.clone();
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let method = ShouldRateLimit {
            gateway: gateway.clone(),
            client,
            peer: peer.map(|peer| peer.0.ip()),
        };
        let max = gateway.limits().max_message_bytes;
        let request = gateway.admission().limit_body(request);
        let request = request.map(|body| body.map_err(Status::from));
        Box::pin(async move {
            let codec: ProstCodec<RateLimitResponse, RateLimitRequest> = ProstCodec::default();
            let mut grpc = Grpc::new(codec).apply_max_message_size_config(Some(max), None);
            Ok(grpc.unary(method, request).await)
        })
    }
}
