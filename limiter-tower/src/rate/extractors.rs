//! Extractors that answer terms.

use std::any::type_name;
use std::fmt;
use std::sync::Arc;

use http::Request;
use limiter_core::{Amount, ConfigError};

use crate::key::{Extraction, KeyExtractor, KeyRejection};
use crate::request_limits::{PolicySet, RequestLimits};

/// ResponseConfig what a hook says. Made by
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

/// Finds the key by `E`, and the policies by `F`. Made where
/// [`RateLimitLayer::new`](crate::RateLimitLayer::new) is given a closure.
pub struct WithChosenPolicies<E, F> {
    pub(crate) key: Arc<E>,
    pub(crate) tiers: Arc<F>,
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
                RequestLimits::with_optional_cost((self.tiers)(request).into(), key, None).into()
            }
            Extraction::Pending(later) => {
                let tier = (self.tiers)(request).into();
                Extraction::Pending(later.then(|answer| match answer {
                    Extraction::Key(key) => RequestLimits::with_optional_cost(tier, key, None).into(),
                    answer => answer,
                }))
            }
            answer @ (Extraction::Limits(_) | Extraction::Skip | Extraction::Reject(_)) => answer,
        }
    }
}

/// Finds the key by `E`, and the cost by `F`. Made by
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
            Extraction::Pending(later) => Extraction::Pending(later.then(|answer| costed(answer, cost))),
            answer => costed(answer, cost),
        }
    }
}

/// The answer, at this cost where it says none.
fn costed(answer: Extraction<'_>, cost: Result<Amount, ConfigError>) -> Extraction<'_> {
    let mut terms = match answer {
        Extraction::Key(key) => RequestLimits::of_layer(key),
        Extraction::Limits(terms) => terms,
        answer @ (Extraction::Skip | Extraction::Reject(_) | Extraction::Pending(_)) => return answer,
    };
    for limit in terms.limits.iter_mut().filter(|limit| limit.cost.is_none()) {
        limit.cost = Some(cost.clone());
    }
    Extraction::Limits(terms)
}

/// What a hook may return for a request: [`RequestLimits`]; `None`, which refuses the request with
/// 400; or `Err` with a [`KeyRejection`] or a status, which refuses it so.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what a request is limited by",
    note = "return `RequestLimits`, an `Option<RequestLimits>`, or a `Result<RequestLimits, E>` whose `E` is a `StatusCode` or a `key::KeyRejection`: \
            `KeyRejection::new(status, \"why\")`",
    note = "to say by which key alone, give the layer its policy: `RateLimitLayer::new(&limits, policy).key(…)`"
)]
pub trait IntoRequestLimits {
    /// The answer.
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
        self.map_or_else(|refusal| Extraction::Reject(refusal.into()), Extraction::from)
    }
}

/// How many permits a request takes, as [`RateLimitLayer::cost_by`](crate::RateLimitLayer::cost_by)
/// may be told: an integer, a float, or an [`Amount`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no number of permits",
    note = "return an integer, or a `limiter_core::Amount`;",
    note = "where a request may not say how many, return what it takes then: `.unwrap_or(1)`"
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
