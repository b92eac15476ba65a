//! The permit of a request.

use std::sync::Arc;

use limiter_core::Permit;

/// The permit by which a request is in flight. Dropping it gives the permit back, unless a handler has
/// [a share in it](crate::InFlightLayer::with_permits).
#[derive(Debug)]
pub struct Held(Kind);

// A permit stays where it is, so that one in process costs no allocation.
#[allow(
    clippy::large_enum_variant,
    reason = "the large one is the usual one; without Redis it is not that large"
)]
#[derive(Debug)]
enum Kind {
    Own(Permit),
    Shared(Arc<Permit>),
}

impl Held {
    pub(super) fn own(permit: Permit) -> Self {
        Self(Kind::Own(permit))
    }

    pub(super) fn shared(permit: &Arc<Permit>) -> Self {
        Self(Kind::Shared(Arc::clone(permit)))
    }

    /// The permit, which tells whether it is [still held](Permit::is_held) and [when it is not](Permit::lost).
    pub fn permit(&self) -> &Permit {
        match &self.0 {
            Kind::Own(permit) => permit,
            Kind::Shared(permit) => permit,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.permit().is_held() {
            tracing::debug!(
                "a request was in flight for longer than its permit, whose lease could not be renewed"
            );
        }
    }
}
