//! The layer that limits requests to a peer: its policy, key and pauses.
//!
//! A client has to respect the quota of a peer and the pauses that the peer requests. The layer
//! builds one [`PeerLimits`] for all services that it wraps. Errors of the configuration are kept
//! until [`verify`](OutboundLayer::verify), and logged when the layer wraps a service.
//!
//! Invariant: clones share the budget and the pauses. Tests: `tests/outbound/contract.rs`, and
//! `keys_pause_separately_and_clones_share_pauses` in `tests/outbound/pauses.rs`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use limiter_core::{Amount, ConfigError, Limiter};
use tower_layer::Layer;

use super::peer_limits::{PeerLimits, PolicySource};
use super::policy::OutboundPolicy;
use super::service::Outbound;
use crate::key::{self, Global};
use crate::rate::layer::RateLimitLayer;

/// Limits the requests to a peer, so that a client respects the peer's quota and the pauses that
/// the peer requests. Created by [`RateLimitLayer::outbound`]; see the module
/// [`outbound`](crate::outbound).
pub struct OutboundLayer<E = Global> {
    peer: Arc<PeerLimits>,
    key: Arc<E>,
}

impl RateLimitLayer {
    /// Limits the requests that a client sends by `policy`, a [`Policy`](limiter_core::Policy) or
    /// the name of one in the limiter's registry, and by the pauses that the peer requests
    /// ([`outbound`](Self::outbound)).
    ///
    /// All requests share one budget, unless [`key`](OutboundLayer::key) is set. Clones of the
    /// layer, and the services that it wraps, share the limiter and the pauses of the peer.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use http::{Request, Response};
    /// use limiter_core::{Limiter, ManualClock, Policy, Rejection};
    /// use limiter_tower::{RateLimitLayer, outbound};
    /// use std::convert::Infallible;
    /// use std::time::Duration;
    /// use tower::{ServiceBuilder, ServiceExt};
    ///
    /// let clock = ManualClock::new();
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// let stripe = Policy::token_bucket("stripe").capacity(1).rate("1/s").build()?;
    /// let client = ServiceBuilder::new()
    ///     .layer(RateLimitLayer::outbound(&limits, stripe))
    ///     .service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new("paid")));
    ///
    /// assert_eq!(client.clone().oneshot(Request::new(())).await.unwrap().into_body(), "paid");
    /// let error = client.clone().oneshot(Request::new(())).await.unwrap_err();
    /// assert!(matches!(outbound::rejection(&*error), Some(Rejection::Limited(_))));
    /// clock.advance(Duration::from_secs(1));
    /// assert!(client.oneshot(Request::new(())).await.is_ok());
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    pub fn outbound(limiter: &Limiter, policy: impl OutboundPolicy) -> OutboundLayer {
        OutboundLayer::new(limiter, policy.into_source())
    }
}

impl OutboundLayer {
    /// The default of the maximum pause: five minutes.
    pub const DEFAULT_MAX_PAUSE: Duration = Duration::from_secs(300);

    fn new(limiter: &Limiter, limit: PolicySource) -> Self {
        let peer = PeerLimits::new(limiter.clone(), limit, Self::DEFAULT_MAX_PAUSE);
        Self {
            peer: Arc::new(peer),
            key: Arc::new(key::global()),
        }
    }
}

impl<E> OutboundLayer<E> {
    /// Sets the key: requests with the same key share their permits and pauses. The argument is one
    /// of the extractors in [`key`](crate::key), such as `key::header("authorization")`,
    /// [`outbound::host()`](crate::outbound::host), or a closure over the request. Default: all
    /// requests share one budget.
    ///
    /// If the peer has separate quotas, use separate keys, because a pause for one quota would
    /// delay the requests of the others.
    ///
    /// A request without a key is not sent; its error is the [`KeyRejection`](key::KeyRejection). A
    /// request that the extractor skips is sent without a limit and without pauses, and its
    /// response is ignored.
    pub fn key<K>(self, extractor: K) -> OutboundLayer<K> {
        OutboundLayer {
            peer: self.peer,
            key: Arc::new(extractor),
        }
    }

    /// Sets the number of permits that a request takes. Default: 1. With a cost of 0, only the
    /// peer's pauses apply.
    pub fn cost(mut self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        Arc::make_mut(&mut self.peer).cost = cost.try_into().map_err(Into::into);
        self
    }

    /// Lets a request wait, for `wait` at most in total: for the end of a pause, and then for its
    /// permit in order of arrival, as [`Limiter::acquire`]. The request fails at once if the pause
    /// ends later. Default: zero, so that only the policy's denial setting
    /// ([`OnDenial`](limiter_core::OnDenial)) can make it wait; this setting replaces the policy's.
    /// A gRPC request waits no longer than its `grpc-timeout` (`tonic::Request::set_timeout`).
    ///
    /// The limiter bounds the number of waiting requests
    /// ([`InProcessBuilder::max_waiting`](limiter_core::InProcessBuilder::max_waiting)), including
    /// those that wait for the end of a pause.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// # use http::{Request, Response};
    /// # use limiter_core::{Limiter, ManualClock, Policy};
    /// # use limiter_tower::RateLimitLayer;
    /// # use std::{convert::Infallible, time::Duration};
    /// # use tower::{ServiceBuilder, ServiceExt};
    /// # let clock = ManualClock::new();
    /// # let limits = Limiter::in_process().clock(&clock).build();
    /// # let policy = Policy::token_bucket("them").capacity(1).rate("1/s").build()?;
    /// let client = ServiceBuilder::new()
    ///     .layer(RateLimitLayer::outbound(&limits, policy).max_wait(Duration::from_secs(2)))
    ///     .service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
    ///
    /// assert!(client.clone().oneshot(Request::new(())).await.is_ok());
    /// let second = client.oneshot(Request::new(()));
    /// let (second, ()) = tokio::join!(second, async { clock.advance(Duration::from_secs(1)) });
    /// assert!(second.is_ok());
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    pub fn max_wait(mut self, wait: Duration) -> Self {
        Arc::make_mut(&mut self.peer).wait = wait;
        self
    }

    /// Sets the maximum length of a pause, from the response that requests it. A broken or hostile
    /// peer must not stop a client for ever. Default:
    /// [`DEFAULT_MAX_PAUSE`](OutboundLayer::DEFAULT_MAX_PAUSE). Zero: the pauses that the peer
    /// requests are ignored.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// # use http::{Request, Response};
    /// # use limiter_core::{Limiter, ManualClock, Policy};
    /// # use limiter_tower::{RateLimitLayer, outbound};
    /// # use std::time::Duration;
    /// # use tower::{ServiceBuilder, ServiceExt};
    /// # let limits = Limiter::in_process().clock(&ManualClock::new()).build();
    /// # let policy = Policy::token_bucket("them").capacity(10).rate("1/s").build()?;
    /// let client = ServiceBuilder::new()
    ///     .layer(RateLimitLayer::outbound(&limits, policy).max_pause(Duration::from_secs(60)))
    ///     .service_fn(async |_: Request<()>| Response::builder().status(429).header("retry-after", "86400").body(()));
    ///
    /// assert_eq!(client.clone().oneshot(Request::new(())).await.unwrap().status(), 429);
    /// let error = client.oneshot(Request::new(())).await.unwrap_err();
    /// assert_eq!(outbound::rejection(&*error).unwrap().retry_after(), Some(Duration::from_secs(60)));
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// # }).unwrap();
    /// ```
    pub fn max_pause(mut self, longest: Duration) -> Self {
        Arc::make_mut(&mut self.peer).longest_pause = longest;
        self
    }
}

impl<E> OutboundLayer<E> {
    /// Fails if requests could not be decided as configured, as
    /// [`RateLimitLayer::verify`](crate::RateLimitLayer::verify).
    ///
    /// # Errors
    ///
    /// The first error.
    pub fn verify(self) -> Result<Self, ConfigError> {
        self.peer.verify()?;
        Ok(self)
    }
}

impl<S, E> Layer<S> for OutboundLayer<E> {
    type Service = Outbound<S, E>;

    fn layer(&self, inner: S) -> Self::Service {
        self.peer.log_errors();
        Outbound::new(inner, Arc::clone(&self.peer), Arc::clone(&self.key))
    }
}

impl<E> Clone for OutboundLayer<E> {
    fn clone(&self) -> Self {
        Self {
            peer: Arc::clone(&self.peer),
            key: Arc::clone(&self.key),
        }
    }
}

impl<E> fmt::Debug for OutboundLayer<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundLayer")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
