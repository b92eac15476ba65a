//! The gRPC listener: the rate limit service, health and reflection.

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::gateway::Gateway;
use crate::gateway::envoy::file_descriptor::file_descriptor_set;
use crate::gateway::envoy::{RATE_LIMIT_SERVICE, RateLimitServer};
use crate::gateway::readiness::ReadinessState;

/// Serves gRPC until `end` is true, then finishes the requests in flight.
///
/// # Errors
///
/// The reason why the listener failed.
pub async fn serve(
    gateway: Gateway,
    listener: TcpListener,
    mut end: watch::Receiver<bool>,
) -> Result<(), String> {
    let (health, health_service) = tonic_health::server::health_reporter();
    let reporting = tokio::spawn(report_health(gateway.clone(), health));
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_file_descriptor_set(file_descriptor_set())
        .build_v1()
        .map_err(|error| format!("cannot describe the gRPC services: {error}"))?;
    let ended = async move {
        // An error means that the sender is gone, which is an end as well.
        let _ = end.wait_for(|end| *end).await;
    };
    let served = Server::builder()
        .add_service(RateLimitServer::new(gateway))
        .add_service(health_service)
        .add_service(reflection)
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), ended)
        .await;
    reporting.abort();
    served.map_err(|error| format!("the gRPC listener failed: {error}"))
}

/// Keeps the health service in agreement with the readiness of the gateway.
async fn report_health(gateway: Gateway, health: HealthReporter) {
    let mut states = gateway.readiness().subscribe();
    loop {
        let status = match *states.borrow_and_update() {
            ReadinessState::Ready => ServingStatus::Serving,
            ReadinessState::WaitsForPolicies | ReadinessState::Ending => ServingStatus::NotServing,
        };
        for service in ["", RATE_LIMIT_SERVICE] {
            health.set_service_status(service, status).await;
        }
        if states.changed().await.is_err() {
            return;
        }
    }
}
