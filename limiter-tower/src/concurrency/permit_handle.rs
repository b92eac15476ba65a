//! The permit of a request.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use limiter_core::Origin;
use limiter_core::concurrency::ConcurrencyPermit;

/// The permit by which a request is in flight. Dropping it gives the permit back, unless a handler
/// has [a share in it](crate::ConcurrencyLimitLayer::with_permit_extension).
#[derive(Debug)]
pub struct PermitHandle(Kind);

// A permit stays where it is, so that one in process costs no allocation.
#[allow(
    clippy::large_enum_variant,
    reason = "the large one is the usual one; without Redis it is not that large"
)]
#[derive(Debug)]
enum Kind {
    Own(ConcurrencyPermit),
    Shared(Arc<ConcurrencyPermit>),
}

impl PermitHandle {
    pub(super) fn new(permit: ConcurrencyPermit) -> Self {
        Self(Kind::Own(permit))
    }

    pub(super) fn shared(permit: &Arc<ConcurrencyPermit>) -> Self {
        Self(Kind::Shared(Arc::clone(permit)))
    }

    /// The permit, which tells whether it is [still held](ConcurrencyPermit::is_valid) and [when it
    /// is not](ConcurrencyPermit::lost).
    pub fn permit(&self) -> &ConcurrencyPermit {
        match &self.0 {
            Kind::Own(permit) => permit,
            Kind::Shared(permit) => permit,
        }
    }

    /// Releases the permit, if no handler has a share in it. A release that Redis has to confirm is
    /// returned.
    pub(super) fn release(self) -> Option<Release> {
        if !self.permit().is_valid() {
            tracing::debug!("request outlived its concurrency permit; the lease was not renewed");
        }
        let permit = match self.0 {
            Kind::Own(permit) => permit,
            Kind::Shared(permit) => Arc::into_inner(permit)?,
        };
        match permit.decision().origin() {
            Origin::Redis | Origin::Lease => Some(Release::new(permit)),
            // Released as soon as it is dropped.
            _ => None,
        }
    }
}

/// The release of a permit in Redis. It ends when Redis has confirmed it, or when the policy's
/// deadline has passed; then, and when it is dropped, the release goes on in the background.
pub(super) struct Release(
    // A future of the limiter is not `Sync`, and a body should be: it is only used by `&mut`.
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
