//! What a client's layer may be given to limit by.

use limiter_core::Policy;

use super::upstream::Limit;

/// What [`RateLimitLayer::outbound`](crate::RateLimitLayer::outbound) holds requests to: a
/// [`Policy`], or the name of one in the limiter's registry.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what a client can be held to",
    note = "give one `Policy`, or the name of one in the limiter's registry; several are a layer each"
)]
pub trait OutboundPolicy: sealed::Sealed {
    #[doc(hidden)]
    fn into_limit(self) -> Limit;
}

impl OutboundPolicy for Policy {
    fn into_limit(self) -> Limit {
        Limit::Given(self)
    }
}

impl OutboundPolicy for &Policy {
    fn into_limit(self) -> Limit {
        Limit::Given(self.clone())
    }
}

impl OutboundPolicy for &'static str {
    fn into_limit(self) -> Limit {
        Limit::Named(self.into())
    }
}

impl OutboundPolicy for String {
    fn into_limit(self) -> Limit {
        Limit::Named(self.into())
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
