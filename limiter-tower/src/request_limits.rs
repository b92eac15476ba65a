//! What one request is limited by: policies, whose permits, and how many.

mod policy_set;

use std::fmt;

use limiter_core::__private::OneOrMany;
use limiter_core::{Amount, ConfigError, Key};

pub(crate) use policy_set::PolicyRef;
pub use policy_set::PolicySet;

/// What one request takes: permits of a policy for a key, or of several, all of which are charged,
/// or none.
///
/// The answer of a hook ([`RateLimitLayer::limits_for`](crate::RateLimitLayer::limits_for)), which
/// sees the whole request:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use http::{Method, Request, Response};
/// use limiter_core::{Limiter, ManualClock, Policy};
/// use limiter_tower::{RateLimitLayer, RequestLimits};
/// use std::convert::Infallible;
/// use tower::{ServiceBuilder, ServiceExt};
///
/// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
/// let reads = Policy::token_bucket("reads").capacity(100).rate("50/s").build()?;
/// let writes = Policy::sliding_window("writes").limit(2).window("1m").build()?;
/// let daily = Policy::fixed_window("daily").limit(10_000).window("1d").build()?;
///
/// let hook = move |request: &Request<String>| {
///     let user = request.headers().get("x-user")?.to_str().ok()?.to_owned();
///     let writing = request.method() != Method::GET;
///     let by_method = RequestLimits::new(if writing { &writes } else { &reads }, user.clone());
///     Some(by_method.and(RequestLimits::new(&daily, user).cost(if writing { 10 } else { 1 })))
/// };
/// let service = ServiceBuilder::new()
///     .layer(RateLimitLayer::limits_for(&limits, hook))
///     .service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
///
/// let ask = async |method: Method| {
///     let request = Request::builder().method(method).header("x-user", "ann").body(String::new());
///     service.clone().oneshot(request.unwrap()).await.unwrap().status()
/// };
/// assert_eq!(ask(Method::POST).await, 200);
/// assert_eq!(ask(Method::POST).await, 200);
/// assert_eq!(ask(Method::POST).await, 429);
/// assert_eq!(ask(Method::GET).await, 200);
/// # Ok::<(), limiter_core::ConfigError>(())
/// # }).unwrap();
/// ```
///
/// # A limit for each user beside one for all
///
/// Keys of limits that are decided together must share a group, as those of
/// [`Limiter::check_all`](limiter_core::Limiter::check_all), since a Redis Cluster decides about
/// one of its slots at a time. The same key is of the same group. A user's key and one for all are
/// not: such a request is answered with 500, and the log says why. Where no cluster decides, the
/// limiter is told so ([`standalone_only`](limiter_core::InProcessBuilder::standalone_only), which
/// the builder of one in Redis has as well), and any keys go together:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use http::{Request, Response};
/// use limiter_core::{Key, Limiter, ManualClock, Policy};
/// use limiter_tower::{RateLimitLayer, RequestLimits};
/// use std::convert::Infallible;
/// use tower::{ServiceBuilder, ServiceExt};
///
/// let limits = Limiter::in_process().standalone_only().clock(&ManualClock::new()).build();
/// let each = Policy::sliding_window("each").limit(2).window("1m").build()?;
/// let all = Policy::sliding_window("all").limit(3).window("1m").build()?;
///
/// let hook = move |request: &Request<String>| {
///     let user = request.headers().get("x-user")?.to_str().ok()?.to_owned();
///     Some(RequestLimits::new(&each, user).and(RequestLimits::new(&all, Key::global())))
/// };
/// let service = ServiceBuilder::new()
///     .layer(RateLimitLayer::limits_for(&limits, hook))
///     .service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
///
/// let ask = async |user: &str| {
///     let request = Request::builder().header("x-user", user).body(String::new());
///     service.clone().oneshot(request.unwrap()).await.unwrap().status()
/// };
/// assert_eq!(ask("ann").await, 200);
/// assert_eq!(ask("ann").await, 200);
/// assert_eq!(ask("ann").await, 429, "she has had hers, and took nothing from the others");
/// assert_eq!(ask("bob").await, 200);
/// assert_eq!(ask("eve").await, 429, "all together have had theirs");
/// # Ok::<(), limiter_core::ConfigError>(())
/// # }).unwrap();
/// ```
///
/// In a cluster, put both into one group, `Key::from(user).in_group("api")` and
/// `Key::global().in_group("api")`. It is a part of the key, so
/// [`peek`](limiter_core::Limiter::peek) and [`reset`](limiter_core::Limiter::reset) need it as
/// well, and all keys of a group lie in one slot, on one node: it has to bear the requests of all
/// users. Where that is too much, nest two layers: they are two decisions, so a request that the
/// inner one denies stays charged by the outer one.
#[derive(Clone, PartialEq, Eq)]
#[must_use = "terms limit nothing unless a hook answers them"]
pub struct RequestLimits<'a> {
    pub(crate) limits: OneOrMany<RequestLimit<'a>>,
}

/// One limit of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestLimit<'a> {
    pub(crate) which: PolicyRef,
    pub(crate) key: Key<'a>,
    /// `None`: what the layer says.
    pub(crate) cost: Option<Result<Amount, ConfigError>>,
    /// Whether it keeps its cost, whatever the response comes to.
    pub(crate) keeps_cost: bool,
}

impl<'a> RequestLimits<'a> {
    /// Takes permits of `policy` for `key`. The policy is a [`Policy`](limiter_core::Policy), or a
    /// reference to one; the name of one in the limiter's book; or several of these, in an array or
    /// a [`Vec`] (of both kinds: `[PolicySet::from(&policy), PolicySet::from("daily")]`).
    pub fn new(policy: impl Into<PolicySet>, key: impl Into<Key<'a>>) -> Self {
        Self::with_optional_cost(policy.into(), key.into(), None)
    }

    /// Takes nothing: the request is not limited, and not counted.
    pub fn unlimited() -> Self {
        Self {
            limits: OneOrMany::default(),
        }
    }

    /// How many permits the request takes, of each limit so far. Default: what the layer says
    /// ([`RateLimitLayer::cost`](crate::RateLimitLayer::cost)), 1 where it says nothing.
    pub fn cost(mut self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        let cost = cost.try_into().map_err(Into::into);
        self.limits
            .iter_mut()
            .for_each(|limit| limit.cost = Some(cost.clone()));
        self
    }

    /// Takes what others say besides: all of it, or nothing.
    pub fn and(self, others: RequestLimits<'a>) -> Self {
        Self {
            limits: self.limits.into_iter().chain(others.limits).collect(),
        }
    }

    /// Of the limits so far, what a response comes to changes nothing: what is
    /// [settled](crate::RateLimitLayer::settle) are the others. So a limit on requests stands
    /// beside one on tokens. A response that does not [count](crate::RateLimitLayer::count_if)
    /// gives back all of it.
    pub fn unsettled(mut self) -> Self {
        self.limits.iter_mut().for_each(|limit| limit.keeps_cost = true);
        self
    }

    /// The terms with nothing borrowed.
    pub fn into_owned(self) -> RequestLimits<'static> {
        let owned = |limit: RequestLimit<'a>| RequestLimit {
            which: limit.which,
            key: limit.key.into_owned(),
            cost: limit.cost,
            keeps_cost: limit.keeps_cost,
        };
        RequestLimits {
            limits: self.limits.into_iter().map(owned).collect(),
        }
    }

    pub(crate) fn with_optional_cost(
        tier: PolicySet,
        key: Key<'a>,
        cost: Option<Result<Amount, ConfigError>>,
    ) -> Self {
        let term = |which, key| RequestLimit {
            which,
            key,
            cost: cost.clone(),
            keeps_cost: false,
        };
        let limits = match tier.policies {
            OneOrMany::One(which) => OneOrMany::One(term(which, key)),
            OneOrMany::Several(all) => all.into_iter().map(|which| term(which, key.clone())).collect(),
        };
        Self { limits }
    }

    /// The answer for this key of a layer whose policies are given, at this cost.
    pub(crate) fn of_layer(key: Key<'a>) -> Self {
        Self {
            limits: OneOrMany::One(RequestLimit {
                which: PolicyRef::Layers,
                key,
                cost: None,
                keeps_cost: false,
            }),
        }
    }
}

impl fmt::Debug for RequestLimits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.limits.iter()).finish()
    }
}
