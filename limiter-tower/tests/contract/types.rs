//! The traits of each public type, asserted by the compiler.

use std::fmt::Debug;

use limiter_tower::future::ResponseFuture;
use limiter_tower::key::{self, Extraction, KeyExtractor};
use limiter_tower::outbound::{self, Host, Outbound, OutboundFuture, OutboundLayer};
use limiter_tower::settlement::ReportedCost;
use limiter_tower::skip::{Paths, SkipRequest, Unless};
use limiter_tower::typestate::WithKey;
use limiter_tower::typestate::{
    FixedPolicies, LimitsFor, MissingKey, PoliciesPerRequest, WithChosenPolicies, WithCost,
};
use limiter_tower::{
    IntoRequestLimits, PolicySet, RateLimit, RateLimitHeaders, RateLimitLayer, RequestLimits, ResponseBody,
};

use crate::support::Strict;

/// A closure's type that can be named.
type Closure = fn(&http::Request<String>) -> &'static str;
type Bytes = http_body_util::Full<bytes::Bytes>;

const fn is_handed_around<T: Clone + Debug + Send + Sync + 'static>() {}
const fn is_shared<T: Debug + Send + Sync + 'static>() {}
const fn is_sent<T: Debug + Send + 'static>() {}
const fn finds_keys<T: KeyExtractor<String>>() {}

const _: () = {
    is_handed_around::<RateLimitLayer>();
    is_handed_around::<RateLimitLayer<MissingKey, PoliciesPerRequest<Closure>>>();
    is_handed_around::<RateLimitLayer<WithKey<key::Header>>>();
    is_handed_around::<RateLimit<Strict, key::Header>>();
    is_handed_around::<OutboundLayer<key::Header>>();
    is_handed_around::<Outbound<Strict, key::Header>>();
    is_handed_around::<MissingKey>();
    is_handed_around::<FixedPolicies>();
    is_handed_around::<RateLimitHeaders>();
    is_handed_around::<ReportedCost>();
    is_handed_around::<PolicySet>();
    is_handed_around::<RequestLimits<'static>>();

    is_handed_around::<key::ClientIp>();
    is_handed_around::<key::FromAsync<Closure>>();
    is_handed_around::<key::GrpcMethod>();
    is_handed_around::<key::Header>();
    is_handed_around::<key::IpNet>();
    is_handed_around::<key::Path>();
    is_handed_around::<key::PeerIp>();
    is_handed_around::<key::KeyRejection>();
    is_handed_around::<key::Global>();
    is_handed_around::<key::TrustedProxies>();
    is_handed_around::<Paths>();
    is_handed_around::<Host>();
    is_handed_around::<limiter_core::Rejection>();

    // The state of a layer is shared by its services.
    is_shared::<LimitsFor<Closure>>();
    is_shared::<WithChosenPolicies<key::Header, Closure>>();
    is_shared::<WithCost<key::Header, Closure>>();
    is_shared::<Unless<Paths, key::Header>>();
    is_shared::<ResponseBody<Bytes>>();

    // Types that wait for futures of other types are polled by one task.
    is_sent::<Extraction<'static>>();
    is_sent::<key::PendingKey>();
    is_sent::<ResponseFuture<Strict, String>>();
    is_sent::<OutboundFuture<Strict, String>>();
    is_sent::<outbound::BoxError>();

    finds_keys::<Closure>();
    finds_keys::<(key::Path, key::Header, key::Global, Closure)>();
    finds_keys::<WithChosenPolicies<key::Header, fn(&http::Request<String>) -> PolicySet>>();
    finds_keys::<WithCost<key::Header, fn(&http::Request<String>) -> u32>>();
    finds_keys::<Unless<Paths, key::Header>>();
    finds_keys::<Host>();

    const fn skips<T: SkipRequest<String>>() {}
    skips::<fn(&http::Request<String>) -> bool>();
    skips::<Paths>();
    const fn says_terms<T: IntoRequestLimits>() {}
    says_terms::<Option<RequestLimits<'static>>>();
};

#[cfg(feature = "axum")]
const _: () = {
    is_handed_around::<key::MatchedPathKey>();
    is_handed_around::<key::FromParts<http::Method, (), Closure>>();
};
