//! The limits of one request: policies, keys and costs.
//!
//! The limits of a layer are fixed, but a request can need others, several, or none. A closure or
//! an extractor returns `RequestLimits`, in which each limit has its own key and can have its own
//! cost.
//!
//! Invariant: all limits of a request are one decision, which charges all of them or none. Tests:
//! `tests/decisions/request_limits.rs`, and the doctests below.

mod policy_set;

use std::fmt;

use limiter_core::__private::OneOrMany;
use limiter_core::{Amount, ConfigError, Key};

pub use policy_set::PolicySet;
pub(crate) use policy_set::RequestedPolicy;

/// The limits of one request: policies with keys and costs. Either all of them are charged or none.
///
/// A closure for [`RateLimitLayer::limits_for`](crate::RateLimitLayer::limits_for) returns them:
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
/// Limits that are decided together need keys of one group, as for
/// [`Limiter::check_all`](limiter_core::Limiter::check_all), because a Redis Cluster decides within
/// one slot. Equal keys have the same group; a user's key and a global key do not, and such a
/// request is answered with 500 and logged. Without a cluster, create the limiter with
/// [`standalone_only`](limiter_core::InProcessBuilder::standalone_only) (the Redis builder has the
/// same method); then any keys can be combined:
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
/// assert_eq!(ask("ann").await, 429, "the limit of ann; the denial takes no permit of all");
/// assert_eq!(ask("bob").await, 200);
/// assert_eq!(ask("eve").await, 429, "the limit of all");
/// # Ok::<(), limiter_core::ConfigError>(())
/// # }).unwrap();
/// ```
///
/// In a cluster, put both keys into one group: `Key::from(user).in_group("api")` and
/// `Key::global().in_group("api")`. The group is part of the key, so
/// [`peek`](limiter_core::Limiter::peek) and [`reset`](limiter_core::Limiter::reset) need it too.
/// All keys of a group are stored in one slot, and its node handles the requests of all users. If
/// this load is too high, nest two layers. They make two decisions, so a request that the inner
/// layer denies stays charged by the outer layer.
#[derive(Clone, PartialEq, Eq)]
#[must_use = "limits have no effect unless a closure returns them"]
pub struct RequestLimits<'a> {
    pub(crate) limits: OneOrMany<RequestLimit<'a>>,
}

/// One limit of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestLimit<'a> {
    pub(crate) which: RequestedPolicy,
    pub(crate) key: Key<'a>,
    /// `None`: the layer's cost.
    pub(crate) cost: Option<Result<Amount, ConfigError>>,
    /// Excludes the limit from settlement.
    pub(crate) keeps_cost: bool,
}

impl<'a> RequestLimits<'a> {
    /// Takes permits of `policy` for `key`. The policy is a [`Policy`](limiter_core::Policy), a
    /// reference to one, the name of one in the limiter's registry, or several of these in an array
    /// or a [`Vec`] (policies and names: `[PolicySet::from(&policy), PolicySet::from("daily")]`).
    pub fn new(policy: impl Into<PolicySet>, key: impl Into<Key<'a>>) -> Self {
        Self::with_optional_cost(policy.into(), key.into(), None)
    }

    /// Creates an empty list of limits: the request is neither limited nor counted.
    pub fn unlimited() -> Self {
        Self {
            limits: OneOrMany::default(),
        }
    }

    /// Sets the number of permits that the request takes from each limit added so far. Default: the
    /// layer's [`cost`](crate::RateLimitLayer::cost), which is 1 by default.
    pub fn cost(mut self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        let cost = cost.try_into().map_err(Into::into);
        self.limits
            .iter_mut()
            .for_each(|limit| limit.cost = Some(cost.clone()));
        self
    }

    /// Adds other limits. Either all limits are charged or none.
    pub fn and(self, others: RequestLimits<'a>) -> Self {
        Self {
            limits: self.limits.into_iter().chain(others.limits).collect(),
        }
    }

    /// Excludes the limits added so far from [settlement](crate::RateLimitLayer::settle), for
    /// example a limit on requests beside a limit on tokens. A response that does not
    /// [count](crate::RateLimitLayer::count_if) refunds all limits.
    pub fn unsettled(mut self) -> Self {
        self.limits.iter_mut().for_each(|limit| limit.keeps_cost = true);
        self
    }

    /// Copies borrowed keys.
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
        policies: PolicySet,
        key: Key<'a>,
        cost: Option<Result<Amount, ConfigError>>,
    ) -> Self {
        let limit = |which, key| RequestLimit {
            which,
            key,
            cost: cost.clone(),
            keeps_cost: false,
        };
        let limits = match policies.policies {
            OneOrMany::One(which) => OneOrMany::One(limit(which, key)),
            OneOrMany::Several(all) => all.into_iter().map(|which| limit(which, key.clone())).collect(),
        };
        Self { limits }
    }

    /// Returns the layer's policies with its cost, for this key.
    pub(crate) fn of_layer(key: Key<'a>) -> Self {
        Self {
            limits: OneOrMany::One(RequestLimit {
                which: RequestedPolicy::Layers,
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
