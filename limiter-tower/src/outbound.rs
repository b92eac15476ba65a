//! For clients: requests are held to a limit, and to what the peer says of its own.
//!
//! [`RateLimitLayer::outbound`](crate::RateLimitLayer::outbound) makes an [`OutboundLayer`] for any
//! client that is a `tower` service over HTTP requests: hyper's, reqwest's, a tonic `Channel`. Each
//! request takes a permit before it is sent; where the limiter's state lives in Redis, all replicas
//! together keep to one quota. A response whose sender asks for a pause holds up the requests that
//! come after it.
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
//! assert_eq!(call().await.unwrap().status(), 429, "it is asked again, and not before");
//! # Ok::<(), limiter_core::ConfigError>(())
//! # }).unwrap();
//! ```
//!
//! # What the peer says
//!
//! | response | field | pause |
//! |---|---|---|
//! | 429, 503 | [`Retry-After`](http::header::RETRY_AFTER): seconds, or a date, which is held against the response's `Date` | as it says, before all others |
//! | any | `RateLimit`, drafts 07 to 11: `"burst";r=0;t=5` | `t` of the longest that has nothing remaining |
//! | any | `RateLimit-Remaining: 0` and `RateLimit-Reset`, drafts 00 to 06 | as it says, in seconds |
//! | any | `X-RateLimit-Remaining: 0` and `X-RateLimit-Reset` | up to a day in seconds, or until a moment of Unix time, in seconds or milliseconds |
//! | gRPC: RESOURCE_EXHAUSTED or UNAVAILABLE, trailers only | `grpc-retry-pushback-ms`, else `RetryInfo` in `grpc-status-details-bin` | as it says |
//!
//! What is malformed, or said twice, counts as not said. A pause lasts five minutes at most, or
//! what [`max_pause`](OutboundLayer::max_pause) says; it is never cut short by what the peer says
//! later. It holds up the requests of the key whose request was answered so, in this process:
//! others hear of it when they ask. At most 10,000 keys are paused at once; beyond, those are
//! forgotten that would end first.
//!
//! While a key is paused, its requests wait, if there is time
//! ([`max_wait`](OutboundLayer::max_wait)), or fail as
//! [`Rejection::Paused`](limiter_core::Rejection::Paused); they take no permits. Those that already
//! wait for a permit go on waiting without their place in the queue. When the pause ends, the limit
//! decides who is sent first.
//!
//! # Errors
//!
//! The service's error is tower's `BoxError`: the client's own, or a
//! [`Rejection`](limiter_core::Rejection), which [`rejection`] finds in it. A gRPC request fails
//! with the `tonic::Status` that says the same, if the feature `tonic` is on; without it, tonic
//! makes an UNKNOWN of it. [`rejection`] finds what is behind it either way.
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
//! Its client is a service over requests and responses of its own, which convert from and to those
//! of the crate `http` (tower's features `util` and `filter`):
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
//! let answer: Extraction = response.json().await?;
//! ```
//!
//! # Contract
//!
//! Readiness is the client's, and the instance that was found ready is the one that is called; it
//! has to be `Clone`. A request that is not sent gives it back uncalled. Bodies are passed on as
//! they are. Nothing is spawned. A layer that retries stands further out, so that each try takes a
//! permit.
//!
//! The peer's pauses count whatever the policy's [`Enforcement`](limiter_core::Enforcement) is. The
//! response shows the [`Decision`](limiter_core::Decision) in its extensions where the store did
//! not make it, where it degrades the request, and where it would be a denial in earnest.

mod layer;
mod policy;

mod service;

mod future;

mod upstream;

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
