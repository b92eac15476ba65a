//! Whose permits a request takes.
//!
//! | extractor | key | a request without it |
//! |---|---|---|
//! | [`header("x-api-key")`](header) | the header's value | 400 / INVALID_ARGUMENT |
//! | [`metadata("x-api-key")`](metadata) | the same for gRPC | 400 / INVALID_ARGUMENT |
//! | [`peer()`](peer()) | the address of who has connected | 500 / INTERNAL |
//! | [`client_ip(hops(1))`](client_ip()) | the address of the client, as trusted proxies name it | 400 / INVALID_ARGUMENT |
//! | [`path()`](path()) | the path | |
//! | `matched_path()`, feature `axum` | the route's template: `/users/{id}` | 404 / NOT_FOUND |
//! | [`grpc_method()`](grpc_method()) | `package.Service/Method` | 501 / UNIMPLEMENTED |
//! | [`extension(\|user: &User\| &user.id)`](extension) | a part of a request extension | 500 / INTERNAL |
//! | [`shared()`](shared) | one budget for everybody | |
//! | a closure over `&Request<B>` | what it returns | what it returns: see [`IntoAnswer`] |
//! | [`from_async`]: an async function over the request's head | what it returns | what it returns |
//! | `from_parts`, feature `axum`: any `FromRequestParts`, or a tuple | what a closure makes of it | the extractor's own rejection |
//! | a tuple of up to four of these | all of them, kept apart | as the first that has none says |
//!
//! No extractor falls back to a common key: a request whose key is missing is refused, unless `or_skip` lets it pass.

mod address;
mod answer;
mod boxed;
mod client_ip;
mod composed;
mod connection;
mod extension;
mod forwarded;
#[cfg(feature = "axum")]
mod from_parts;
mod grpc_method;
mod header;
mod later;
#[cfg(feature = "axum")]
mod matched_path;
mod network;
mod path;
mod peer;
mod shared;
mod trust;

use http::Request;

pub use answer::{Answer, IntoAnswer, Refusal};
pub use boxed::BoxExtractor;
pub use client_ip::{ClientIp, client_ip};
pub use extension::{Extension, extension};
#[cfg(fuzzing)]
pub(crate) use forwarded::{Syntax, nearest_first};
#[cfg(feature = "axum")]
pub use from_parts::{FromParts, from_parts};
pub use grpc_method::{GrpcMethod, grpc_method};
pub use header::{Header, header, metadata};
pub use later::{FromAsync, Later, from_async};
#[cfg(feature = "axum")]
pub use matched_path::{Matched, matched_path};
pub use network::IpNet;
pub use path::{Path, path};
pub use peer::{Peer, peer};
pub use shared::{Shared, shared};
pub use trust::{Trust, hops, trusted};

/// Finds the key of a request with a body of type `B`.
///
/// Closures implement it. They name the request's type, and return something owned ([`IntoAnswer`]):
///
/// ```
/// use axum::{body::Body, extract::Request};
/// use limiter_core::{Key, Limiter, Policy};
/// use limiter_tower::{RateLimitLayer, key};
///
/// let limits = Limiter::in_process().build();
/// let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
/// let by_tenant_and_path = |request: &Request| {
///     let tenant = request.headers().get("x-tenant")?.to_str().ok()?;
///     Some(Key::from("tenant:").part(tenant).text(":").part(request.uri().path()))
/// };
/// let app: axum::Router = axum::Router::new().layer(RateLimitLayer::new(&limits, policy).key(by_tenant_and_path));
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
///
/// A type of your own may keep what it needs, and borrow the key from the request:
///
/// ```
/// use http::{Request, StatusCode, header};
/// use limiter_core::Key;
/// use limiter_tower::key::{Answer, ExtractKey, Refusal};
///
/// /// What stands before the domain: `acme` of `acme.example.com`.
/// struct Tenant {
///     domain: String,
/// }
///
/// impl<B> ExtractKey<B> for Tenant {
///     fn extract<'a>(&'a self, request: &'a Request<B>) -> Answer<'a> {
///         let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
///         match host.and_then(|host| host.strip_suffix(&self.domain)) {
///             Some(tenant) => Answer::Key(Key::from(tenant)),
///             None => Answer::Refuse(Refusal::new(StatusCode::NOT_FOUND, "no such tenant")),
///         }
///     }
/// }
///
/// let by_tenant = Tenant { domain: ".example.com".to_owned() };
/// let request = Request::builder().header("host", "acme.example.com").body(()).unwrap();
/// assert_eq!(by_tenant.extract(&request), Answer::Key(Key::from("acme")));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find the key of a `Request<{B}>`",
    note = "a key is found by one of the functions in `limiter_tower::key`, such as `key::header(\"x-api-key\")`,",
    note = "or by a closure that takes `&Request<{B}>` and returns something owned: a `Key<'static>`, a `String`, \
            a number, an `Option` or `Result` of one of these, or a `key::Answer`;",
    note = "or by an async function over the request's head, which `key::from_async` makes one of: \
            `key::from_async(|head: Parts| async move {{ … }})`"
)]
pub trait ExtractKey<B> {
    /// The key, or why there is none.
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Answer<'a>;
}

#[diagnostic::do_not_recommend]
impl<F, B, A> ExtractKey<B> for F
where
    F: Fn(&Request<B>) -> A,
    A: IntoAnswer,
{
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Answer<'a> {
        self(request).into_answer()
    }
}
