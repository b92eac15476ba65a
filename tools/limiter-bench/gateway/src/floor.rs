//! Servers that decide nothing, and the limitador library behind the same gRPC service. Each runs
//! in a process of its own, started by the benchmark.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::routing::post;
use limitador::RateLimiter;
use limitador::limit::Limit;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::messages::{OK, RateLimitRequest, RateLimitResponse};

/// `RateLimitResponse.Code.OVER_LIMIT`.
const OVER_LIMIT: i32 = 2;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Serves until the process is killed.
pub(crate) fn serve(kind: &str) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address: SocketAddr = listener.local_addr().expect("a bound address");
        println!("floor {address}");
        match kind {
            "http" => {
                let answer = || async { axum::Json(serde_json::json!({ "allowed": true })) };
                let router = axum::Router::new().route("/v1/check", post(answer));
                axum::serve(listener, router).await.expect("serves");
            }
            "grpc" => grpc(listener, Decide::Nothing).await,
            "limitador" => grpc(listener, Decide::limitador()).await,
            _ => {
                eprintln!("expected grpc, http or limitador, got `{kind}`");
                return ExitCode::FAILURE;
            }
        }
        ExitCode::SUCCESS
    })
}

async fn grpc(listener: TcpListener, decide: Decide) {
    let server = tonic::transport::Server::builder().add_service(RateLimitServer(decide));
    server
        .serve_with_incoming(TcpListenerStream::new(listener))
        .await
        .expect("serves");
}

/// The decision of the server.
#[derive(Clone)]
enum Decide {
    Nothing,
    Limitador(Arc<RateLimiter>),
}

impl Decide {
    fn limitador() -> Self {
        let limiter = RateLimiter::new(1_000_000);
        let variable = "remote_address".try_into().expect("an expression");
        limiter.add_limit(Limit::new("edge", 1_000_000_000, 60, vec![], vec![variable]));
        Self::Limitador(Arc::new(limiter))
    }

    fn code(&self, request: RateLimitRequest) -> i32 {
        let Self::Limitador(limiter) = self else {
            return OK;
        };
        let entries = request
            .descriptors
            .into_iter()
            .flat_map(|descriptor| descriptor.entries);
        let values: HashMap<String, String> = entries.map(|entry| (entry.key, entry.value)).collect();
        let namespace = request.domain.into();
        match limiter.check_rate_limited_and_update(&namespace, &values.into(), 1) {
            Ok(result) if !result.limited => OK,
            _ => OVER_LIMIT,
        }
    }
}

#[derive(Clone)]
struct RateLimitServer(Decide);

impl NamedService for RateLimitServer {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

struct ShouldRateLimit(Decide);

impl UnaryService<RateLimitRequest> for ShouldRateLimit {
    type Response = RateLimitResponse;
    type Future = std::future::Ready<Result<Response<RateLimitResponse>, Status>>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let overall_code = self.0.code(request.into_inner());
        std::future::ready(Ok(Response::new(RateLimitResponse { overall_code })))
    }
}

impl Service<http::Request<Body>> for RateLimitServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let decide = self.0.clone();
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::<RateLimitResponse, RateLimitRequest>::default());
            Ok(grpc.unary(ShouldRateLimit(decide), request).await)
        })
    }
}
