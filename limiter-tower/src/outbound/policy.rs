//! The policies of an outbound layer.

use limiter_core::Policy;

use super::peer_limits::PolicySource;

/// The policy of [`RateLimitLayer::outbound`](crate::RateLimitLayer::outbound): a [`Policy`], or
/// the name of one in the limiter's registry.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a policy for outbound requests",
    note = "pass one `Policy`, or the name of one in the limiter's registry; use one layer for each policy"
)]
pub trait OutboundPolicy: sealed::Sealed {
    #[doc(hidden)]
    fn into_source(self) -> PolicySource;
}

impl OutboundPolicy for Policy {
    fn into_source(self) -> PolicySource {
        PolicySource::Given(self)
    }
}

impl OutboundPolicy for &Policy {
    fn into_source(self) -> PolicySource {
        PolicySource::Given(self.clone())
    }
}

impl OutboundPolicy for &'static str {
    fn into_source(self) -> PolicySource {
        PolicySource::Named(self.into())
    }
}

impl OutboundPolicy for String {
    fn into_source(self) -> PolicySource {
        PolicySource::Named(self.into())
    }
}

mod sealed {
    use limiter_core::Policy;

    pub trait Sealed {}

    impl Sealed for Policy {}
    impl Sealed for &Policy {}
    impl Sealed for &'static str {}
    impl Sealed for String {}
}
