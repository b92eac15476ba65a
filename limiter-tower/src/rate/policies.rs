//! The policies of a layer.
//!
//! `RateLimitLayer::new` accepts fixed policies and closures over the request, which have different
//! options. The marker `M` of [`Policies`] separates these implementations, which would overlap
//! otherwise. Each argument becomes a [`PolicySet`] and the options of the layer's typestate.
//!
//! Invariant: the trait is sealed, so further types can be added. Tests:
//! `tests/decisions/request_limits.rs`, `tests/http.rs`.

use limiter_core::Policy;

use super::typestate::{FixedPolicies, PoliciesPerRequest};
use crate::request_limits::PolicySet;

/// The policies of [`RateLimitLayer::new`](crate::RateLimitLayer::new): a [`Policy`]; several in an
/// array or a [`Vec`], all of which are charged by one decision, or none; the name of one in the
/// limiter's registry; a [`PolicySet`]; or a closure that returns one of these for each request.
///
/// `M` distinguishes closures from the other types, and is always inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a policy or a set of policies",
    note = "pass a `Policy`, an array of them, the name of one in the limiter's registry,",
    note = "or a closure that names the request's type: `|request: &Request<Body>| …`, and returns one of these"
)]
pub trait Policies<M>: sealed::Sealed<M> {
    /// The layer's options.
    type Options;

    #[doc(hidden)]
    fn into_parts(self) -> (PolicySet, Self::Options);
}

macro_rules! policies_from {
    ($($type:ty),*) => {$(
        impl sealed::Sealed<FixedPolicies> for $type {}

        impl Policies<FixedPolicies> for $type {
            type Options = FixedPolicies;

            fn into_parts(self) -> (PolicySet, FixedPolicies) {
                (self.into(), FixedPolicies::new())
            }
        }
    )*};
}
policies_from!(Policy, &Policy, PolicySet, &'static str, String);

impl<T: Into<PolicySet>, const N: usize> sealed::Sealed<FixedPolicies> for [T; N] {}

impl<T: Into<PolicySet>, const N: usize> Policies<FixedPolicies> for [T; N] {
    type Options = FixedPolicies;

    fn into_parts(self) -> (PolicySet, FixedPolicies) {
        (self.into(), FixedPolicies::new())
    }
}

impl<T: Into<PolicySet>> sealed::Sealed<FixedPolicies> for Vec<T> {}

impl<T: Into<PolicySet>> Policies<FixedPolicies> for Vec<T> {
    type Options = FixedPolicies;

    fn into_parts(self) -> (PolicySet, FixedPolicies) {
        (self.into(), FixedPolicies::new())
    }
}

impl<F, B, T> sealed::Sealed<PoliciesPerRequest<B>> for F
where
    F: Fn(&http::Request<B>) -> T,
    T: Into<PolicySet>,
{
}

#[diagnostic::do_not_recommend]
impl<F, B, T> Policies<PoliciesPerRequest<B>> for F
where
    F: Fn(&http::Request<B>) -> T,
    T: Into<PolicySet>,
{
    type Options = PoliciesPerRequest<F>;

    fn into_parts(self) -> (PolicySet, Self::Options) {
        (PolicySet::unlimited(), PoliciesPerRequest::new(self))
    }
}

mod sealed {
    pub trait Sealed<M> {}
}
