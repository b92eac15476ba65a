//! The messages of Envoy's quota service v3, as of Envoy 1.40.
//!
//! The names and numbers are those of `envoy/service/rate_limit_quota/v3/rlqs.proto`,
//! `envoy/type/v3/ratelimit_strategy.proto` and `envoy/type/v3/token_bucket.proto`.
//! `tests/quota_messages.rs` compares them with an independent implementation.

use std::collections::BTreeMap;

use prost::{Enumeration, Message, Oneof};
use prost_types::Duration;

/// The usage of buckets since the last report of a stream.
#[derive(Clone, PartialEq, Message)]
pub struct UsageReports {
    /// The domain; the first report of a stream has it.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The usage of each bucket.
    #[prost(message, repeated, tag = "2")]
    pub usages: Vec<BucketUsage>,
}

/// The usage of one bucket.
#[derive(Clone, PartialEq, Message)]
pub struct BucketUsage {
    /// The bucket.
    #[prost(message, optional, tag = "1")]
    pub bucket_id: Option<BucketId>,
    /// The time since the last report, in whole seconds.
    #[prost(message, optional, tag = "2")]
    pub time_elapsed: Option<Duration>,
    /// The number of allowed requests.
    #[prost(uint64, tag = "3")]
    pub allowed: u64,
    /// The number of denied requests.
    #[prost(uint64, tag = "4")]
    pub denied: u64,
}

/// The entries that identify a bucket.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Message)]
pub struct BucketId {
    /// The entries, which have no order in a message.
    #[prost(btree_map = "string, string", tag = "1")]
    pub entries: BTreeMap<String, String>,
}

/// Actions for buckets.
#[derive(Clone, PartialEq, Message)]
pub struct QuotaResponse {
    /// The action for each bucket.
    #[prost(message, repeated, tag = "1")]
    pub actions: Vec<BucketAction>,
}

/// The action for one bucket.
#[derive(Clone, PartialEq, Message)]
pub struct BucketAction {
    /// The bucket.
    #[prost(message, optional, tag = "1")]
    pub bucket_id: Option<BucketId>,
    /// The action.
    #[prost(oneof = "QuotaAction", tags = "2, 3")]
    pub action: Option<QuotaAction>,
}

/// An action.
#[derive(Clone, PartialEq, Oneof)]
pub enum QuotaAction {
    /// Limits the bucket for a time.
    #[prost(message, tag = "2")]
    Assign(QuotaAssignment),
    /// Removes the bucket until it is used again.
    #[prost(message, tag = "3")]
    Abandon(Abandon),
}

/// The limit of a bucket for a time.
#[derive(Clone, PartialEq, Message)]
pub struct QuotaAssignment {
    /// The time for which the assignment applies. A repeated assignment starts it again.
    #[prost(message, optional, tag = "2")]
    pub time_to_live: Option<Duration>,
    /// The limit.
    #[prost(message, optional, tag = "3")]
    pub strategy: Option<Strategy>,
}

/// Removes a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Abandon {}

/// The limit of a bucket.
#[derive(Clone, PartialEq, Message)]
pub struct Strategy {
    /// The kind of limit.
    #[prost(oneof = "StrategyKind", tags = "1, 2, 3")]
    pub kind: Option<StrategyKind>,
}

/// A kind of limit. Envoy 1.40 ignores requests per unit of time.
#[derive(Clone, PartialEq, Oneof)]
pub enum StrategyKind {
    /// All requests or none.
    #[prost(enumeration = "BlanketRule", tag = "1")]
    Blanket(i32),
    /// A number of requests per unit of time.
    #[prost(message, tag = "2")]
    PerUnit(RequestsPerUnit),
    /// A token bucket, which starts full when one of its numbers changes.
    #[prost(message, tag = "3")]
    TokenBucket(TokenBucket),
}

/// A limit for all requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum BlanketRule {
    /// Allows all requests.
    AllowAll = 0,
    /// Denies all requests.
    DenyAll = 1,
}

/// A number of requests per unit of time.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RequestsPerUnit {
    /// The number of requests.
    #[prost(uint64, tag = "1")]
    pub requests: u64,
    /// The number of `envoy.type.v3.RateLimitUnit`.
    #[prost(int32, tag = "2")]
    pub unit: i32,
}

/// A token bucket.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct TokenBucket {
    /// The capacity.
    #[prost(uint32, tag = "1")]
    pub max_tokens: u32,
    /// The number of tokens that are added in each interval; 1 if it is absent.
    #[prost(message, optional, tag = "2")]
    pub tokens_per_fill: Option<u32>,
    /// The interval, in whole seconds.
    #[prost(message, optional, tag = "3")]
    pub fill_interval: Option<Duration>,
}
