//! A bucket of a stream in its budget: its demand, its uncounted calls, and the actions for it.
//!
//! The budget calls it for each report and each step. Actions are sent without waiting: a stream
//! that does not read loses them, and its assignment ends by its time to live. The id of the holder
//! is random, since the nodes of the server share one ledger without an allocation of ids.
//!
//! Tests: `tests/quota_streams.rs`, `tests/quota_usage.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use limiter_core::Timestamp;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;

use crate::gateway::admission::{ByteLimit, HeldBytes};
use crate::gateway::quota::bucket::AssignedBucket;
use crate::gateway::quota::lease::TIME_TO_LIVE;
use crate::gateway::quota::ledger::{HolderId, HolderState};
use crate::gateway::quota::messages::{
    BlanketRule, BucketAction, BucketId, QuotaAction, QuotaAssignment, QuotaResponse, Strategy, StrategyKind,
    TokenBucket,
};
use crate::gateway::quota::reported::{ReportedCalls, ShadowBucket};
use crate::gateway::quota::shares::MicroRate;

/// The time without a report after which a bucket is abandoned, and the number of intervals of its
/// reports if these are longer.
const SILENT_AFTER: Duration = Duration::from_secs(120);
const SILENT_INTERVALS: u32 = 3;
/// The bytes of an unread action without the id of its bucket, rounded up.
const ACTION_BYTES: usize = 128;
/// The largest number of bytes of the unread actions of a stream: two for each of its buckets fit.
const MAX_UNREAD_OF_STREAM: usize = 4 * 1_024 * 1_024;

/// An action for a bucket of a stream. All actions of a bucket share its id, because a stream can
/// leave many of them unread.
#[derive(Debug)]
pub(crate) struct StreamAction {
    pub(crate) id: Arc<BucketId>,
    pub(crate) action: QuotaAction,
    /// Its bytes until the stream reads it. An action keeps the id of a bucket that has ended.
    _held: Option<[HeldBytes; 2]>,
}

/// Sends actions to a stream.
pub(crate) type ResponseSender = mpsc::Sender<Result<StreamAction, Status>>;

/// A bucket of a stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamBucket {
    pub(crate) domain: String,
    pub(crate) id: Arc<BucketId>,
    /// The address of the client.
    pub(crate) peer: String,
    pub(crate) responses: ResponseSender,
    pub(crate) unread: UnreadLimit,
}

/// The limits on the bytes of unread actions: of a stream, and of all streams of a node. A stream
/// that does not read must not take the bytes of the others.
#[derive(Clone, Debug)]
pub(crate) struct UnreadLimit {
    stream: ByteLimit,
    node: ByteLimit,
    is_exceeded: Arc<AtomicBool>,
}

impl UnreadLimit {
    /// Creates the limit of a stream.
    pub(crate) fn new(node: ByteLimit) -> Self {
        Self {
            stream: ByteLimit::new(MAX_UNREAD_OF_STREAM),
            node,
            is_exceeded: Arc::default(),
        }
    }

    /// Takes the bytes of an action.
    fn hold(&self, bytes: usize) -> Option<[HeldBytes; 2]> {
        let mut held = [self.stream.hold(), self.node.hold()];
        let [of_stream, of_node] = &mut held;
        if !of_stream.take(bytes) {
            self.is_exceeded.store(true, Ordering::Relaxed);
            return None;
        }
        of_node.take(bytes).then_some(held)
    }

    /// Returns whether the stream has lost an action because it did not read earlier ones.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.is_exceeded.load(Ordering::Relaxed)
    }
}

/// The number of a bucket of a stream in its budget.
pub(crate) type SubscriberId = u64;

/// A bucket of a stream, with its reports.
#[derive(Debug)]
pub(crate) struct Subscriber {
    /// The holder in the ledger. It changes when all calls are allowed or denied for a time,
    /// because the old assignment counts until it ends.
    pub(crate) holder: HolderId,
    pub(crate) bucket: StreamBucket,
    pub(crate) demand: MicroRate,
    /// The calls that are not counted yet.
    pub(crate) reported: ReportedCalls,
    reported_at: Instant,
    /// The interval of the last report.
    interval: Duration,
    idle_reports: u32,
    shadow: ShadowBucket,
}

/// One row of the current assignments.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct QuotaAssignmentRow {
    /// The domain of the stream.
    pub domain: String,
    /// The entries of the bucket, as `key=value`.
    pub bucket: Vec<String>,
    /// The policy.
    pub policy: String,
    /// The address of the Envoy.
    pub peer: String,
    /// `divided`; `shadow`, where all calls are allowed, and the rate and the capacity are those of
    /// the share under enforcement; `allow_all`, `deny_all`, or `waiting` without an assignment.
    pub state: String,
    /// The permits per second of the assignment, in thousandths.
    pub rate_thousandths: u64,
    /// The capacity of the assigned bucket.
    pub permits: u32,
    /// The demand of the last report, in thousandths of permits per second.
    pub demand_thousandths: u64,
    /// The seconds since the first assignment.
    pub age_seconds: u64,
}

/// The state of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShownAssignment {
    Divided,
    Shadow,
    Blanket(BlanketRule),
    Waiting,
}

impl Subscriber {
    /// Creates a bucket with its first report.
    pub(crate) fn new(bucket: StreamBucket, calls: ReportedCalls) -> Self {
        Self {
            holder: random_holder(),
            bucket,
            demand: calls.demand(),
            reported: calls,
            reported_at: Instant::now(),
            interval: calls.time,
            idle_reports: 0,
            shadow: ShadowBucket::default(),
        }
    }

    /// Applies a report. Returns the number of reports without demand in sequence.
    pub(crate) fn report(&mut self, calls: ReportedCalls) -> u32 {
        self.reported.add(calls);
        (self.reported_at, self.interval) = (Instant::now(), calls.time);
        self.demand = calls.demand();
        self.idle_reports = match self.demand {
            0 => self.idle_reports + 1,
            _ => 0,
        };
        self.idle_reports
    }

    /// Returns whether reports are missing, although the stream is open.
    pub(crate) fn is_silent(&self) -> bool {
        let longest = self.interval.saturating_mul(SILENT_INTERVALS).max(SILENT_AFTER);
        self.reported_at.elapsed() > longest
    }

    /// Removes and returns the uncounted calls, with the number of them that the bucket of the
    /// share would deny.
    pub(crate) fn take_reported(&mut self, share: Option<AssignedBucket>) -> (ReportedCalls, u64) {
        let calls = std::mem::take(&mut self.reported);
        (calls, self.shadow.denials(share, calls))
    }

    /// Returns the row of the bucket, with its share and the time of the ledger.
    pub(crate) fn row(
        &self,
        policy: &str,
        shown: ShownAssignment,
        share: Option<(&HolderState, Timestamp)>,
    ) -> QuotaAssignmentRow {
        let shown = match shown {
            ShownAssignment::Divided => "divided",
            ShownAssignment::Shadow => "shadow",
            ShownAssignment::Blanket(BlanketRule::AllowAll) => "allow_all",
            ShownAssignment::Blanket(BlanketRule::DenyAll) => "deny_all",
            ShownAssignment::Waiting => "waiting",
        };
        let entries = self.bucket.id.entries.iter();
        QuotaAssignmentRow {
            domain: self.bucket.domain.clone(),
            bucket: entries.map(|(key, value)| format!("{key}={value}")).collect(),
            policy: policy.to_owned(),
            peer: self.bucket.peer.clone(),
            state: shown.to_owned(),
            rate_thousandths: share.map_or(0, |(of, _)| of.bucket.rate() / 1_000),
            permits: share.map_or(0, |(of, _)| of.bucket.max_tokens),
            demand_thousandths: self.demand / 1_000,
            age_seconds: share.map_or(0, |(of, now)| now.since(of.assigned_at).as_secs()),
        }
    }
}

impl StreamBucket {
    pub(crate) fn assign(&self, kind: StrategyKind) {
        self.send(QuotaAction::Assign(QuotaAssignment {
            time_to_live: Some(seconds(TIME_TO_LIVE.as_secs())),
            strategy: Some(Strategy { kind: Some(kind) }),
        }));
    }

    /// Sends an action. A stream that does not read loses it, and its assignment ends.
    pub(crate) fn send(&self, action: QuotaAction) {
        let held = self.unread.hold(ACTION_BYTES + self.id.encoded_len());
        let fits = held.is_some();
        let action = StreamAction {
            id: Arc::clone(&self.id),
            action,
            _held: held,
        };
        if !fits || self.responses.try_send(Ok(action)).is_err() {
            count("undelivered");
        }
    }
}

impl From<StreamAction> for QuotaResponse {
    fn from(StreamAction { id, action, .. }: StreamAction) -> Self {
        Self {
            actions: vec![BucketAction {
                bucket_id: Some(Arc::unwrap_or_clone(id)),
                action: Some(action),
            }],
        }
    }
}

/// Returns the strategy of an assigned bucket.
pub(crate) fn token_bucket(bucket: AssignedBucket) -> StrategyKind {
    StrategyKind::TokenBucket(TokenBucket {
        max_tokens: bucket.max_tokens,
        tokens_per_fill: Some(bucket.tokens_per_fill),
        fill_interval: Some(seconds(bucket.fill_seconds.into())),
    })
}

fn seconds(seconds: u64) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
        nanos: 0,
    }
}

/// Counts an action that was sent, or a failure.
pub(crate) fn count(kind: &'static str) {
    metrics::counter!("limiter_server_quota_actions_total", "kind" => kind).increment(1);
}

/// Returns a number that no other holder of any node has.
pub(crate) fn random_holder() -> HolderId {
    use std::hash::{BuildHasher, RandomState};
    // The seeds are random for each process, and differ for each instance.
    RandomState::new().hash_one(std::process::id())
}
