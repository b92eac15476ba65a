//! The messages of the rate limit services, as far as the load needs them.

use prost::Message;

/// The path of Envoy's rate limit service v3.
pub(crate) const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The path of throttlecrab's service.
pub(crate) const THROTTLE: &str = "/throttlecrab.RateLimiter/Throttle";
/// `RateLimitResponse.Code.OK`.
pub(crate) const OK: i32 = 1;

/// A request of Envoy.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<Descriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<DescriptorEntry>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DescriptorEntry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// A response to Envoy.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    pub(crate) overall_code: i32,
}

/// A request to throttlecrab.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ThrottleRequest {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(int32, tag = "2")]
    pub(crate) max_burst: i32,
    #[prost(int32, tag = "3")]
    pub(crate) count_per_period: i32,
    #[prost(int32, tag = "4")]
    pub(crate) period: i32,
    #[prost(int32, tag = "5")]
    pub(crate) quantity: i32,
}

/// A response of throttlecrab.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ThrottleResponse {
    #[prost(bool, tag = "1")]
    pub(crate) allowed: bool,
}

impl RateLimitRequest {
    /// Returns a request with one descriptor of one entry.
    pub(crate) fn of_address(address: String) -> Self {
        let entry = DescriptorEntry {
            key: "remote_address".to_owned(),
            value: address,
        };
        Self {
            domain: "edge".to_owned(),
            descriptors: vec![Descriptor { entries: vec![entry] }],
        }
    }
}
