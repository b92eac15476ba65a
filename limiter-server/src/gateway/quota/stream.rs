//! One stream of an Envoy: reports become demands, and buckets become subscriptions of budgets.
//!
//! A report names the domain and the usage of buckets. For each bucket, the stream finds the rule
//! and its policy, and requires the scope `check` at every report, so a revoked client ends its
//! stream at the next report. A bucket whose rule changed leaves its budget and subscribes to
//! another one.
//!
//! Invariants: a stream has one domain and at most `MAX_BUCKETS` buckets with at most
//! `MAX_ID_BYTES` of ids and domains, which end with it; the service bounds the bytes of all
//! streams. Tests: below, `tests/quota_streams.rs`, `tests/quota_usage.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message as _;
use tokio::task::coop::consume_budget;
use tokio::time::Instant;
use tonic::Status;

use crate::access::{Action, Client, Target};
use crate::gateway::Gateway;
use crate::gateway::admission::HeldBytes;
use crate::gateway::envoy::status_of_denial;
use crate::gateway::quota::lease;
use crate::gateway::quota::messages::{BucketId, BucketUsage, UsageReports};
use crate::gateway::quota::reported::ReportedCalls;
use crate::gateway::quota::service::Subscription;
use crate::gateway::quota::subscriber::{ResponseSender, StreamBucket, UnreadLimit};

/// The largest number of buckets of a stream. Further buckets get no assignments.
const MAX_BUCKETS: usize = 1_000;
/// The largest number of bytes of their ids, as encoded, each with the domain: the clients of an
/// Envoy can choose the values, and the server keeps each id and the domain several times.
const MAX_ID_BYTES: usize = 1_024 * 1_024;
/// The bytes of a bucket without its id, and of a stream without buckets, rounded up.
const BUCKET_BYTES: usize = 512;
const STREAM_BYTES: usize = 4 * 1_024;

/// The state of a stream. Its buckets end when it is dropped.
#[derive(Debug)]
pub(crate) struct QuotaStream {
    gateway: Gateway,
    client: Client,
    peer: String,
    responses: ResponseSender,
    unread: UnreadLimit,
    domain: String,
    /// The buckets, with the times of their last reports.
    buckets: BTreeMap<Arc<BucketId>, (Subscription, Instant)>,
    /// The bytes of their ids, each with the domain.
    id_bytes: usize,
    /// The bytes of the stream and of its buckets.
    held: HeldBytes,
}

impl QuotaStream {
    /// Opens a stream without buckets.
    ///
    /// # Errors
    ///
    /// RESOURCE_EXHAUSTED if the node has too many streams and buckets.
    pub(crate) fn open(
        gateway: Gateway,
        client: Client,
        peer: String,
        responses: ResponseSender,
    ) -> Result<Self, Status> {
        let mut held = gateway.quota().hold_bytes();
        if !held.take(STREAM_BYTES) {
            return Err(too_many_streams());
        }
        metrics::gauge!("limiter_server_quota_streams").increment(1.0);
        Ok(Self {
            unread: UnreadLimit::new(gateway.quota().unread()),
            gateway,
            client,
            peer,
            responses,
            domain: String::new(),
            buckets: BTreeMap::new(),
            id_bytes: 0,
            held,
        })
    }

    /// Returns the bytes of a bucket in the limit of the stream.
    fn bytes_of(&self, id: &BucketId) -> usize {
        id.encoded_len() + self.domain.len()
    }

    fn fits(&self, bytes: usize) -> bool {
        self.buckets.len() < MAX_BUCKETS && self.id_bytes + bytes <= MAX_ID_BYTES
    }

    /// Removes the buckets that their budgets have abandoned, because no report followed.
    fn remove_abandoned(&mut self) {
        let is_abandoned =
            |(_, (subscription, _)): &(&Arc<BucketId>, &(Subscription, Instant))| !subscription.is_open();
        let abandoned = self.buckets.iter().filter(is_abandoned);
        let abandoned: Vec<Arc<BucketId>> = abandoned.map(|(id, _)| Arc::clone(id)).collect();
        abandoned.iter().for_each(|id| self.remove(id));
    }

    fn remove(&mut self, id: &BucketId) {
        if self.buckets.remove(id).is_some() {
            let bytes = self.bytes_of(id);
            self.id_bytes -= bytes;
            self.held.give(bytes + BUCKET_BYTES);
        }
    }

    /// Applies a report.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT for a malformed report, UNAUTHENTICATED and PERMISSION_DENIED for a client
    /// without the scopes, RESOURCE_EXHAUSTED for a client that does not read its responses: its
    /// assignments are not renewed, and its shares would not become free; and for the domain of a
    /// stream above the limit of the node.
    pub(crate) async fn report(&mut self, reports: UsageReports) -> Result<(), Status> {
        if self.responses.capacity() == 0 || self.unread.is_exceeded() {
            return Err(Status::resource_exhausted(
                "the responses of the stream are not read, expected a client that reads them",
            ));
        }
        if !reports.domain.is_empty() {
            if !self.domain.is_empty() && self.domain != reports.domain {
                return Err(Status::invalid_argument(
                    "the domain differs from that of the first report",
                ));
            }
            if self.domain.is_empty() && !self.held.take(reports.domain.len()) {
                return Err(too_many_streams());
            }
            self.domain = reports.domain;
        }
        if self.domain.is_empty() {
            return Err(Status::invalid_argument("the first report has no domain"));
        }
        for usage in reports.usages {
            // A message can have a hundred thousand of them, for which other calls do not wait.
            consume_budget().await;
            self.report_bucket(usage)?;
        }
        Ok(())
    }

    fn report_bucket(&mut self, usage: BucketUsage) -> Result<(), Status> {
        let now = Instant::now();
        let reported_at = usage.bucket_id.as_ref().and_then(|id| self.buckets.get(id));
        let measured = reported_at.map(|(_, at)| now.duration_since(*at));
        let calls = ReportedCalls::of(&usage, measured);
        let id = usage.bucket_id.filter(|id| !id.entries.is_empty());
        let id = id.ok_or_else(|| Status::invalid_argument("the usage of a bucket has no bucket id"))?;
        metrics::counter!("limiter_server_quota_reports_total").increment(1);
        let entries: Vec<(&str, &str)> = id.entries.iter().map(|(key, value)| (&**key, &**value)).collect();
        let gateway = &self.gateway.clone();
        let rules = gateway.policies().rules(gateway.limiter());
        let matched = rules.find(&self.domain, &entries);
        let target = Target {
            policy: matched.as_ref().map(|matched| &*matched.policy),
            ..Target::domain(&self.domain)
        };
        let target = target.in_registry(gateway.limiter().registry());
        gateway
            .access()
            .may(&self.client, Action::Check, &target)
            .map_err(|denial| status_of_denial(&denial))?;
        if let Some((subscription, reported_at)) = self.buckets.get_mut(&id) {
            *reported_at = now;
            // A change of the rules can lead to another budget, or to none.
            let of = matched.as_ref();
            let is_same = of.is_some_and(|of| subscription.is_of(&of.policy, &of.key));
            if is_same && subscription.report(calls) {
                return Ok(());
            }
            self.remove(&id);
            if calls.demand() == 0 {
                return Ok(());
            }
        }
        let found = matched.and_then(|matched| {
            let policy = gateway
                .policies()
                .policy(gateway.limiter(), &matched.policy, &matched.key)?;
            Some((policy, matched))
        });
        let Some((policy, matched)) = found else {
            gateway.unmatched().record(&self.domain, &entries);
            return Ok(());
        };
        if lease::budget(&policy).is_none() {
            tracing::debug!(
                policy = policy.name(),
                "the quota service cannot divide a policy without tokens"
            );
            metrics::counter!("limiter_server_quota_actions_total", "kind" => "unsupported").increment(1);
            return Ok(());
        }
        let bytes = self.bytes_of(&id);
        if !self.fits(bytes) {
            self.remove_abandoned();
        }
        if !self.fits(bytes) || !self.held.take(bytes + BUCKET_BYTES) {
            metrics::counter!("limiter_server_quota_actions_total", "kind" => "too_many").increment(1);
            return Ok(());
        }
        let id = Arc::new(id);
        let bucket = StreamBucket {
            domain: self.domain.clone(),
            id: Arc::clone(&id),
            peer: self.peer.clone(),
            responses: self.responses.clone(),
            unread: self.unread.clone(),
        };
        let quota = gateway.quota();
        match quota.subscribe(&matched.policy, &matched.key, &bucket, calls) {
            Some(subscription) => {
                self.buckets.insert(id, (subscription, now));
                self.id_bytes += bytes;
            }
            None => self.held.give(bytes + BUCKET_BYTES),
        }
        Ok(())
    }
}

fn too_many_streams() -> Status {
    Status::resource_exhausted(
        "the quota streams of this node occupy too much memory, expected fewer streams or buckets",
    )
}

impl Drop for QuotaStream {
    fn drop(&mut self) {
        metrics::gauge!("limiter_server_quota_streams").decrement(1.0);
    }
}

#[cfg(test)]
mod tests {
    use limiter_core::Limiter;
    use limiter_core::registry::PolicyRegistry;
    use tokio::sync::mpsc;
    use tonic::Code;

    use super::*;
    use crate::gateway::quota::subscriber::StreamAction;
    use crate::gateway::readiness::Readiness;
    use crate::settings::Settings;

    fn report(entries: &[(&str, &str)]) -> UsageReports {
        let entries = entries
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let usage = BucketUsage {
            bucket_id: Some(BucketId {
                entries: entries.collect(),
            }),
            allowed: 1,
            ..BucketUsage::default()
        };
        UsageReports {
            domain: "edge".to_owned(),
            usages: vec![usage],
        }
    }

    /// A gateway with the policy `p`.
    fn gateway(name: &str) -> Gateway {
        let policy = limiter_core::Policy::token_bucket("p").capacity(10).rate("10/s");
        let registry = PolicyRegistry::new().with(policy.build().unwrap());
        let limiter = Limiter::in_process().registry(&registry).build();
        let file = format!("limiter-quota-stream-{name}-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(file);
        std::fs::write(&path, "policies = 'policies.toml'\n").unwrap();
        let settings = Settings::of_file(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        Gateway::new(limiter, &settings, Readiness::new(true))
    }

    type Unread = mpsc::Receiver<Result<StreamAction, Status>>;

    fn open(gateway: &Gateway, places: usize) -> (QuotaStream, Unread) {
        let (responses, unread) = mpsc::channel(places);
        let stream = QuotaStream::open(gateway.clone(), Client::Anonymous, "peer".to_owned(), responses);
        (stream.unwrap(), unread)
    }

    /// A stream whose responses have this number of places.
    fn stream(name: &str, places: usize) -> (QuotaStream, Unread) {
        open(&gateway(name), places)
    }

    /// Reports buckets with ids of 100 kB.
    async fn report_large_ids(stream: &mut QuotaStream, count: usize) {
        for number in 0..count {
            let user = format!("{number}{}", "x".repeat(100_000));
            stream
                .report(report(&[("generic_key", "p"), ("user", &user)]))
                .await
                .unwrap();
        }
    }

    #[tokio::test]
    async fn stream_that_does_not_read_its_responses_ends() {
        let (mut stream, mut unread) = stream("unread", 1);
        let report = || report(&[("generic_key", "p")]);
        stream.report(report()).await.unwrap();
        // The assignment occupies the only place.
        while stream.responses.capacity() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            stream.report(report()).await.unwrap_err().code(),
            Code::ResourceExhausted
        );
        assert!(unread.recv().await.is_some());
        stream.report(report()).await.unwrap();
    }

    #[tokio::test]
    async fn long_report_does_not_delay_other_tasks() {
        let (mut stream, _unread) = stream("long", 1_024);
        let mut reports = report(&[("unknown", "x")]);
        reports.usages = vec![reports.usages[0].clone(); 10_000];
        let other = tokio::spawn(std::future::ready(()));
        stream.report(reports).await.unwrap();
        assert!(other.is_finished());
    }

    /// A stream can leave many of them unread.
    #[tokio::test]
    async fn actions_of_a_bucket_share_its_id() {
        let (mut stream, mut unread) = stream("shared", 1_024);
        report_large_ids(&mut stream, 1).await;
        let action = unread.recv().await.unwrap().unwrap();
        let id = stream.buckets.keys().next().unwrap();
        assert!(Arc::ptr_eq(&action.id, id));
    }

    /// Clients of an Envoy can choose the values of its buckets.
    #[tokio::test]
    async fn ids_of_the_buckets_of_a_stream_are_bounded_together() {
        let (mut stream, _unread) = stream("ids", 1_024);
        report_large_ids(&mut stream, 20).await;
        assert_eq!(stream.buckets.len(), 10);
        stream
            .report(report(&[("generic_key", "p"), ("user", "ann")]))
            .await
            .unwrap();
        assert_eq!(stream.buckets.len(), 11, "a short id has a place");
    }

    #[tokio::test(start_paused = true)]
    async fn bucket_that_was_abandoned_has_no_place() {
        let (mut stream, mut unread) = stream("abandoned", 1_024);
        tokio::spawn(async move { while unread.recv().await.is_some() {} });
        report_large_ids(&mut stream, 10).await;
        // Buckets without a report are abandoned after two minutes.
        tokio::time::sleep(std::time::Duration::from_secs(150)).await;
        let user = "y".repeat(100_000);
        let other = report(&[("generic_key", "p"), ("user", &user)]);
        stream.report(other).await.unwrap();
        assert_eq!(stream.buckets.len(), 1);
        assert!(stream.id_bytes < 101_000, "{}", stream.id_bytes);
    }

    /// Each bucket keeps the domain.
    #[tokio::test]
    async fn domain_counts_for_each_bucket_of_a_stream() {
        let (mut stream, _unread) = stream("domain", 1_024);
        for number in 0..20 {
            let reports = UsageReports {
                domain: "d".repeat(100_000),
                ..report(&[("generic_key", "p"), ("user", &number.to_string())])
            };
            stream.report(reports).await.unwrap();
        }
        assert_eq!(stream.buckets.len(), 10);
    }

    #[tokio::test]
    async fn buckets_of_all_streams_are_bounded_together() {
        let gateway = gateway("total");
        let mut streams: Vec<(QuotaStream, Unread)> = Vec::new();
        for _ in 0..40 {
            let (mut stream, unread) = open(&gateway, 1_024);
            report_large_ids(&mut stream, 10).await;
            streams.push((stream, unread));
        }
        let buckets = || streams.iter().map(|(stream, _)| stream.buckets.len());
        let all: usize = buckets().sum();
        assert!((320..340).contains(&all), "{all}");
        assert_eq!(buckets().min(), Some(0));
        // The places of a stream are free after its end.
        streams.truncate(30);
        let (mut stream, _unread) = open(&gateway, 1_024);
        report_large_ids(&mut stream, 10).await;
        assert_eq!(stream.buckets.len(), 10);
    }
}
