//! Requests of the rate limit service, and parts of its responses.

use std::collections::BTreeMap;

use limiter_server::gateway::envoy::messages::{
    Code, DescriptorStatus, Entry, LimitOverride, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
    Unit,
};
use prost_types::Value;
use prost_types::value::Kind;

/// A descriptor of one entry.
pub(crate) fn descriptor(key: &str, value: &str) -> RateLimitDescriptor {
    descriptor_of(&[(key, value)])
}

/// A descriptor of several entries.
pub(crate) fn descriptor_of(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entries = entries.iter().map(|(key, value)| Entry {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    });
    RateLimitDescriptor {
        entries: entries.collect(),
        ..RateLimitDescriptor::default()
    }
}

/// Changes of a descriptor.
pub(crate) trait DescriptorExt: Sized {
    /// Sets the cost. 0 reads the limit without a charge.
    fn hits(self, hits: u64) -> Self;

    /// Returns the cost to the limit in place of a charge.
    fn negative(self) -> Self;

    /// Sets the limit that the descriptor contains.
    fn limit(self, requests_per_unit: u32, unit: Unit, unit_multiplier: Option<u32>) -> Self;
}

impl DescriptorExt for RateLimitDescriptor {
    fn hits(self, hits: u64) -> Self {
        Self {
            hits_addend: Some(hits),
            ..self
        }
    }

    fn negative(self) -> Self {
        Self {
            is_negative_hits: true,
            ..self
        }
    }

    fn limit(self, requests_per_unit: u32, unit: Unit, unit_multiplier: Option<u32>) -> Self {
        let limit = LimitOverride {
            requests_per_unit,
            unit: unit.into(),
            unit_multiplier,
        };
        Self {
            limit: Some(limit),
            ..self
        }
    }
}

/// A request of the domain `edge`.
pub(crate) fn request(descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    request_in("edge", descriptors)
}

/// A request of a domain.
pub(crate) fn request_in(domain: &str, descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.to_vec(),
        hits_addend: 0,
    }
}

/// The codes of the descriptors.
pub(crate) fn codes(response: &RateLimitResponse) -> Vec<Code> {
    response.statuses.iter().map(DescriptorStatus::code).collect()
}

/// The metadata of the limiter.
pub(crate) fn all_metadata(response: &RateLimitResponse) -> Option<&BTreeMap<String, Value>> {
    let metadata = response.dynamic_metadata.as_ref()?;
    match metadata.fields.get("limiter")?.kind.as_ref()? {
        Kind::StructValue(limiter) => Some(&limiter.fields),
        other => panic!("{other:?}"),
    }
}

/// A value of the metadata of the limiter.
pub(crate) fn metadata(response: &RateLimitResponse, name: &str) -> Option<Kind> {
    all_metadata(response)?.get(name)?.kind.clone()
}
