//! Limits the requests of a client, and honours the quota that the peer reports.
//!
//! [`RateLimitLayer::outbound`](crate::RateLimitLayer::outbound) creates an [`OutboundLayer`] for
//! any client that is a `tower` service over HTTP requests: hyper's, reqwest's, a tonic `Channel`.
//! Each request takes a permit before it is sent; with Redis, all replicas share one quota. A
//! response that requests a pause delays the requests after it.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! use http::{Request, Response, StatusCode};
//! use limiter_core::{Limiter, ManualClock, Policy, Rejection};
//! use limiter_tower::{RateLimitLayer, outbound};
//! use std::time::Duration;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! /// It has enough for now.
//! async fn them(_: Request<()>) -> Result<Response<()>, http::Error> {
//!     Response::builder().status(StatusCode::TOO_MANY_REQUESTS).header("retry-after", "5").body(())
//! }
//!
//! let clock = ManualClock::new();
//! let limits = Limiter::in_process().clock(&clock).build();
//! let policy = Policy::token_bucket("them").capacity(10).rate("5/s").build()?;
//! let client = ServiceBuilder::new()
//!     .layer(RateLimitLayer::outbound(&limits, policy).max_wait(Duration::from_secs(2)))
//!     .service_fn(them);
//! let call = async || client.clone().oneshot(Request::new(())).await;
//!
//! assert_eq!(call().await.unwrap().status(), 429);
//! let error = call().await.unwrap_err();
//! let rejection = outbound::rejection(&*error).unwrap();
//! assert!(matches!(rejection, Rejection::Paused { .. }));
//! assert_eq!(rejection.retry_after(), Some(Duration::from_secs(5)));
//!
//! clock.advance(Duration::from_secs(5));
//! assert_eq!(call().await.unwrap().status(), 429, "the peer is called again after the pause");
//! # Ok::<(), limiter_core::ConfigError>(())
//! # }).unwrap();
//! ```
//!
//! # Pauses that the peer requests
//!
//! | response | field | pause |
//! |---|---|---|
//! | 429, 503 | [`Retry-After`](http::header::RETRY_AFTER): seconds, or a date, relative to the response's `Date` | the given time; overrides the other fields |
//! | any | `RateLimit`, drafts 07 to 11: `"burst";r=0;t=5` | `t` of the longest that has nothing remaining |
//! | any | `RateLimit-Remaining: 0` and `RateLimit-Reset`, drafts 00 to 06 | the given number of seconds |
//! | any | `X-RateLimit-Remaining: 0` and `X-RateLimit-Reset` | up to a day in seconds, or until a moment of Unix time, in seconds or milliseconds |
//! | gRPC: RESOURCE_EXHAUSTED or UNAVAILABLE, trailers only | `grpc-retry-pushback-ms`, else `RetryInfo` in `grpc-status-details-bin` | the given time |
//!
//! A field that is malformed, or repeated with another value, is ignored. A pause lasts five
//! minutes at most, or the maximum that [`max_pause`](OutboundLayer::max_pause) sets; a later
//! response of the peer never shortens it. It applies to the key of the request, in this process.
//! Other processes observe the peer's responses themselves. At most 10,000 keys are paused at once;
//! beyond this number, the pauses that end first are dropped.
//!
//! While a key is paused, its requests wait if [`max_wait`](OutboundLayer::max_wait) permits, or
//! fail with [`Rejection::Paused`](limiter_core::Rejection::Paused); they take no permits. Requests
//! that were already waiting for a permit continue to wait, but lose their place in the queue. When
//! the pause ends, the limit determines the order of the requests.
//!
//! # Errors
//!
//! The service's error is tower's `BoxError`: the client's own error, or a
//! [`Rejection`](limiter_core::Rejection), which [`rejection`] finds in it. With the feature
//! `tonic`, a gRPC request fails with the equivalent `tonic::Status`; without it, tonic converts
//! the error to UNKNOWN. [`rejection`] finds the rejection in both cases.
//!
//! # A tonic channel
//!
//! ```
//! # use limiter_core::{Limiter, Policy};
//! use limiter_tower::{RateLimitLayer, outbound::Outbound};
//! use std::time::Duration;
//! use tonic::transport::Channel;
//! use tower::ServiceBuilder;
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # let _entered = runtime.enter();
//! # let limits = Limiter::in_process().build();
//! # let policy = Policy::token_bucket("greeter").capacity(10).rate("5/s").build()?;
//! let channel = Channel::from_static("http://[::1]:50051").connect_lazy();
//! let channel: Outbound<Channel> = ServiceBuilder::new()
//!     .layer(RateLimitLayer::outbound(&limits, policy).max_wait(Duration::from_secs(2)))
//!     .service(channel);
//! // let greeter = GreeterClient::new(channel);
//! # Ok::<(), limiter_core::ConfigError>(())
//! ```
//!
//! # reqwest
//!
//! A reqwest client is a service over its own request and response types, which convert from and to
//! those of the crate `http` (tower's features `util` and `filter`):
//!
//! ```text
//! let client = ServiceBuilder::new()
//!     .layer(RateLimitLayer::outbound(&limits, policy))
//!     .map_response(http::Response::<reqwest::Body>::from)
//!     .filter(|request: http::Request<reqwest::Body>| reqwest::Request::try_from(request))
//!     .service(reqwest::Client::new());
//!
//! let request = http::Request::get("https://example.com/").body(reqwest::Body::default())?;
//! let response = reqwest::Response::from(client.clone().oneshot(request).await?);
//! let answer: Answer = response.json().await?;
//! ```
//!
//! # Contract
//!
//! The service is ready when the client is ready, and the layer calls the ready instance; the
//! client has to be `Clone`. A request that is not sent returns its instance uncalled. Bodies are
//! passed on unchanged. The layer spawns no tasks. A layer that retries has to be further out, so
//! that each attempt takes a permit.
//!
//! Pauses apply independent of the policy's [`Enforcement`](limiter_core::Enforcement). The
//! response has the [`Decision`](limiter_core::Decision) in its extensions if the decision was made
//! without the store, degrades the request, or would be a denial when enforced.

// Tests: `tests/outbound.rs`, `outbound/peer_quota/tests.rs` (fields of the peer), and the unit
// tests of `outbound/pauses.rs`.

mod layer;
mod policy;

mod service;

mod future;

mod peer_limits;

mod pauses;

mod peer_quota;

mod error;
mod host;

pub use error::{BoxError, rejection};
pub use future::OutboundFuture;
pub use host::{Host, host};
pub use layer::OutboundLayer;
pub use policy::OutboundPolicy;
pub use service::Outbound;
