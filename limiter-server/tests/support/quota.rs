//! Envoys that share a budget, and a blocking client of the quota service.

use std::net::SocketAddr;

use limiter_server::gateway::quota::messages::{
    BucketId, BucketUsage, QuotaAction, QuotaResponse, StrategyKind, TokenBucket, UsageReports,
};
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

/// A bucket id with these entries.
pub(crate) fn bucket_id(entries: &[(&str, &str)]) -> BucketId {
    let entries = entries
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    BucketId {
        entries: entries.collect(),
    }
}

/// A report of the domain `edge` with the calls of five seconds.
pub(crate) fn calls(id: BucketId, allowed: u64, denied: u64) -> UsageReports {
    UsageReports {
        domain: "edge".to_owned(),
        usages: vec![BucketUsage {
            bucket_id: Some(id),
            time_elapsed: Some(prost_types::Duration { seconds: 5, nanos: 0 }),
            allowed,
            denied,
        }],
    }
}

/// The rate of a bucket per second.
pub(crate) fn rate(bucket: &TokenBucket) -> f64 {
    let interval = bucket.fill_interval.expect("an interval");
    f64::from(bucket.tokens_per_fill.expect("a number")) / interval.seconds as f64
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
        // Reports are sent while the test does other things.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
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

    /// Sends a report, unless the server does not read the earlier ones.
    pub(crate) fn try_report(&self, report: UsageReports) {
        let _ = self.reports.try_send(report);
    }

    /// The next action.
    pub(crate) fn action(&mut self) -> (BucketId, QuotaAction) {
        let response = self.response().expect("a response");
        let action = response.actions.into_iter().next().expect("an action");
        (
            action.bucket_id.expect("a bucket id"),
            action.action.expect("an action"),
        )
    }

    /// The strategy of the next assignment.
    pub(crate) fn strategy(&mut self) -> StrategyKind {
        match self.action().1 {
            QuotaAction::Assign(assignment) => {
                assert_eq!(assignment.time_to_live.expect("a time").seconds, 10);
                assignment.strategy.and_then(|of| of.kind).expect("a strategy")
            }
            QuotaAction::Abandon(_) => panic!("the bucket was abandoned"),
        }
    }

    /// The bucket of the next assignment.
    pub(crate) fn token_bucket(&mut self) -> TokenBucket {
        match self.strategy() {
            StrategyKind::TokenBucket(bucket) => bucket,
            other => panic!("{other:?}"),
        }
    }

    /// Reads assignments until one has this strategy.
    pub(crate) fn wait_for(&mut self, expected: impl Fn(&StrategyKind) -> bool) -> StrategyKind {
        for _ in 0..30 {
            let strategy = self.strategy();
            if expected(&strategy) {
                return strategy;
            }
        }
        panic!("no such assignment")
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
