//! One stream of an Envoy: reports become demands, and buckets become subscriptions of budgets.
//!
//! A report names the domain and the usage of buckets. For each bucket, the stream finds the rule
//! and its policy, and requires the scope `check` at every report, so a revoked client ends its
//! stream at the next report. A bucket whose rule changed leaves its budget and subscribes to
//! another one.
//!
//! Invariant: a stream has one domain and at most `MAX_BUCKETS` buckets with at most `MAX_ID_BYTES`
//! of ids, which end with it. Tests: below, `tests/quota_streams.rs`, `tests/quota_usage.rs`.

use std::collections::BTreeMap;

use prost::Message as _;
use tokio::time::Instant;
use tonic::Status;

use crate::access::{Action, Client, Target};
use crate::gateway::Gateway;
use crate::gateway::envoy::status_of_denial;
use crate::gateway::quota::lease;
use crate::gateway::quota::messages::{BucketId, BucketUsage, UsageReports};
use crate::gateway::quota::reported::ReportedCalls;
use crate::gateway::quota::service::Subscription;
use crate::gateway::quota::subscriber::{ResponseSender, StreamBucket};

/// The largest number of buckets of a stream. Further buckets get no assignments.
const MAX_BUCKETS: usize = 1_000;
/// The largest number of bytes of their ids, as encoded: the clients of an Envoy can choose the
/// values, and the server keeps each id several times.
const MAX_ID_BYTES: usize = 1_024 * 1_024;

/// The state of a stream. Its buckets end when it is dropped.
#[derive(Debug)]
pub(crate) struct QuotaStream {
    gateway: Gateway,
    client: Client,
    peer: String,
    responses: ResponseSender,
    domain: String,
    /// The buckets, with the times of their last reports.
    buckets: BTreeMap<BucketId, (Subscription, Instant)>,
    /// The bytes of their ids.
    id_bytes: usize,
}

impl QuotaStream {
    pub(crate) fn new(gateway: Gateway, client: Client, peer: String, responses: ResponseSender) -> Self {
        metrics::gauge!("limiter_server_quota_streams").increment(1.0);
        Self {
            gateway,
            client,
            peer,
            responses,
            domain: String::new(),
            buckets: BTreeMap::new(),
            id_bytes: 0,
        }
    }

    /// Applies a report.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT for a malformed report, UNAUTHENTICATED and PERMISSION_DENIED for a client
    /// without the scopes, RESOURCE_EXHAUSTED for a client that does not read its responses: its
    /// assignments are not renewed, and its shares would not become free.
    pub(crate) fn report(&mut self, reports: UsageReports) -> Result<(), Status> {
        if self.responses.capacity() == 0 {
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
            self.domain = reports.domain;
        }
        if self.domain.is_empty() {
            return Err(Status::invalid_argument("the first report has no domain"));
        }
        for usage in reports.usages {
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
        let gateway = &self.gateway;
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
            self.buckets.remove(&id);
            self.id_bytes -= id.encoded_len();
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
        let id_bytes = self.id_bytes + id.encoded_len();
        if self.buckets.len() >= MAX_BUCKETS || id_bytes > MAX_ID_BYTES {
            metrics::counter!("limiter_server_quota_actions_total", "kind" => "too_many").increment(1);
            return Ok(());
        }
        let bucket = StreamBucket {
            domain: self.domain.clone(),
            id: id.clone(),
            peer: self.peer.clone(),
            responses: self.responses.clone(),
        };
        let quota = gateway.quota();
        if let Some(subscription) = quota.subscribe(&matched.policy, &matched.key, &bucket, calls) {
            self.buckets.insert(id, (subscription, now));
            self.id_bytes = id_bytes;
        }
        Ok(())
    }
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
    use crate::gateway::quota::messages::QuotaResponse;
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

    /// A stream whose responses have this number of places.
    fn stream(name: &str, places: usize) -> (QuotaStream, mpsc::Receiver<Result<QuotaResponse, Status>>) {
        let policy = limiter_core::Policy::token_bucket("p").capacity(10).rate("10/s");
        let registry = PolicyRegistry::new().with(policy.build().unwrap());
        let limiter = Limiter::in_process().registry(&registry).build();
        let file = format!("limiter-quota-stream-{name}-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(file);
        std::fs::write(&path, "policies = 'policies.toml'\n").unwrap();
        let settings = Settings::of_file(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        let gateway = Gateway::new(limiter, &settings, Readiness::new(true));
        let (responses, unread) = mpsc::channel(places);
        let stream = QuotaStream::new(gateway, Client::Anonymous, "peer".to_owned(), responses);
        (stream, unread)
    }

    #[tokio::test]
    async fn stream_that_does_not_read_its_responses_ends() {
        let (mut stream, mut unread) = stream("unread", 1);
        let report = || report(&[("generic_key", "p")]);
        stream.report(report()).unwrap();
        // The assignment occupies the only place.
        while stream.responses.capacity() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            stream.report(report()).unwrap_err().code(),
            Code::ResourceExhausted
        );
        assert!(unread.recv().await.is_some());
        stream.report(report()).unwrap();
    }

    /// Clients of an Envoy can choose the values of its buckets.
    #[tokio::test]
    async fn ids_of_the_buckets_of_a_stream_are_bounded_together() {
        let (mut stream, _unread) = stream("ids", 1_024);
        for number in 0..20 {
            let user = format!("{number}{}", "x".repeat(100_000));
            stream
                .report(report(&[("generic_key", "p"), ("user", &user)]))
                .unwrap();
        }
        assert_eq!(stream.buckets.len(), 10);
        stream
            .report(report(&[("generic_key", "p"), ("user", "ann")]))
            .unwrap();
        assert_eq!(stream.buckets.len(), 11, "a short id has a place");
    }
}
