//! The type parameters of [`RateLimitLayer`](crate::RateLimitLayer) and
//! [`ConcurrencyLimitLayer`](crate::ConcurrencyLimitLayer): whether a key was chosen, and the
//! options of a request.
//!
//! Each setter of an option wraps the options before it, so setters and the key come in any order.
//! The options are applied to the key's extractor when the layer wraps a service. A layer without
//! options pays nothing for them.
//!
//! Tests: `tests/decisions/request_limits.rs` (`setters_apply_in_any_order`); a doctest of
//! [`RateLimitLayer`](crate::RateLimitLayer) verifies that a layer without a key does not compile.

use std::fmt;
use std::sync::Arc;

use super::extractors::{WithChosenPolicies, WithCost};
use crate::skip::UnlessSkipped;

/// A layer without a key. It does not implement [`Layer`](tower_layer::Layer).
#[derive(Clone, Copy, Debug)]
pub struct MissingKey(());

impl MissingKey {
    pub(crate) const fn new() -> Self {
        Self(())
    }
}

/// A layer whose key the extractor `E` finds.
pub struct WithKey<E>(Arc<E>);

impl<E> WithKey<E> {
    pub(crate) fn new(extractor: E) -> Self {
        Self(Arc::new(extractor))
    }
}

impl<E> Clone for WithKey<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E> fmt::Debug for WithKey<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WithKey")
    }
}

/// Implemented for layers with a key.
#[diagnostic::on_unimplemented(
    message = "this layer has no key",
    label = "the layer has no key",
    note = "choose a key: `.key(key::header(\"x-api-key\"))`, `.key(key::extension(|user: &User| &user.id))`, …",
    note = "or let all requests share one budget: `.key(key::global())`"
)]
pub trait HasKey: sealed::Sealed {
    /// The key's extractor.
    type Extractor;

    #[doc(hidden)]
    fn extractor(&self) -> Arc<Self::Extractor>;
}

impl<E> HasKey for WithKey<E> {
    type Extractor = E;

    fn extractor(&self) -> Arc<E> {
        Arc::clone(&self.0)
    }
}

/// The options of a request, applied to the key's extractor `E`.
pub trait RequestOptions<E>: sealed::Sealed {
    /// The extractor with the options applied.
    type Extractor;

    #[doc(hidden)]
    fn apply(&self, extractor: Arc<E>) -> Arc<Self::Extractor>;
}

/// No options: the layer's policies apply to all requests.
#[derive(Clone, Copy, Debug)]
pub struct FixedPolicies(());

impl FixedPolicies {
    pub(crate) const fn new() -> Self {
        Self(())
    }
}

impl<E> RequestOptions<E> for FixedPolicies {
    type Extractor = E;

    fn apply(&self, extractor: Arc<E>) -> Arc<E> {
        extractor
    }
}

/// The closure `F` chooses the policies of each request.
pub struct PoliciesPerRequest<F>(Arc<F>);

impl<F> PoliciesPerRequest<F> {
    pub(crate) fn new(policies: F) -> Self {
        Self(Arc::new(policies))
    }
}

impl<E, F> RequestOptions<E> for PoliciesPerRequest<F> {
    type Extractor = WithChosenPolicies<E, F>;

    fn apply(&self, key: Arc<E>) -> Arc<Self::Extractor> {
        let policies = Arc::clone(&self.0);
        Arc::new(WithChosenPolicies { key, policies })
    }
}

/// `S` skips requests, before the options `P`.
pub struct Skipping<S, P> {
    skip: Arc<S>,
    options: P,
}

impl<S, P> Skipping<S, P> {
    pub(crate) fn new(skip: S, options: P) -> Self {
        let skip = Arc::new(skip);
        Self { skip, options }
    }
}

impl<E, S, P: RequestOptions<E>> RequestOptions<E> for Skipping<S, P> {
    type Extractor = UnlessSkipped<S, P::Extractor>;

    fn apply(&self, extractor: Arc<E>) -> Arc<Self::Extractor> {
        let extractor = self.options.apply(extractor);
        Arc::new(UnlessSkipped::new(Arc::clone(&self.skip), extractor))
    }
}

/// The closure `F` finds the cost of a request, after the options `P`.
pub struct Costing<F, P> {
    cost: Arc<F>,
    options: P,
}

impl<F, P> Costing<F, P> {
    pub(crate) fn new(cost: F, options: P) -> Self {
        let cost = Arc::new(cost);
        Self { cost, options }
    }
}

impl<E, F, P: RequestOptions<E>> RequestOptions<E> for Costing<F, P> {
    type Extractor = WithCost<P::Extractor, F>;

    fn apply(&self, extractor: Arc<E>) -> Arc<Self::Extractor> {
        let key = self.options.apply(extractor);
        let cost = Arc::clone(&self.cost);
        Arc::new(WithCost { key, cost })
    }
}

impl<F> Clone for PoliciesPerRequest<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S, P: Clone> Clone for Skipping<S, P> {
    fn clone(&self) -> Self {
        Self {
            skip: Arc::clone(&self.skip),
            options: self.options.clone(),
        }
    }
}

impl<F, P: Clone> Clone for Costing<F, P> {
    fn clone(&self) -> Self {
        Self {
            cost: Arc::clone(&self.cost),
            options: self.options.clone(),
        }
    }
}

macro_rules! debug_by_name {
    ($($type:ident<$($parameter:ident),*>),*) => {$(
        impl<$($parameter),*> fmt::Debug for $type<$($parameter),*> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($type))
            }
        }
    )*};
}
debug_by_name!(PoliciesPerRequest<F>, Skipping<S, P>, Costing<F, P>);

mod sealed {
    pub trait Sealed {}

    impl<E> Sealed for super::WithKey<E> {}
    impl Sealed for super::FixedPolicies {}
    impl<F> Sealed for super::PoliciesPerRequest<F> {}
    impl<S, P> Sealed for super::Skipping<S, P> {}
    impl<F, P> Sealed for super::Costing<F, P> {}
}
