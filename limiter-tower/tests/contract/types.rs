//! What can be done with each public type, asserted by the compiler.

use std::fmt::Debug;

use limiter_tower::key::{self, Answer, ExtractKey};
use limiter_tower::outbound::{self, Host, Outbound, OutboundFuture, OutboundLayer};
use limiter_tower::skip::{Paths, SkipRequest, Unless};
use limiter_tower::{
    By, Costed, Dialect, Fixed, Hook, IntoTerms, NoKey, PerRequest, RateLimit, RateLimitLayer, ResponseBody,
    ResponseFuture, Spent, Terms, Tier, Tiered,
};

use crate::support::Strict;

/// A closure's type that can be named.
type Closure = fn(&http::Request<String>) -> &'static str;
type Bytes = http_body_util::Full<bytes::Bytes>;

const fn is_handed_around<T: Clone + Debug + Send + Sync + 'static>() {}
const fn is_shared<T: Debug + Send + Sync + 'static>() {}
const fn is_sent<T: Debug + Send + 'static>() {}
const fn finds_keys<T: ExtractKey<String>>() {}

const _: () = {
    is_handed_around::<RateLimitLayer>();
    is_handed_around::<RateLimitLayer<NoKey<PerRequest<Closure>>>>();
    is_handed_around::<RateLimitLayer<By<key::Header>>>();
    is_handed_around::<RateLimit<Strict, key::Header>>();
    is_handed_around::<OutboundLayer<key::Header>>();
    is_handed_around::<Outbound<Strict, key::Header>>();
    is_handed_around::<NoKey>();
    is_handed_around::<Fixed>();
    is_handed_around::<Dialect>();
    is_handed_around::<Spent>();
    is_handed_around::<Tier>();
    is_handed_around::<Terms<'static>>();

    is_handed_around::<key::ClientIp>();
    is_handed_around::<key::FromAsync<Closure>>();
    is_handed_around::<key::GrpcMethod>();
    is_handed_around::<key::Header>();
    is_handed_around::<key::IpNet>();
    is_handed_around::<key::Path>();
    is_handed_around::<key::Peer>();
    is_handed_around::<key::Refusal>();
    is_handed_around::<key::Shared>();
    is_handed_around::<key::Trust>();
    is_handed_around::<Paths>();
    is_handed_around::<Host>();
    is_handed_around::<limiter_core::Rejection>();

    // What a layer keeps is shared by the services that it makes.
    is_shared::<Hook<Closure>>();
    is_shared::<Tiered<key::Header, Closure>>();
    is_shared::<Costed<key::Header, Closure>>();
    is_shared::<Unless<Paths, key::Header>>();
    is_shared::<ResponseBody<Bytes>>();

    // What may wait for somebody else's future is polled by one.
    is_sent::<Answer<'static>>();
    is_sent::<key::Later>();
    is_sent::<ResponseFuture<Strict, String>>();
    is_sent::<OutboundFuture<Strict, String>>();
    is_sent::<outbound::BoxError>();

    finds_keys::<Closure>();
    finds_keys::<(key::Path, key::Header, key::Shared, Closure)>();
    finds_keys::<Tiered<key::Header, fn(&http::Request<String>) -> Tier>>();
    finds_keys::<Costed<key::Header, fn(&http::Request<String>) -> u32>>();
    finds_keys::<Unless<Paths, key::Header>>();
    finds_keys::<Host>();

    const fn skips<T: SkipRequest<String>>() {}
    skips::<fn(&http::Request<String>) -> bool>();
    skips::<Paths>();
    const fn says_terms<T: IntoTerms>() {}
    says_terms::<Option<Terms<'static>>>();
};

#[cfg(feature = "axum")]
const _: () = {
    is_handed_around::<key::Matched>();
    is_handed_around::<key::FromParts<http::Method, (), Closure>>();
};
