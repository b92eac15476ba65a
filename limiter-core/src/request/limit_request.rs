//! One limit of a decision, as a caller requests it, with its identity and its cost in the unit of
//! the algorithm.
//!
//! A cost above the quota and a cost that the algorithm cannot represent are rejected here. Tests:
//! `tests/contract/input.rs`.

use std::mem;

use crate::decision::Rejection;
use crate::error::ConfigError;
use crate::identity::Identity;
use crate::key::Key;
use crate::policy::{Algorithm, Funnel, LimiterDefaults, Policy, TokenBucket};
use crate::request::ValidatedLimit;
use crate::units::{Amount, MAX_EXACT};

/// One limit of a decision: a policy, a key, and the number of permits.
///
/// ```
/// use limiter_core::{LimitRequest, Policy};
///
/// let daily = Policy::sliding_window("daily").limit(1000).window("1d").build()?;
/// let request = LimitRequest::new(&daily, "user:7").cost(3);
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LimitRequest<'a, P = &'a Policy> {
    pub(crate) policy: P,
    pub(crate) key: Key<'a>,
    pub(crate) cost: RequestedCost,
}

/// The identity of a limit and a valid cost of a request for it.
#[derive(Clone, Copy, Debug)]
pub struct LimitCharge {
    pub(crate) identity: Identity,
    /// In the algorithm's unit.
    pub(crate) cost: u64,
}

/// The cost of a request. Nearly every cost is a 64-bit number; any other is boxed, so that the
/// request stays small.
#[derive(Clone, Debug)]
pub(crate) enum RequestedCost {
    Thousandths(u64),
    Other(Box<Result<Amount, ConfigError>>),
}

impl RequestedCost {
    const ONE: Self = Self::Thousandths(1_000);
}

impl From<Result<Amount, ConfigError>> for RequestedCost {
    #[inline]
    fn from(cost: Result<Amount, ConfigError>) -> Self {
        let thousandths = cost.as_ref().map(|cost| u64::try_from(cost.as_thousandths()));
        match thousandths {
            Ok(Ok(thousandths)) => Self::Thousandths(thousandths),
            _ => Self::Other(Box::new(cost)),
        }
    }
}

impl<'a, P> LimitRequest<'a, P> {
    /// Requests one permit of the policy that `policy` refers to.
    #[inline]
    pub(crate) fn with_ref(policy: P, key: Key<'a>) -> Self {
        Self {
            policy,
            key,
            cost: RequestedCost::ONE,
        }
    }

    /// Sets the number of permits. Default: 1. A cost of 0 charges nothing and is always allowed.
    #[must_use]
    pub fn cost(self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        Self {
            cost: cost.try_into().map_err(Into::into).into(),
            ..self
        }
    }

    pub(crate) fn key(&self) -> &Key<'a> {
        &self.key
    }

    pub(crate) fn set_cost(&mut self, cost: Result<Amount, ConfigError>) {
        self.cost = cost.into();
    }

    /// Returns the limit with its key borrowed.
    pub(crate) fn borrowed(&self) -> LimitRequest<'_, P>
    where
        P: Copy,
    {
        LimitRequest {
            policy: self.policy,
            key: Key::from(&self.key),
            cost: self.cost.clone(),
        }
    }
}

impl<'a> LimitRequest<'a> {
    /// Requests one permit of `policy` for `key`.
    #[inline]
    pub fn new(policy: &'a Policy, key: impl Into<Key<'a>>) -> Self {
        Self::with_ref(policy, key.into())
    }

    #[inline]
    pub(crate) fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// Returns the limit with these defaults for the settings that its policy leaves open.
    #[inline]
    pub(crate) fn with_defaults(self, defaults: &LimiterDefaults) -> Self {
        Self {
            policy: self.policy.with_defaults(defaults),
            ..self
        }
    }

    /// Returns the group of the key: its own, otherwise the policy's.
    #[inline]
    pub(crate) fn group(&self) -> Option<&str> {
        self.key.group(self.policy.escaped_group())
    }

    /// Returns the identity of the limit and its cost in the algorithm's own unit, if it can ever
    /// fit.
    #[inline]
    pub(crate) fn charge(&self) -> Result<LimitCharge, Rejection> {
        let cost = units(self.policy, &self.cost)?;
        let identity = if self.key.is_bounded() {
            identity(self.policy, &self.key)
        } else {
            self.bounded_identity()
        };
        Ok(LimitCharge { identity, cost })
    }

    /// Returns the identity of a limit whose key is longer than the longest stored key.
    #[cold]
    fn bounded_identity(&self) -> Identity {
        identity(self.policy, &Key::from(&self.key).bounded())
    }

    /// Returns the limit without a cost, and the cost as an amount that was used.
    pub(crate) fn into_used(mut self) -> Result<(ValidatedLimit<'a>, Amount), Rejection> {
        let used = self.take_cost()?;
        let key = self.key.bounded();
        let limit = ValidatedLimit {
            identity: identity(self.policy, &key),
            policy: self.policy,
            cost: 0,
            key,
            blocks: None,
        };
        Ok((limit, used))
    }

    /// Removes the cost of the limit and returns it as an amount that was used.
    pub(crate) fn take_cost(&mut self) -> Result<Amount, ConfigError> {
        match mem::replace(&mut self.cost, RequestedCost::Thousandths(0)) {
            RequestedCost::Thousandths(thousandths) => Ok(Amount::from_thousandths(thousandths)),
            RequestedCost::Other(used) => (*used).map_err(|error| error.for_policy(self.policy.name())),
        }
    }
}

impl<'a, K: Into<Key<'a>>> From<(&'a Policy, K)> for LimitRequest<'a> {
    fn from((policy, key): (&'a Policy, K)) -> Self {
        Self::new(policy, key)
    }
}

#[inline]
pub(crate) fn identity(policy: &Policy, key: &Key<'_>) -> Identity {
    policy.identity(key.group(policy.escaped_group()), key.as_str())
}

/// Returns the identity of the limit and the cost in the algorithm's unit. Fails if the cost
/// exceeds the quota. The key must not be longer than the longest stored key.
#[inline]
pub(crate) fn charge_of_bounded_key(
    policy: &Policy,
    key: &Key<'_>,
    cost: Amount,
) -> Result<LimitCharge, Rejection> {
    debug_assert!(key.is_bounded(), "the key is bounded");
    let cost = units(policy, &RequestedCost::from(Ok(cost)))?;
    let identity = identity(policy, key);
    Ok(LimitCharge { identity, cost })
}

/// Returns the cost in the algorithm's unit, if it is within the quota.
#[inline]
pub(super) fn units(policy: &Policy, cost: &RequestedCost) -> Result<u64, Rejection> {
    match (cost, policy.algorithm()) {
        (
            RequestedCost::Thousandths(cost),
            Algorithm::TokenBucket(TokenBucket { capacity, .. }) | Algorithm::Funnel(Funnel { capacity, .. }),
        ) => match cost <= capacity {
            true => Ok(*cost),
            false => Err(never_fits(policy, Amount::from_thousandths(*cost))),
        },
        (_, Algorithm::Concurrency(_)) => Err(concurrency_policy_error(policy)),
        (RequestedCost::Thousandths(cost), _) => permits(policy, Amount::from_thousandths(*cost)),
        (RequestedCost::Other(cost), _) => match **cost {
            // The cost does not fit 64 bits.
            Ok(cost) => Err(never_fits(policy, cost)),
            Err(ref error) => Err(Rejection::Config(error.clone().for_policy(policy.name()))),
        },
    }
}

#[cold]
fn concurrency_policy_error(policy: &Policy) -> Rejection {
    Rejection::Config(ConfigError::invalid(
        "policy",
        policy,
        "a rate policy: for a concurrency policy, call `Limiter::acquire_concurrency` or use limiter-tower's `ConcurrencyLimitLayer`; \
         read it with `Limiter::peek`, and drop the permit to release it",
    ))
}

fn permits(window: &Policy, cost: Amount) -> Result<u64, Rejection> {
    if cost > window.quota() {
        Err(never_fits(window, cost))
    } else if !cost.is_whole() {
        Err(not_whole(window, cost))
    } else {
        Ok(cost.whole())
    }
}

#[cold]
fn not_whole(window: &Policy, cost: Amount) -> Rejection {
    let expected = format!("whole permits, as the window `{}` counts", window.name());
    Rejection::Config(ConfigError::invalid("cost", cost, expected))
}

#[cold]
pub(crate) fn never_fits(policy: &Policy, cost: Amount) -> Rejection {
    Rejection::NeverFits {
        policy: policy.clone(),
        cost,
        quota: policy.quota(),
    }
}

/// Converts usage to the algorithm's unit. Usage may exceed the quota and is capped at the largest
/// exact number.
pub(crate) fn used_units(policy: &Policy, used: Amount) -> Result<u64, Rejection> {
    let units = match policy.algorithm().is_window() {
        true if used.is_whole() => used.whole(),
        true => return Err(not_whole(policy, used)),
        false => u64::try_from(used.as_thousandths()).unwrap_or(u64::MAX),
    };
    Ok(units.min(MAX_EXACT))
}
