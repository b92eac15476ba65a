//! Extractors that answer terms.

use std::any::type_name;
use std::fmt;
use std::sync::Arc;

use http::Request;
use limiter_core::{Amount, ConfigError};

use super::{IntoCost, IntoTerms, Terms, Tier};
use crate::key::{Answer, ExtractKey};

/// Answers what a hook says. Made by [`RateLimitLayer::by`](crate::RateLimitLayer::by).
pub struct Hook<F>(pub(crate) F);

impl<B, F, T> ExtractKey<B> for Hook<F>
where
    F: Fn(&Request<B>) -> T,
    T: IntoTerms,
{
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Answer<'a> {
        (self.0)(request).into_terms()
    }
}

/// Finds the key by `E`, and the policies by `F`. Made where [`RateLimitLayer::new`](crate::RateLimitLayer::new) is given a closure.
pub struct Tiered<E, F> {
    pub(crate) key: E,
    pub(crate) tiers: F,
}

impl<B, E, F, T> ExtractKey<B> for Tiered<E, F>
where
    E: ExtractKey<B>,
    F: Fn(&Request<B>) -> T,
    T: Into<Tier>,
{
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Answer<'a> {
        match self.key.extract(request) {
            Answer::Key(key) => Terms::of((self.tiers)(request).into(), key, None).into(),
            Answer::Later(later) => {
                let tier = (self.tiers)(request).into();
                Answer::Later(later.then(|answer| match answer {
                    Answer::Key(key) => Terms::of(tier, key, None).into(),
                    answer => answer,
                }))
            }
            answer @ (Answer::Terms(_) | Answer::Skip | Answer::Refuse(_)) => answer,
        }
    }
}

/// Finds the key by `E`, and the cost by `F`. Made by [`RateLimitLayer::cost_by`](crate::RateLimitLayer::cost_by).
pub struct Costed<E, F> {
    pub(crate) key: Arc<E>,
    pub(crate) cost: F,
}

impl<B, E, F, C> ExtractKey<B> for Costed<E, F>
where
    E: ExtractKey<B>,
    F: Fn(&Request<B>) -> C,
    C: IntoCost,
{
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Answer<'a> {
        let answer = self.key.extract(request);
        if let Answer::Skip | Answer::Refuse(_) = answer {
            return answer;
        }
        let cost = (self.cost)(request).try_into().map_err(Into::into);
        match answer {
            Answer::Later(later) => Answer::Later(later.then(|answer| costed(answer, cost))),
            answer => costed(answer, cost),
        }
    }
}

/// The answer, at this cost where it says none.
fn costed(answer: Answer<'_>, cost: Result<Amount, ConfigError>) -> Answer<'_> {
    let mut terms = match answer {
        Answer::Key(key) => Terms::of_layer(key),
        Answer::Terms(terms) => terms,
        answer @ (Answer::Skip | Answer::Refuse(_) | Answer::Later(_)) => return answer,
    };
    for limit in terms.limits.iter_mut().filter(|limit| limit.cost.is_none()) {
        limit.cost = Some(cost.clone());
    }
    Answer::Terms(terms)
}

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
debug_by_name!(Hook<F>, Tiered<E, F>, Costed<E, F>);
