//! The messages of Envoy's rate limit service v3, as of Envoy 1.40.
//!
//! The names and numbers are those of `envoy/service/ratelimit/v3/rls.proto` and
//! `envoy/extensions/common/ratelimit/v3/ratelimit.proto`. `tests/envoy_messages.rs` compares them
//! with an independent implementation.

use prost::{Enumeration, Message};

use crate::gateway::rules::DescriptorEntry;

/// A request for a decision.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitRequest {
    /// The domain of the descriptors.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The descriptors, each of which has a limit of its own.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// The cost of descriptors without a cost of their own; 0 is 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// A descriptor.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitDescriptor {
    /// The entries, in order.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// A limit that replaces the one of the policy.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<LimitOverride>,
    /// The cost; 0 is a peek.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// True if the cost is refunded.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// An entry of a descriptor.
#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

impl DescriptorEntry for Entry {
    fn key(&self) -> &str {
        &self.key
    }

    fn value(&self) -> &str {
        &self.value
    }
}

/// The limit in a descriptor.
#[derive(Clone, PartialEq, Message)]
pub struct LimitOverride {
    /// The permits in a period.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The unit of the period.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
    /// The number of units in a period; 1 if absent.
    #[prost(message, optional, tag = "3")]
    pub unit_multiplier: Option<u32>,
}

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
#[allow(missing_docs, reason = "the names are those of the protocol")]
pub enum Unit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

/// The answer to a request.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitResponse {
    /// OVER_LIMIT if any descriptor is over its limit.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// One status for each descriptor, in order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Headers that the proxy adds to the response.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// Headers that the proxy adds to the request.
    #[prost(message, repeated, tag = "4")]
    pub request_headers_to_add: Vec<HeaderValue>,
    /// The body of the response to a denied request.
    #[prost(bytes = "vec", tag = "5")]
    pub raw_body: Vec<u8>,
    /// Values for the access log of the proxy.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<prost_types::Struct>,
    /// A quota that the proxy may spend without further requests.
    #[prost(message, optional, tag = "7")]
    pub quota: Option<Quota>,
}

/// The result for a descriptor or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
#[allow(missing_docs, reason = "the names are those of the protocol")]
pub enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

/// The status of a descriptor.
#[derive(Clone, PartialEq, Message)]
pub struct DescriptorStatus {
    /// The result.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The limit that applies.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<CurrentLimit>,
    /// The permits that are left after the decision.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// The time until a retry succeeds or, if allowed, until nothing is used.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<prost_types::Duration>,
    /// A quota that the proxy may spend without further requests.
    #[prost(message, optional, tag = "5")]
    pub quota: Option<Quota>,
}

/// The limit of a policy.
#[derive(Clone, PartialEq, Message)]
pub struct CurrentLimit {
    /// The permits in a period.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The unit of the period.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
    /// The name of the policy.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The number of units in a period; 1 if absent.
    #[prost(message, optional, tag = "4")]
    pub unit_multiplier: Option<u32>,
}

/// A header.
#[derive(Clone, PartialEq, Message)]
pub struct HeaderValue {
    /// The name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value as text.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The value as bytes, if it is no text.
    #[prost(bytes = "vec", tag = "3")]
    pub raw_value: Vec<u8>,
}

/// A quota that the proxy may spend without further requests. This server assigns none.
#[derive(Clone, PartialEq, Message)]
pub struct Quota {
    /// The permits.
    #[prost(uint32, tag = "1")]
    pub requests: u32,
    /// The end of the quota.
    #[prost(message, optional, tag = "2")]
    pub valid_until: Option<prost_types::Timestamp>,
    /// The name of the quota.
    #[prost(string, tag = "3")]
    pub id: String,
}
