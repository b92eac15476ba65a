//! The permit of a request.
//!
//! A response body holds the permit, and a handler may hold a share of it. The last owner releases
//! the permit: in process by the drop, in Redis by a [`Release`] that the response awaits. An
//! unshared permit is stored inline, so a request in process allocates nothing.
//!
//! Invariant: a permit is not released while a share exists
//! (`handler_can_keep_its_permit_extension` in `tests/load/bodies.rs`).

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use http::Method;
use limiter_core::Origin;
use limiter_core::concurrency::ConcurrencyPermit;

/// The permit of a request. Dropping it releases the permit, unless a handler has [a share of
/// it](crate::ConcurrencyLimitLayer::with_permit_extension).
#[derive(Debug)]
pub struct PermitHandle {
    permit: Ownership,
    /// True if the server does not send the body of the response.
    ends_with_head: bool,
}

// The permit is stored inline, so that a permit in process costs no allocation.
// `allow`, because `expect` is not fulfilled without limiter-core's feature `redis`: the permit is
// smaller then.
#[allow(
    clippy::large_enum_variant,
    reason = "the larger variant is the usual one, and a box would allocate for each request"
)]
#[derive(Debug)]
enum Ownership {
    Exclusive(ConcurrencyPermit),
    Shared(Arc<ConcurrencyPermit>),
}

impl PermitHandle {
    pub(super) fn new(permit: ConcurrencyPermit) -> Self {
        Self {
            permit: Ownership::Exclusive(permit),
            ends_with_head: false,
        }
    }

    pub(super) fn shared(permit: &Arc<ConcurrencyPermit>) -> Self {
        Self {
            permit: Ownership::Shared(Arc::clone(permit)),
            ends_with_head: false,
        }
    }

    /// Adapts the handle to the method of its request.
    pub(super) fn for_method(self, method: &Method) -> Self {
        Self {
            ends_with_head: *method == Method::HEAD,
            ..self
        }
    }

    /// Returns whether the request ends with the head of its response.
    pub(super) fn ends_with_head(&self) -> bool {
        self.ends_with_head
    }

    /// Returns the permit, which reports whether it is [still valid](ConcurrencyPermit::is_valid)
    /// and [when it is lost](ConcurrencyPermit::lost).
    pub fn permit(&self) -> &ConcurrencyPermit {
        match &self.permit {
            Ownership::Exclusive(permit) => permit,
            Ownership::Shared(permit) => permit,
        }
    }

    /// Releases the permit, if no handler has a share in it. A release that Redis has to confirm is
    /// returned.
    pub(super) fn release(self) -> Option<Release> {
        if !self.permit().is_valid() {
            tracing::debug!("request outlived its concurrency permit; the lease was not renewed");
        }
        let permit = match self.permit {
            Ownership::Exclusive(permit) => permit,
            Ownership::Shared(permit) => Arc::into_inner(permit)?,
        };
        match permit.decision().origin() {
            Origin::Redis | Origin::Lease => Some(Release::new(permit)),
            // The drop releases the permit immediately.
            _ => None,
        }
    }
}

/// The release of a permit in Redis. It completes when Redis has confirmed it, or when the policy's
/// deadline has passed. After the deadline, or if this future is dropped, the release continues in
/// the background.
pub(super) struct Release(
    // The limiter's futures are not `Sync`, and a body should be. The mutex is only accessed
    // through `&mut`.
    Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>,
);

impl Release {
    fn new(permit: ConcurrencyPermit) -> Self {
        Self(Mutex::new(Box::pin(async move {
            if let Err(error) = permit.release().await {
                tracing::debug!(%error, "the release of a permit is not confirmed yet");
            }
        })))
    }
}

impl Future for Release {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let release = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        release.as_mut().poll(context)
    }
}

impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Release")
    }
}
