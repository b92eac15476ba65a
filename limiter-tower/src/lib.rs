//! Rate limit layers for axum routers, tonic servers, and any other `tower` service for HTTP
//! requests.
//!
//! A [`RateLimitLayer`] extracts a [`key`] from each request and checks it with a
//! [`Limiter`](limiter_core::Limiter), in process or in Redis. It passes allowed requests to the
//! inner service and answers denied requests itself. Unlike tower's `RateLimit`, it applies no
//! backpressure in `poll_ready`, and it needs no `HandleErrorLayer`.
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
//! # Order of layers
//!
//! The outer layer sees a request first. With axum's `Router::layer` and with tonic's
//! `layer.layer(service)`, the layer that is added last is the outer one. With
//! `tower::ServiceBuilder` and tonic's `Server::builder().layer(…)`, the layer that is added first
//! is the outer one.
//!
//! # Concurrency limits
//!
//! [`ConcurrencyLimitLayer`] limits the concurrent requests of a key, in one process or across all
//! replicas. A request holds its permit until the body of its response has ended.
//! [`LoadShedLayer`] limits the concurrent requests of this process and reserves capacity for a
//! higher [`Priority`]. It uses no limiter, and answers 503. [`ResponseConfig`] configures the
//! responses of all layers.
//!
//! # Clients
//!
//! `RateLimitLayer::outbound(&limits, policy).max_wait(Duration::from_secs(2))` keeps the requests
//! of a client within the quota of an upstream service, and honours its `Retry-After`: see
//! [`outbound`].
//!
//! # Responses
//!
//! | | HTTP | gRPC | [`Retry-After`](http::header::RETRY_AFTER) |
//! |---|---|---|---|
//! | limited | 429 | RESOURCE_EXHAUSTED | whole seconds, rounded up, never 0 |
//! | blocked by a penalty | 429 | RESOURCE_EXHAUSTED | until the block has ended and the limit has a permit |
//! | denied, and the policy degrades | the inner response | the inner response | |
//! | denied by a list of keys, a block or a suspension | 403 | PERMISSION_DENIED | none: waiting for permits never helps |
//! | a [wait](RateLimitLayer::max_wait) timed out | 429 | RESOURCE_EXHAUSTED | as limited; none without a decision |
//! | the layer's [`max_waiting`](RateLimitLayer::max_waiting) is reached | 429 | RESOURCE_EXHAUSTED | includes the requests before it |
//! | the limiter's [`max_waiting`](limiter_core::InProcessBuilder::max_waiting) is reached | 503 | UNAVAILABLE | none: unknown |
//! | a cost above the policy's quota | 429 | RESOURCE_EXHAUSTED | none: waiting never helps |
//! | store unavailable, policy with `Local` (the default) | the inner response or 429, by the local quota | the inner response or RESOURCE_EXHAUSTED | as limited |
//! | store unavailable, policy with `FailOpen` | the inner response | the inner response | |
//! | store unavailable, policy with `FailClosed` or `Error` | 503 | UNAVAILABLE | none: unknown |
//! | the limiter was [shut down](limiter_core::Limiter::shutdown) | 503 | UNAVAILABLE | none |
//! | a cost that cannot be used, limits in different groups | 500 | INTERNAL | none |
//! | no policy by that name, and the limiter [denies](limiter_core::registry::OnUnknownPolicy::Deny) such calls | 500 | FAILED_PRECONDITION | none |
//! | no key | the extractor's response, else 400 or 500 | the code that is paired with it | none |
//!
//! The body of an HTTP rejection is a JSON problem (`application/problem+json`, RFC 9457) that
//! names the denying policies. Responses to allowed and to denied requests carry the headers
//! `RateLimit-Policy` and `RateLimit` in one of several [drafts](RateLimitHeaders). A client that
//! follows them, does not share its key, and sends requests of one permit is never denied. A client
//! whose requests all have one cost is never denied if it reads every response.
//!
//! A request with the content type `application/grpc` gets a response without a body: status 200,
//! `grpc-status`, `grpc-message`, and details in `grpc-status-details-bin` (`RetryInfo`,
//! `QuotaFailure`, `ErrorInfo`). One layer can therefore serve a port with both protocols.
//! `grpc-retry-pushback-ms` tells client libraries when to retry, or not to retry.
//!
//! [`ResponseConfig`] changes these responses. The source of a decision, shadow mode and an
//! unavailable store are not visible to clients, except in an
//! [optional header](ResponseConfig::with_origin_header).
//!
//! # Extensions
//!
//! The response to a denied request has the [`Rejection`](limiter_core::Rejection) and the
//! [`Decision`](limiter_core::Decision) in its extensions, so that an outer layer can replace the
//! response. A response to an allowed request has the decision in its extensions if it was made
//! without the store. With [`with_decision_extension`](RateLimitLayer::with_decision_extension),
//! every request and every response has its decision. If layers are nested, the innermost decision
//! is kept; in a request, a [degraded](limiter_core::Decision::is_degraded) decision of an outer
//! layer takes precedence over an allowed one.
//!
//! # Contract
//!
//! - The service is ready when the inner service is ready, and the layer calls the ready instance.
//!   The inner service has to be `Clone`, as the services of axum and tonic are.
//! - In process, the limiter is called when the service is called. Redis is called at the first
//!   poll of the response's future; a request whose future is dropped earlier is not charged.
//! - A denied request, or a request without a key, never reaches the inner service. A missing key
//!   rejects the request also in shadow mode and with a disabled limiter
//!   ([`Enforcement`](limiter_core::Enforcement)), because the extractor's 401 may be the only
//!   authentication of the service. `or_skip` lets such requests pass.
//! - An asynchronous key extractor runs at the first poll of the response's future, and the limiter
//!   is called afterwards.
//! - In process, an allowed request allocates only for rate limit headers (twice), for a decision
//!   in the extensions, for a settlement, and for keys that have to be formatted (addresses and
//!   tuples).
//! - The layer spawns tasks only for Redis: for settlements, and for queries on behalf of waiting
//!   requests. [`Limiter::shutdown`](limiter_core::Limiter::shutdown) waits for both.
//!
//! # Features
//!
//! - `tonic`: the peer address of tonic's server as key; `NamedService` for the services; converts
//!   a `Rejection` to a `tonic::Status`.
//! - `axum`: the peer address of axum's server, the matched path and any axum extractor as keys;
//!   converts a `Rejection` to an axum response, for handlers that call the limiter.
//!
//! The layers need neither feature. The oldest supported compiler is 1.85.

// Tests: `tests/http.rs`, `tests/grpc.rs`, `tests/decisions.rs`, `tests/contract.rs` (the contract
// above), `tests/allocations.rs`, and the doctests; those of `compile_fail.rs` must not compile.

#![cfg_attr(docsrs, feature(doc_cfg))]

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

/// The futures of the services. Most programs do not name them.
pub mod future {
    pub use crate::concurrency::ConcurrencyLimitFuture;
    pub use crate::load_shed::future::LoadShedFuture;
    pub use crate::rate::ResponseFuture;
    pub use crate::same_body::{IntoInner, SameBody, SameBodyFuture};
}

/// The type parameters of the layers and the traits of their arguments. Most programs do not name
/// them.
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
#[doc = include_str!("../README.md")]
struct CrateReadme;

#[cfg(doctest)]
#[doc = include_str!("../../limiter-core/README.md")]
struct CoreReadme;

#[cfg(doctest)]
#[doc = include_str!("../../limiter-macros/README.md")]
struct MacrosReadme;

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
#[doc = include_str!("../../docs/guide/annotations.md")]
struct AnnotationsPage;

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
#[doc = include_str!("../../docs/guide/detached.md")]
struct DetachedPage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/usage.md")]
struct UsagePage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/registry.md")]
struct RegistryPage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/http.md")]
struct HttpPage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/browsers.md")]
struct BrowsersPage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/grpc.md")]
struct GrpcPage;

#[cfg(doctest)]
#[doc = include_str!("../../docs/guide/testing.md")]
struct TestingPage;

#[cfg(doctest)]
mod compile_fail;
