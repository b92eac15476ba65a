//! Rate limits in front of axum routers, tonic servers, and any other `tower` service that takes
//! HTTP requests.
//!
//! A [`RateLimitLayer`] asks a [`Limiter`](limiter_core::Limiter), in process or in Redis, for each
//! request: by which policy, and by whose [`key`]. What is allowed goes on to the inner service;
//! what is not is answered by the layer.
//!
//! # On an axum router or route
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use axum::{Extension, Router, body::Body, extract::Request, routing::get};
//! use limiter_core::{Decision, Limiter, Policy};
//! use limiter_tower::{RateLimitLayer, key};
//! use tower::ServiceExt;
//!
//! async fn search(Extension(decision): Extension<Decision>) -> String {
//!     format!("found; {} more", decision.remaining())
//! }
//!
//! let limits = Limiter::in_process().build();
//! let policy = Policy::sliding_window("search").limit(2).window("1m").build()?;
//! let app = Router::new()
//!     .route("/search", get(search))
//!     .route_layer(RateLimitLayer::new(&limits, policy).key(key::header("x-api-key")).with_decision_extension());
//!
//! let ask = async |api_key| {
//!     let request = Request::get("/search").header("x-api-key", api_key).body(Body::empty()).unwrap();
//!     app.clone().oneshot(request).await.unwrap()
//! };
//! assert_eq!(ask("ann").await.status(), 200);
//! assert_eq!(ask("ann").await.status(), 200);
//! let denied = ask("ann").await;
//! assert_eq!(denied.status(), 429);
//! assert_eq!(denied.headers()["retry-after"], "60");
//! assert_eq!(ask("bob").await.status(), 200);
//! # Ok::<(), limiter_core::ConfigError>(())
//! # }).unwrap();
//! ```
//!
//! # In a bare `ServiceBuilder`
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use http::{Request, Response};
//! use limiter_core::{Limiter, Policy};
//! use limiter_tower::{RateLimitLayer, key};
//! use std::convert::Infallible;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! let limits = Limiter::in_process().build();
//! let policy = Policy::token_bucket("echo").capacity(1).rate("1/min").build()?;
//! let service = ServiceBuilder::new()
//!     .layer(RateLimitLayer::new(&limits, policy).key(key::global()))
//!     .service_fn(async |request: Request<String>| Ok::<_, Infallible>(Response::new(request.into_body())));
//!
//! let allowed = service.clone().oneshot(Request::new("hello".to_owned())).await.unwrap();
//! assert_eq!(allowed.status(), 200);
//! let denied = service.oneshot(Request::new("hello".to_owned())).await.unwrap();
//! assert_eq!(denied.status(), 429);
//! # Ok::<(), limiter_core::ConfigError>(())
//! # }).unwrap();
//! ```
//!
//! # Around a tonic server
//!
//! `Server::builder().layer(RateLimitLayer::new(&limits, policy).key(key::header("x-api-key")))`
//! limits every service of the server. Around a single service
//! (`layer.layer(GreeterServer::new(greeter))`), the feature `tonic` forwards its name.
//!
//! # By what is in flight
//!
//! [`ConcurrencyLimitLayer`] bounds how many requests of a key are in flight at once, in one
//! process or in all of them: each holds its permit until its response's body has ended.
//! [`LoadShedLayer`] bounds how many are in flight in this process, of which it keeps shares for
//! what matters most ([`Priority`]); it asks no limiter, and answers 503. [`ResponseConfig`] has
//! several layers answer alike.
//!
//! # Around a client
//!
//! `RateLimitLayer::outbound(&limits, policy).max_wait(Duration::from_secs(2))` holds the requests
//! of a client to a third party's quota, and to the pauses for which that asks: see [`outbound`].
//!
//! # What a client gets
//!
//! | | HTTP | gRPC | [`Retry-After`](http::header::RETRY_AFTER) |
//! |---|---|---|---|
//! | limited | 429 | RESOURCE_EXHAUSTED | whole seconds, rounded up, never 0 |
//! | blocked by a penalty | 429 | RESOURCE_EXHAUSTED | until the block ends, or the limit has room, if that is later |
//! | denied, and the policy degrades | the inner response | the inner response | |
//! | denied by a list of keys | 403 | PERMISSION_DENIED | none: waiting never helps |
//! | a [wait](RateLimitLayer::max_wait) that is over | 429 | RESOURCE_EXHAUSTED | as limited; none where nobody was asked |
//! | as many wait as the layer lets wait ([`max_waiting`](RateLimitLayer::max_waiting)) | 429 | RESOURCE_EXHAUSTED | after those before it |
//! | as many wait as the limiter lets wait ([`max_waiting`](limiter_core::InProcessBuilder::max_waiting)) | 503 | UNAVAILABLE | none: nobody knows |
//! | a cost above the policy's quota | 429 | RESOURCE_EXHAUSTED | none: waiting never helps |
//! | the store is out, the policy says `Local` (the default) | as its share says: the inner response, or 429 | the same | as limited |
//! | the store is out, the policy says `Allow` | the inner response | the inner response | |
//! | the store is out, the policy says `Deny` or `Error` | 503 | UNAVAILABLE | none: nobody knows |
//! | the limiter was [shut down](limiter_core::Limiter::shutdown) | 503 | UNAVAILABLE | none |
//! | a cost that cannot be used, limits in different groups | 500 | INTERNAL | none |
//! | no policy by that name, and the limiter [denies](limiter_core::registry::OnUnknownPolicy::Deny) such calls | 500 | FAILED_PRECONDITION | none |
//! | no key | as the extractor says, else 400 or 500 | the code that is paired with it | none |
//!
//! An HTTP answer is a problem in JSON (`application/problem+json`, RFC 9457) that names the
//! policies that deny. Responses to allowed and to denied requests tell of the limits in the
//! headers `RateLimit-Policy` and `RateLimit`, in one of several [dialects](RateLimitHeaders): a
//! client that obeys them, has its key for itself, and whose requests cost a permit each, is never
//! denied; nor is one whose requests all cost the same, if it heeds each answer.
//!
//! A request whose content type is `application/grpc` is answered with headers only: status 200,
//! `grpc-status`, `grpc-message`, and details for programs in `grpc-status-details-bin`
//! (`RetryInfo`, `QuotaFailure`, `ErrorInfo`); so one layer serves a port that speaks both.
//! `grpc-retry-pushback-ms` tells client libraries when to retry by themselves, or that it never
//! helps.
//!
//! [`headers`](ResponseConfig::headers), [`plain_text`](ResponseConfig::plain_text),
//! [`respond_with`](ResponseConfig::respond_with) and [`grpc_domain`](ResponseConfig::grpc_domain)
//! change what they get. Who decided, shadow mode and a store that is out never show in a header
//! unless [that is asked for](ResponseConfig::with_origin_header).
//!
//! # What handlers and other layers see
//!
//! The response to a denied request holds the [`Rejection`](limiter_core::Rejection) in its
//! extensions, from which a layer further out can form an answer of its own, and the
//! [`Decision`](limiter_core::Decision). A decision that allows a request stands in the response
//! where the store did not make it; with
//! [`with_decision_extension`](RateLimitLayer::with_decision_extension) it always does, and in the
//! extensions of the request that the inner service gets as well. Where layers are nested, the
//! innermost's that shows one is seen.
//!
//! # Contract
//!
//! - Readiness is the inner service's, and the instance that was found ready is the one that is
//!   called. It has to be `Clone`, as axum's and tonic's services are.
//! - In process the limiter is asked when the service is called, so that nothing of an allowed
//!   request is kept for later. Redis is asked when the response's future is polled first; dropped
//!   earlier, a request is not charged.
//! - A denied request never reaches the inner service, nor does one without a key: also where the
//!   limiter is in shadow or off ([`Enforcement`](limiter_core::Enforcement)), since an extractor's
//!   401 may be all that stands before the service. `or_skip` lets it pass.
//! - A key that an async function finds is looked for when the response's future is polled first,
//!   and the limiter is asked then.
//! - In process an allowed request costs no allocation, but for the headers that it tells the
//!   client (one for their values and one to share it among them), and unless its decision is
//!   shown, it is to be settled, or its key has to be written: an address and a composed key cost
//!   one.
//! - Nothing is spawned but what must not be lost with the request: with Redis, a settlement, and a
//!   question on behalf of those who wait. [`Limiter::shutdown`](limiter_core::Limiter::shutdown)
//!   waits for both.
//!
//! # Features
//!
//! - `tonic`: keys by the peer that tonic's server sees; forwards `NamedService`, and makes a
//!   `tonic::Status` of a `Rejection`.
//! - `axum`: keys by the peer that axum's server sees, by the matched path, and by any extractor;
//!   makes an axum response of a `Rejection`, for handlers that limit themselves.
//!
//! Neither is needed for the layer. The oldest supported compiler is 1.85.

mod concurrency;
mod gate;
mod headers;
pub mod key;
pub mod load_shed;
pub mod outbound;
mod rate;
mod request_limits;
mod responses;
mod same_body;
pub mod settlement;
pub mod skip;

#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;

/// The futures of the services. They are not named in most programs.
pub mod future {
    pub use crate::concurrency::ConcurrencyLimitFuture;
    pub use crate::load_shed::future::LoadShedFuture;
    pub use crate::rate::ResponseFuture;
    pub use crate::same_body::{IntoInner, SameBody, SameBodyFuture};
}

/// The type parameters of the layers and the traits of their arguments. They are not named in most
/// programs.
pub mod typestate {
    pub use crate::rate::extractors::{IntoCost, LimitsFor, WithChosenPolicies, WithCost};
    pub use crate::rate::policies::Policies;
    pub use crate::rate::typestate::{
        Costing, FixedPolicies, HasKey, MissingKey, PoliciesPerRequest, RequestOptions, Skipping, WithKey,
    };
    pub use crate::responses::IntoResponseBytes;
}

pub use concurrency::{
    BoxConcurrencyLimitLayer, ConcurrencyLimit, ConcurrencyLimitLayer, PermitBody, PermitHandle,
};
pub use headers::RateLimitHeaders;
pub use load_shed::layer::LoadShedLayer;
pub use load_shed::priority::Priority;
pub use load_shed::service::{LoadShed, Overloaded};
pub use rate::extractors::IntoRequestLimits;
pub use rate::{BoxRateLimitLayer, RateLimit, RateLimitLayer};
pub use request_limits::{PolicySet, RequestLimits};
pub use responses::{ResponseBody, ResponseConfig};
pub use same_body::SameBodyLayer;

// The code in these documents compiles and runs with the doctests.

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../docs/from-java.md")]
struct FromJavaPage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/operations.md")]
struct OperationsPage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/migrating.md")]
struct MigratingPage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/concepts.md")]
struct ConceptsPage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/algorithms.md")]
struct AlgorithmsPage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/keys.md")]
struct KeysPage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/waiting.md")]
struct WaitingPage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/leases.md")]
struct LeasesPage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/concurrency.md")]
struct ConcurrencyPage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/registry.md")]
struct RegistryPage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/http.md")]
struct HttpPage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/grpc.md")]
struct GrpcPage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/testing.md")]
struct TestingPage;

#[cfg(doctest)]
mod compile_fail;
