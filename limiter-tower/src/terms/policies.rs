//! What a layer is given to limit by.

use limiter_core::Policy;

use super::tier::Tier;
use crate::layer::NoKey;

/// What [`RateLimitLayer::new`](crate::RateLimitLayer::new) limits by: a [`Policy`]; several in an array or a [`Vec`], all of which
/// are charged by one decision, or none; the name of one in the limiter's book; a [`Tier`]; or a closure that answers one of these
/// for each request.
///
/// `M` tells closures from the rest, and is never named.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what a request can be limited by",
    note = "give a `Policy`, an array of them, the name of one in the limiter's book,",
    note = "or a closure that names the request's type: `|request: &Request<Body>| …`, and returns one of these"
)]
pub trait Policies<M>: sealed::Sealed<M> {
    /// The layer's parameter until it has a key.
    type Unkeyed;

    #[doc(hidden)]
    fn into_parts(self) -> (Tier, Self::Unkeyed);
}

/// The policies are the same for all requests.
#[derive(Clone, Copy, Debug)]
pub struct Fixed(());

/// The policies of a request are found by the closure `F`.
#[derive(Clone, Copy, Debug)]
pub struct PerRequest<F>(pub(crate) F);

impl Fixed {
    pub(crate) const fn new() -> Self {
        Self(())
    }
}

macro_rules! policies_from {
    ($($type:ty),*) => {$(
        impl sealed::Sealed<Fixed> for $type {}

        impl Policies<Fixed> for $type {
            type Unkeyed = NoKey;

            fn into_parts(self) -> (Tier, NoKey) {
                (self.into(), NoKey::fixed())
            }
        }
    )*};
}
policies_from!(Policy, &Policy, Tier, &'static str, String);

impl<T: Into<Tier>, const N: usize> sealed::Sealed<Fixed> for [T; N] {}

impl<T: Into<Tier>, const N: usize> Policies<Fixed> for [T; N] {
    type Unkeyed = NoKey;

    fn into_parts(self) -> (Tier, NoKey) {
        (self.into(), NoKey::fixed())
    }
}

impl<T: Into<Tier>> sealed::Sealed<Fixed> for Vec<T> {}

impl<T: Into<Tier>> Policies<Fixed> for Vec<T> {
    type Unkeyed = NoKey;

    fn into_parts(self) -> (Tier, NoKey) {
        (self.into(), NoKey::fixed())
    }
}

impl<F, B, T> sealed::Sealed<PerRequest<B>> for F
where
    F: Fn(&http::Request<B>) -> T,
    T: Into<Tier>,
{
}

#[diagnostic::do_not_recommend]
impl<F, B, T> Policies<PerRequest<B>> for F
where
    F: Fn(&http::Request<B>) -> T,
    T: Into<Tier>,
{
    type Unkeyed = NoKey<PerRequest<F>>;

    fn into_parts(self) -> (Tier, Self::Unkeyed) {
        (Tier::unlimited(), NoKey::per_request(self))
    }
}

mod sealed {
    pub trait Sealed<M> {}
}
