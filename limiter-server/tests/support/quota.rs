//! Envoys that share a budget, and a blocking client of the quota service.

use std::net::SocketAddr;

use limiter_server::gateway::quota::messages::{QuotaResponse, UsageReports};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::access;
use super::envoy::Envoy;

const CONFIGURATION: &str = include_str!("../../../docs/guide/rlqs.yaml");
/// The policies of the configuration.
pub(crate) const POLICIES: &str = include_str!("../../../docs/guide/rlqs.toml");
/// The address of the server in the configuration.
const ENDPOINT: &str = "socket_address: { address: 127.0.0.1, port_value: 8081 }";
const PATH: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

/// Starts a proxy with the configuration of the guide, in front of these nodes.
pub(crate) fn envoy(nodes: &[SocketAddr], edits: &[(&str, &str)]) -> Envoy {
    let endpoints: Vec<String> = nodes
        .iter()
        .map(|node| {
            format!(
                "socket_address: {{ address: 127.0.0.1, port_value: {} }}",
                node.port()
            )
        })
        .collect();
    let separator = "\n              - endpoint:\n                  address:\n                    ";
    let endpoints = endpoints.join(separator);
    let edits = [&[(ENDPOINT, &*endpoints)], edits].concat();
    // No port of the configuration is that of a node any more.
    let configuration = CONFIGURATION.replace("port_value: 8081", "port_value: 08081");
    let edits: Vec<(String, String)> = edits
        .into_iter()
        .map(|(from, to)| {
            (
                from.replace("port_value: 8081", "port_value: 08081"),
                to.to_owned(),
            )
        })
        .collect();
    let edits: Vec<(&str, &str)> = edits.iter().map(|(from, to)| (&**from, &**to)).collect();
    Envoy::start_with(&configuration, nodes[0], &edits)
}

/// A stream of the quota service.
#[derive(Debug)]
pub(crate) struct QuotaClient {
    runtime: Runtime,
    reports: mpsc::Sender<UsageReports>,
    responses: Streaming<QuotaResponse>,
}

impl QuotaClient {
    /// Opens a stream with a first report.
    pub(crate) fn open(
        address: SocketAddr,
        token: Option<&str>,
        first: UsageReports,
    ) -> Result<Self, Status> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let (reports, sent) = mpsc::channel(16);
        let responses = runtime.block_on(async {
            let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
            let channel = endpoint.connect().await.expect("a connection");
            let mut grpc = Grpc::new(channel);
            grpc.ready().await.expect("ready");
            reports.send(first).await.expect("an open stream");
            let mut request = Request::new(ReceiverStream::new(sent));
            if let Some(secret) = token {
                let value = access::bearer(secret).parse().expect("ASCII");
                request.metadata_mut().insert("authorization", value);
            }
            let codec: ProstCodec<UsageReports, QuotaResponse> = ProstCodec::default();
            let answer = grpc
                .streaming(request, PATH.parse().expect("a path"), codec)
                .await?;
            Ok::<_, Status>(answer.into_inner())
        })?;
        Ok(Self {
            runtime,
            reports,
            responses,
        })
    }

    /// Sends a report.
    pub(crate) fn report(&self, report: UsageReports) {
        self.runtime
            .block_on(self.reports.send(report))
            .expect("an open stream");
    }

    /// The next response; an error if the stream has ended.
    pub(crate) fn response(&mut self) -> Result<QuotaResponse, Status> {
        // A timer belongs to the runtime in which it is created.
        let _entered = self.runtime.enter();
        let next = tokio::time::timeout(std::time::Duration::from_secs(20), self.responses.message());
        let next = self.runtime.block_on(next);
        let next = next.expect("a response within 20 s")?;
        next.ok_or_else(|| Status::cancelled("the stream has ended"))
    }
}
