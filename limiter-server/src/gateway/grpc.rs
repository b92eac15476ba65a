//! The gRPC listener: the rate limit service, the quota service, health and reflection.
//!
//! Calls of the rate limit service go directly to their handler, because axum's router boxes each
//! request several times. The router serves all other paths. A task copies the readiness of the
//! gateway to the health of each service. At the end it also ends the streams that follow the
//! health. Streams that their clients keep open would delay the shutdown, so `ending` ends them.
//! Health and reflection have no access check, so their messages are short.
//!
//! Tests: `tests/rate_limit_service.rs`, `tests/grpcio.rs`, `tests/lifecycle.rs`,
//! `tests/attacks.rs`.

mod ending;

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower::Service;

use crate::gateway::Gateway;
use crate::gateway::envoy::file_descriptor::file_descriptor_set;
use crate::gateway::envoy::rpc::BoxFuture;
use crate::gateway::envoy::{RATE_LIMIT_SERVICE, RateLimitServer, SHOULD_RATE_LIMIT};
use crate::gateway::grpc::ending::{EndingBody, until_end};
#[cfg(feature = "rlqs")]
use crate::gateway::quota::file_descriptor::quota_file_descriptor_set;
#[cfg(feature = "rlqs")]
use crate::gateway::quota::rpc::{QuotaServer, RATE_LIMIT_QUOTA_SERVICE};
use crate::gateway::readiness::ReadinessState;
use crate::listener::http::HttpVersions;
use crate::listener::{self, Listener};

/// The largest message of health and reflection in bytes: each request contains one name.
const MAX_NAME_BYTES: usize = 4 * 1_024;

/// The services whose health is reported; the first name is that of the whole server.
const SERVICES: &[&str] = &[
    "",
    RATE_LIMIT_SERVICE,
    #[cfg(feature = "rlqs")]
    RATE_LIMIT_QUOTA_SERVICE,
];

/// Serves gRPC until `end` is true, then finishes the requests in flight.
///
/// # Errors
///
/// The reason why the services cannot be described.
pub async fn serve(gateway: Gateway, listener: Listener, end: watch::Receiver<bool>) -> Result<(), String> {
    let (health, health_service) = tonic_health::server::health_reporter();
    let mut states = gateway.readiness().subscribe();
    // Before the first connection, which would not find the services.
    report_health(&health, &mut states).await;
    let reporting = tokio::spawn(follow_readiness(states, health));
    let described = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_file_descriptor_set(file_descriptor_set());
    #[cfg(feature = "rlqs")]
    let described = described.register_file_descriptor_set(quota_file_descriptor_set());
    let reflection = described
        .build_v1()
        .map_err(|error| format!("cannot describe the gRPC services: {error}"))?;
    let health_service = health_service.max_decoding_message_size(MAX_NAME_BYTES);
    let reflection = reflection.max_decoding_message_size(MAX_NAME_BYTES);
    let routes = Routes::new(health_service).add_service(reflection);
    #[cfg(feature = "rlqs")]
    let routes = routes.add_service(QuotaServer::new(gateway.clone()));
    let services = GrpcServices {
        rate_limit: RateLimitServer::new(gateway),
        others: routes.into_axum_router(),
        end: end.clone(),
    };
    listener::http::serve(listener, HttpVersions::Http2, services, end).await;
    reporting.abort();
    Ok(())
}

/// The services by their paths. The most frequent call does not pass the router, which boxes each
/// request several times.
#[derive(Clone)]
struct GrpcServices {
    rate_limit: RateLimitServer,
    /// The services whose calls a client can keep open.
    others: Router,
    end: watch::Receiver<bool>,
}

impl Service<Request<Incoming>> for GrpcServices {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Both services are always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        match request.uri().path() {
            SHOULD_RATE_LIMIT => self.rate_limit.call(request),
            _ => {
                let request = request.map(|body| EndingBody::new(body, self.end.clone()));
                Box::pin(until_end(self.others.call(request), self.end.clone()))
            }
        }
    }
}

/// Keeps the health service in agreement with the readiness of the gateway.
async fn follow_readiness(mut states: watch::Receiver<ReadinessState>, health: HealthReporter) {
    while states.changed().await.is_ok() {
        report_health(&health, &mut states).await;
    }
}

/// Reports the current state of the gateway as the health of all services. The end of the gateway
/// also ends the streams of clients that follow the health, which would delay the shutdown.
async fn report_health(health: &HealthReporter, states: &mut watch::Receiver<ReadinessState>) {
    let state = *states.borrow_and_update();
    let status = match state {
        ReadinessState::Ready => ServingStatus::Serving,
        ReadinessState::WaitsForPolicies | ReadinessState::Ending => ServingStatus::NotServing,
    };
    let mut health = health.clone();
    for service in SERVICES {
        health.set_service_status(*service, status).await;
        if state == ReadinessState::Ending {
            // A stream sends the last status and ends with its entry. Later checks find the new
            // entry. A check between the two calls answers NOT_FOUND, which a probe counts as not
            // serving too.
            health.clear_service_status(service).await;
            health.set_service_status(*service, status).await;
        }
    }
}
