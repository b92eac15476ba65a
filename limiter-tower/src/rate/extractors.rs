//! Extractors that add policies or a cost to the key of a request.
//!
//! Policies and costs can depend on the request, but the service handles one extractor. Each
//! closure of a layer is therefore an extractor, which wraps the extractor of the key if there is
//! one. For a pending key the closures run immediately, because the pending result cannot borrow
//! the request.
//!
//! Invariant: the closure for the cost never replaces a cost that a limit states. Tests:
//! `tests/decisions/request_limits.rs`, `tests/decisions/pending_keys.rs`.

use std::any::type_name;
use std::fmt;
use std::sync::Arc;

use http::Request;
use limiter_core::{Amount, ConfigError};

use crate::key::{Extraction, KeyExtractor, KeyRejection};
use crate::request_limits::{PolicySet, RequestLimits};

/// An extractor that returns the limits of each request from a closure. Created by
/// [`RateLimitLayer::limits_for`](crate::RateLimitLayer::limits_for).
pub struct LimitsFor<F>(pub(crate) F);

impl<B, F, T> KeyExtractor<B> for LimitsFor<F>
where
    F: Fn(&Request<B>) -> T,
    T: IntoRequestLimits,
{
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        (self.0)(request).into_request_limits()
    }
}

/// Extracts the key with `E`, and the policies with `F`. Created by a layer that
/// [`RateLimitLayer::new`](crate::RateLimitLayer::new) builds from a closure.
pub struct WithChosenPolicies<E, F> {
    pub(crate) key: Arc<E>,
    pub(crate) policies: Arc<F>,
}

impl<B, E, F, T> KeyExtractor<B> for WithChosenPolicies<E, F>
where
    E: KeyExtractor<B>,
    F: Fn(&Request<B>) -> T,
    T: Into<PolicySet>,
{
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        match self.key.extract(request) {
            Extraction::Key(key) => {
                RequestLimits::with_optional_cost((self.policies)(request).into(), key, None).into()
            }
            Extraction::Pending(pending) => {
                let policies = (self.policies)(request).into();
                Extraction::Pending(pending.then(|answer| match answer {
                    Extraction::Key(key) => RequestLimits::with_optional_cost(policies, key, None).into(),
                    answer => answer,
                }))
            }
            answer @ (Extraction::Limits(_) | Extraction::Skip | Extraction::Reject(_)) => answer,
        }
    }
}

/// Extracts the key with `E`, and the cost with `F`. Created by
/// [`RateLimitLayer::cost_by`](crate::RateLimitLayer::cost_by).
pub struct WithCost<E, F> {
    pub(crate) key: Arc<E>,
    pub(crate) cost: Arc<F>,
}

impl<B, E, F, C> KeyExtractor<B> for WithCost<E, F>
where
    E: KeyExtractor<B>,
    F: Fn(&Request<B>) -> C,
    C: IntoCost,
{
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        let answer = self.key.extract(request);
        if let Extraction::Skip | Extraction::Reject(_) = answer {
            return answer;
        }
        let cost = (self.cost)(request).try_into().map_err(Into::into);
        match answer {
            Extraction::Pending(pending) => Extraction::Pending(pending.then(|answer| costed(answer, cost))),
            answer => costed(answer, cost),
        }
    }
}

/// Adds the cost to an extraction without a cost.
fn costed(answer: Extraction<'_>, cost: Result<Amount, ConfigError>) -> Extraction<'_> {
    let mut request_limits = match answer {
        Extraction::Key(key) => RequestLimits::of_layer(key),
        Extraction::Limits(request_limits) => request_limits,
        answer @ (Extraction::Skip | Extraction::Reject(_) | Extraction::Pending(_)) => return answer,
    };
    for limit in request_limits
        .limits
        .iter_mut()
        .filter(|limit| limit.cost.is_none())
    {
        limit.cost = Some(cost.clone());
    }
    Extraction::Limits(request_limits)
}

/// The return value of a closure over a request: [`RequestLimits`]; `None`, which rejects the
/// request with 400; or `Err` with a [`KeyRejection`] or a status, which rejects it accordingly.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not state the limits of a request",
    note = "return `RequestLimits`, an `Option<RequestLimits>`, or a `Result<RequestLimits, E>` whose `E` is a `StatusCode` or a `key::KeyRejection`: \
            `KeyRejection::new(status, \"why\")`",
    note = "to return only a key, set the policy of the layer: `RateLimitLayer::new(&limits, policy).key(…)`"
)]
pub trait IntoRequestLimits {
    /// Returns the answer.
    fn into_request_limits(self) -> Extraction<'static>;
}

impl IntoRequestLimits for RequestLimits<'static> {
    fn into_request_limits(self) -> Extraction<'static> {
        self.into()
    }
}

impl IntoRequestLimits for Option<RequestLimits<'static>> {
    fn into_request_limits(self) -> Extraction<'static> {
        self.map_or_else(|| Extraction::Reject(KeyRejection::lacks_key()), Extraction::from)
    }
}

#[diagnostic::do_not_recommend]
impl<R: Into<KeyRejection>> IntoRequestLimits for Result<RequestLimits<'static>, R> {
    fn into_request_limits(self) -> Extraction<'static> {
        self.map_or_else(|rejection| Extraction::Reject(rejection.into()), Extraction::from)
    }
}

/// A number of permits, as returned by the closure of
/// [`RateLimitLayer::cost_by`](crate::RateLimitLayer::cost_by): an integer, a float, or an
/// [`Amount`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no number of permits",
    note = "return an integer, or a `limiter_core::Amount`;",
    note = "if a request may lack the number, return a default: `.unwrap_or(1)`"
)]
pub trait IntoCost: TryInto<Amount, Error: Into<ConfigError>> {}

#[diagnostic::do_not_recommend]
impl<C: TryInto<Amount, Error: Into<ConfigError>>> IntoCost for C {}

macro_rules! debug_by_name {
    ($($type:ident<$($parameter:ident),*>),*) => {$(
        impl<$($parameter),*> fmt::Debug for $type<$($parameter),*> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($type))
                    $(.field(stringify!($parameter), &type_name::<$parameter>()))*
                    .finish_non_exhaustive()
            }
        }
    )*};
}
debug_by_name!(LimitsFor<F>, WithChosenPolicies<E, F>, WithCost<E, F>);
