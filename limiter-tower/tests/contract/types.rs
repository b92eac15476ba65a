//! The traits of each public type, asserted by the compiler.

use std::fmt::Debug;

use limiter_tower::future::ResponseFuture;
use limiter_tower::key::{self, Extraction, KeyExtractor};
use limiter_tower::outbound::{self, Host, Outbound, OutboundFuture, OutboundLayer};
use limiter_tower::settlement::ReportedCost;
use limiter_tower::skip::{Paths, SkipRequest, UnlessSkipped};
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

const fn is_clonable_and_shareable<T: Clone + Debug + Send + Sync + 'static>() {}
const fn is_shared<T: Debug + Send + Sync + 'static>() {}
const fn is_sent<T: Debug + Send + 'static>() {}
const fn finds_keys<T: KeyExtractor<String>>() {}

const _: () = {
    is_clonable_and_shareable::<RateLimitLayer>();
    is_clonable_and_shareable::<RateLimitLayer<MissingKey, PoliciesPerRequest<Closure>>>();
    is_clonable_and_shareable::<RateLimitLayer<WithKey<key::Header>>>();
    is_clonable_and_shareable::<RateLimit<Strict, key::Header>>();
    is_clonable_and_shareable::<OutboundLayer<key::Header>>();
    is_clonable_and_shareable::<Outbound<Strict, key::Header>>();
    is_clonable_and_shareable::<MissingKey>();
    is_clonable_and_shareable::<FixedPolicies>();
    is_clonable_and_shareable::<RateLimitHeaders>();
    is_clonable_and_shareable::<ReportedCost>();
    is_clonable_and_shareable::<PolicySet>();
    is_clonable_and_shareable::<RequestLimits<'static>>();

    is_clonable_and_shareable::<key::ClientIp>();
    is_clonable_and_shareable::<key::FromAsync<Closure>>();
    is_clonable_and_shareable::<key::GrpcMethod>();
    is_clonable_and_shareable::<key::Header>();
    is_clonable_and_shareable::<key::IpNet>();
    is_clonable_and_shareable::<key::Path>();
    is_clonable_and_shareable::<key::PeerIp>();
    is_clonable_and_shareable::<key::KeyRejection>();
    is_clonable_and_shareable::<key::Global>();
    is_clonable_and_shareable::<key::TrustedProxies>();
    is_clonable_and_shareable::<Paths>();
    is_clonable_and_shareable::<Host>();
    is_clonable_and_shareable::<limiter_core::Rejection>();

    // The state of a layer is shared by its services.
    is_shared::<LimitsFor<Closure>>();
    is_shared::<WithChosenPolicies<key::Header, Closure>>();
    is_shared::<WithCost<key::Header, Closure>>();
    is_shared::<UnlessSkipped<Paths, key::Header>>();
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
    finds_keys::<UnlessSkipped<Paths, key::Header>>();
    finds_keys::<Host>();

    const fn skips<T: SkipRequest<String>>() {}
    skips::<fn(&http::Request<String>) -> bool>();
    skips::<Paths>();
    const fn says_terms<T: IntoRequestLimits>() {}
    says_terms::<Option<RequestLimits<'static>>>();
};

#[cfg(feature = "axum")]
const _: () = {
    is_clonable_and_shareable::<key::MatchedPathKey>();
    is_clonable_and_shareable::<key::FromParts<http::Method, (), Closure>>();
};
