//! Keeps the body type of the inner service.
//!
//! The layers of this crate answer denied requests themselves, so their responses have a body type
//! of their own. `tower` requires equal response types in some places: `tower::util::option_layer`
//! applies a layer or leaves it out. [`SameBodyLayer`] converts the layer's body back to the inner
//! service's type. Test: `tests/layers.rs`.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::concurrency::PermitBody;
use crate::load_shed::LoadShedBody;
use crate::responses::body::ResponseBody;

/// Wraps a layer of this crate so that its responses have the body type of the inner service.
///
/// The inner body must be `axum::body::Body` (feature `axum`) or `tonic::body::Body` (feature
/// `tonic`), or a type of your own that implements `From<ResponseBody<Self>>`. A body that the
/// layer does not observe is passed on without an allocation.
///
/// ```
/// use axum::{Router, routing::get};
/// use limiter_core::{Limiter, Policy};
/// use limiter_tower::{RateLimitLayer, SameBodyLayer, key};
/// use tower::util::option_layer;
///
/// let limits = Limiter::in_process().build();
/// let policy = Policy::token_bucket("api").capacity(20).rate("10/s").build()?;
/// let enabled = std::env::var_os("RATE_LIMIT").is_some();
/// let limit = enabled.then(|| {
///     SameBodyLayer::new(RateLimitLayer::new(&limits, policy).key(key::header("x-api-key")))
/// });
/// let app: Router = Router::new().route("/", get(async || "found")).layer(option_layer(limit));
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct SameBodyLayer<L> {
    layer: L,
}

impl<L> SameBodyLayer<L> {
    /// Wraps `layer`.
    pub fn new(layer: L) -> Self {
        Self { layer }
    }
}

impl<S, L: Layer<S>> Layer<S> for SameBodyLayer<L> {
    type Service = SameBody<L::Service>;

    fn layer(&self, inner: S) -> Self::Service {
        SameBody {
            inner: self.layer.layer(inner),
        }
    }
}

/// The service of [`SameBodyLayer`].
#[derive(Clone, Copy, Debug)]
pub struct SameBody<S> {
    inner: S,
}

impl<S, B, R> Service<Request<B>> for SameBody<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: IntoInner,
{
    type Response = Response<R::Inner>;
    type Error = S::Error;
    type Future = SameBodyFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        SameBodyFuture {
            inner: self.inner.call(request),
        }
    }
}

#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService> tonic::server::NamedService for SameBody<S> {
    const NAME: &'static str = S::NAME;
}

pin_project! {
    /// The future of [`SameBody`].
    ///
    /// # Cancel safety
    ///
    /// As the future of the wrapped layer.
    #[must_use = "futures do nothing unless polled"]
    pub struct SameBodyFuture<F> {
        #[pin]
        inner: F,
    }
}

impl<F, R, E> Future for SameBodyFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: IntoInner,
{
    type Output = Result<Response<R::Inner>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let response = ready!(self.project().inner.poll(context))?;
        Poll::Ready(Ok(response.map(IntoInner::into_inner)))
    }
}

impl<F> fmt::Debug for SameBodyFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SameBodyFuture").finish_non_exhaustive()
    }
}

/// A body of this crate that converts to the body type it wraps.
pub trait IntoInner: sealed::Sealed {
    /// The inner body type.
    type Inner;

    #[doc(hidden)]
    fn into_inner(self) -> Self::Inner;
}

impl<B: From<Self>> IntoInner for ResponseBody<B> {
    type Inner = B;

    fn into_inner(self) -> B {
        self.into()
    }
}

impl<B: From<Self>> IntoInner for PermitBody<B> {
    type Inner = B;

    fn into_inner(self) -> B {
        self.into()
    }
}

impl<B: From<Self>, H> IntoInner for LoadShedBody<B, H> {
    type Inner = B;

    fn into_inner(self) -> B {
        self.into()
    }
}

mod sealed {
    pub trait Sealed {}

    impl<B> Sealed for super::ResponseBody<B> {}
    impl<B> Sealed for super::PermitBody<B> {}
    impl<B, H> Sealed for super::LoadShedBody<B, H> {}
}
