//! A call's question to the store, checked before any I/O.

mod punishment;

use smallvec::SmallVec;

use crate::algorithm::{Mode, Outcome, Standing};
use crate::decision::{Decision, LimitOutcome, Marks, Origin, Rejection};
use crate::error::ConfigError;
use crate::few::Few;
use crate::identity::Identity;
use crate::key::Key;
use crate::policy::{Algorithm, Concurrency, OnStoreFailure, Policy};
use crate::store::holders::{MOST_HELD_AT_ONCE, Terms};
use crate::units::{Amount, MAX_EXACT, Timestamp};
use std::time::Duration;

/// More limits than this in one decision are a mistake.
const MAX_LIMITS: usize = 16;

/// One limit of a decision: a policy, whose permits, and how many.
///
/// ```
/// use limiter_core::{Ask, Policy};
///
/// let daily = Policy::sliding_window("daily").limit(1000).window("1d").build()?;
/// let ask = Ask::new(&daily, "user:7").cost(3);
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    policy: &'a Policy,
    key: Key<'a>,
    cost: Cost,
}

/// What an ask costs. Nearly every cost is a number of 64 bits, and what is not makes no ask larger.
#[derive(Clone, Debug)]
enum Cost {
    Thousandths(u64),
    Other(Box<Result<Amount, ConfigError>>),
}

impl Cost {
    const ONE: Self = Self::Thousandths(1_000);
}

impl From<Result<Amount, ConfigError>> for Cost {
    #[inline]
    fn from(cost: Result<Amount, ConfigError>) -> Self {
        let thousandths = cost.as_ref().map(|cost| u64::try_from(cost.as_thousandths()));
        match thousandths {
            Ok(Ok(thousandths)) => Self::Thousandths(thousandths),
            _ => Self::Other(Box::new(cost)),
        }
    }
}

impl<'a> Ask<'a> {
    /// Asks for one permit of `policy` for `key`.
    #[inline]
    pub fn new(policy: &'a Policy, key: impl Into<Key<'a>>) -> Self {
        Self {
            policy,
            key: key.into(),
            cost: Cost::ONE,
        }
    }

    /// Asks for `cost` permits. Default: 1. A cost of 0 charges nothing and is always allowed.
    #[must_use]
    pub fn cost(self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        Self {
            cost: cost.try_into().map_err(Into::into).into(),
            ..self
        }
    }

    pub(crate) fn policy(&self) -> &'a Policy {
        self.policy
    }
}

impl<'a> Ask<'a> {
    /// What the store in this process needs to know of a limit that is decided alone: who it is and its cost in the
    /// algorithm's own unit. The texts stay where they are.
    #[inline]
    pub(crate) fn charge(&self) -> Result<(Identity, u64), Rejection> {
        let cost = units(self.policy, &self.cost)?;
        let identity = if self.key.is_bounded() {
            identity(self.policy, &self.key)
        } else {
            identity(self.policy, &Key::from(&self.key).bounded())
        };
        Ok((identity, cost))
    }

    /// The decision that this limit's standing alone means.
    #[inline]
    pub(crate) fn decision(&self, decided_at: Timestamp, standing: Standing, origin: Origin) -> Decision {
        Decision {
            limits: Few::One(LimitOutcome::new(self.policy, standing)),
            decided_at,
            store_error: None,
            allowed: standing.fits(),
            origin,
            marks: Marks::default(),
        }
    }

    pub(crate) fn key(&self) -> &Key<'a> {
        &self.key
    }

    pub(crate) fn set_cost(&mut self, cost: Result<Amount, ConfigError>) {
        self.cost = cost.into();
    }

    /// At most the quota, of which more cannot have been used.
    pub(crate) fn bounded(mut self) -> Self {
        let asked = match self.cost {
            Cost::Thousandths(thousandths) => Ok(Amount::from_thousandths(thousandths)),
            Cost::Other(asked) => *asked,
        };
        self.cost = asked.map(|cost| cost.min(self.policy.quota())).into();
        self
    }
}

impl<'a, K: Into<Key<'a>>> From<(&'a Policy, K)> for Ask<'a> {
    fn from((policy, key): (&'a Policy, K)) -> Self {
        Self::new(policy, key)
    }
}

/// A question that a store can decide: every cost can fit, and all limits can be decided at one place.
#[derive(Clone, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) limits: SmallVec<[Limit<'a>; 1]>,
    pub(crate) mode: Mode,
}

/// One limit of a request.
#[derive(Clone, Debug)]
pub(crate) struct Limit<'a> {
    pub(crate) identity: Identity,
    pub(crate) policy: &'a Policy,
    pub(crate) key: Key<'a>,
    /// In the algorithm's own unit: thousandths, or whole permits for a window. Not above the quota.
    pub(crate) cost: u64,
    /// It is the block of a penalty, asked for and never charged: of the limit with this number.
    pub(crate) blocks: Option<usize>,
}

impl<'a> Limit<'a> {
    fn new(policy: &'a Policy, key: Key<'a>, cost: &Cost) -> Result<Self, Rejection> {
        let key = key.bounded();
        Ok(Self {
            identity: identity(policy, &key),
            policy,
            cost: units(policy, cost)?,
            key,
            blocks: None,
        })
    }

    /// Whether a decision that allows the call takes something of it.
    pub(crate) fn is_charged(&self) -> bool {
        self.cost > 0 && self.blocks.is_none()
    }

    #[cfg(feature = "redis")]
    pub(crate) fn group(&self) -> Option<&str> {
        self.key.group(self.policy.escaped_group())
    }

    fn tag(&self) -> &str {
        self.key.tag(self.policy.escaped_group())
    }
}

impl<'a> Request<'a> {
    /// Checks what is asked. `any_groups` allows limits in different groups, which a cluster could not decide at one
    /// place.
    pub(crate) fn new(
        asks: impl IntoIterator<Item = Ask<'a>>,
        mode: Mode,
        any_groups: bool,
    ) -> Result<Self, Rejection> {
        let mut limits: SmallVec<[Limit<'a>; 1]> = SmallVec::new();
        for Ask { policy, key, cost } in asks {
            let limit = Limit::new(policy, key, &cost)?;
            if let Some(first) = limits.first()
                && !any_groups
                && first.tag() != limit.tag()
            {
                let (first, other) = (first.tag().to_owned(), limit.tag().to_owned());
                return Err(Rejection::Config(ConfigError::DifferentGroups { first, other }));
            }
            if limits.iter().any(|earlier| earlier.identity == limit.identity) {
                let policy = limit.policy.name().to_owned();
                return Err(Rejection::Config(ConfigError::RepeatedLimit { policy }));
            }
            limits.push(limit);
        }
        if limits.is_empty() || limits.len() > MAX_LIMITS {
            let expected = format!("1 to {MAX_LIMITS}");
            return Err(Rejection::Config(ConfigError::invalid(
                "number of limits",
                limits.len(),
                expected,
            )));
        }
        Ok(Self { limits, mode })
    }

    /// Of one limit whose identity and cost are [known](Ask::charge).
    #[cfg(feature = "redis")]
    pub(crate) fn alone(
        Ask { policy, key, .. }: Ask<'a>,
        (identity, cost): (Identity, u64),
        mode: Mode,
    ) -> Self {
        let limit = Limit {
            identity,
            policy,
            key: key.bounded(),
            cost,
            blocks: None,
        };
        let limits = SmallVec::from_buf([limit]);
        Self { limits, mode }
    }

    /// Asks for so many times the cost, but for no more than can ever fit.
    pub(crate) fn repeat(&mut self, times: usize) {
        let times = u64::try_from(times).unwrap_or(u64::MAX);
        for limit in self.limits.iter_mut().filter(|limit| limit.blocks.is_none()) {
            let quota = limit.policy.algorithm().quota();
            limit.cost = limit.cost.saturating_mul(times).min(quota);
        }
    }

    /// The shortest deadline of its policies.
    pub(crate) fn deadline(&self) -> Duration {
        self.limits
            .iter()
            .map(|limit| limit.policy.deadline())
            .min()
            .unwrap_or(Policy::DEFAULT_DEADLINE)
    }

    /// The strictest answer of its policies to a failure of the store: an error, else a denial, else the replica's share,
    /// else a permit.
    pub(crate) fn on_store_failure(&self) -> OnStoreFailure {
        let answers = || self.limits.iter().map(|limit| limit.policy.on_store_failure());
        [OnStoreFailure::Error, OnStoreFailure::Deny, OnStoreFailure::Local]
            .into_iter()
            .find(|strict| answers().any(|answer| answer == *strict))
            .unwrap_or(OnStoreFailure::Allow)
    }

    /// Of its limits, in their order.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &Policy> {
        let limits = self.limits.iter().filter(|limit| limit.blocks.is_none());
        limits.map(|limit| limit.policy)
    }

    /// What waits in one queue: the same limits of the same keys. Whether these are blocked has no part in it: whoever gives
    /// something back says nothing of that.
    pub(crate) fn queue(&self) -> SmallVec<[Identity; 2]> {
        let limits = self.limits.iter().filter(|limit| limit.blocks.is_none());
        limits.map(|limit| limit.identity).collect()
    }

    /// Whether states of one of its limits may have to be converted first.
    pub(crate) fn is_scaled(&self) -> bool {
        self.limits.iter().any(|limit| limit.policy.is_scaled())
    }

    /// Whether it charges nothing, and is therefore always allowed.
    pub(crate) fn is_free(&self) -> bool {
        self.limits.iter().all(|limit| !limit.is_charged())
    }

    /// The decision that a store's verdict means.
    pub(crate) fn decision(&self, mut verdict: Verdict, origin: Origin) -> Decision {
        let marks = match &*self.limits {
            [_] => Marks::default(),
            limits => punishment::fold(limits, &mut verdict.outcomes),
        };
        let told = |(limit, outcome): (&Limit<'_>, &Outcome)| {
            LimitOutcome::new(limit.policy, Standing::Told(*outcome))
        };
        let limits = match (&*self.limits, &*verdict.outcomes) {
            // As nearly always; nothing is collected then.
            ([limit], [outcome]) => Few::One(told((limit, outcome))),
            (limits, outcomes) => limits.iter().zip(outcomes).map(told).collect(),
        };
        Decision {
            allowed: limits.iter().all(LimitOutcome::is_allowed),
            limits,
            decided_at: verdict.decided_at,
            origin,
            store_error: None,
            marks,
        }
    }
}

/// What a store answers: one outcome for each limit of the request, in its order.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) decided_at: Timestamp,
    pub(crate) outcomes: SmallVec<[Outcome; 1]>,
}

#[inline]
fn identity(policy: &Policy, key: &Key<'_>) -> Identity {
    policy.identity(key.group(policy.escaped_group()), key.as_str())
}

/// The cost in the algorithm's own unit, if it can ever fit.
#[inline]
fn units(policy: &Policy, cost: &Cost) -> Result<u64, Rejection> {
    match (cost, policy.algorithm()) {
        (_, Algorithm::Concurrency(_)) => Err(not_asked_so(policy)),
        (Cost::Thousandths(cost), window) if window.is_window() => {
            permits(policy, Amount::from_thousandths(*cost))
        }
        (Cost::Thousandths(cost), level) if *cost <= level.quota() => Ok(*cost),
        (Cost::Thousandths(cost), _) => Err(never_fits(policy, Amount::from_thousandths(*cost))),
        (Cost::Other(cost), _) => match **cost {
            // More than 64 bits hold.
            Ok(cost) => Err(never_fits(policy, cost)),
            Err(ref error) => Err(Rejection::Config(error.clone())),
        },
    }
}

#[cold]
fn not_asked_so(policy: &Policy) -> Rejection {
    Rejection::Config(ConfigError::invalid(
        "policy",
        policy,
        "one of a rate: what is in flight is held by `Limiter::enter`, looked at by `Limiter::peek` and freed by dropping the permit",
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
fn never_fits(policy: &Policy, cost: Amount) -> Rejection {
    Rejection::NeverFits {
        policy: policy.clone(),
        cost,
        quota: policy.quota(),
    }
}

/// What was used, in the algorithm's own unit. It may be more than fits, and counts as what is exact at most.
pub(crate) fn used_units(policy: &Policy, used: Amount) -> Result<u64, Rejection> {
    let units = match policy.algorithm().is_window() {
        true if used.is_whole() => used.whole(),
        true => return Err(not_whole(policy, used)),
        false => u64::try_from(used.as_thousandths()).unwrap_or(u64::MAX),
    };
    Ok(units.min(MAX_EXACT))
}

/// A question for permits of what is in flight.
#[derive(Clone, Debug)]
pub(crate) struct InFlight<'a> {
    /// About one limit.
    request: Request<'a>,
    terms: Terms,
}

impl<'a> InFlight<'a> {
    /// Checks what is asked.
    pub(crate) fn new(Ask { policy, key, cost }: Ask<'a>, mode: Mode) -> Result<Self, Rejection> {
        let Algorithm::Concurrency(Concurrency { max, lease_ms }) = *policy.algorithm() else {
            let expected =
                "one of concurrency: permits of a rate are taken by `Limiter::check` and `Limiter::acquire`";
            return Err(Rejection::Config(ConfigError::invalid(
                "policy", policy, expected,
            )));
        };
        let cost = match cost {
            Cost::Thousandths(cost) => Amount::from_thousandths(cost),
            Cost::Other(cost) => (*cost)?,
        };
        if cost > policy.quota() {
            return Err(never_fits(policy, cost));
        }
        if !cost.is_whole() || cost > Amount::from(MOST_HELD_AT_ONCE) {
            let expected = format!("whole permits, at most {MOST_HELD_AT_ONCE} in one call");
            return Err(Rejection::Config(ConfigError::invalid("cost", cost, expected)));
        }
        let key = key.bounded();
        let cost = cost.whole();
        let limit = Limit {
            identity: identity(policy, &key),
            policy,
            cost,
            key,
            blocks: None,
        };
        let limits = SmallVec::from_buf([limit]);
        Ok(Self {
            request: Request { limits, mode },
            terms: Terms { cost, max, lease_ms },
        })
    }

    pub(crate) fn request(&self) -> &Request<'a> {
        &self.request
    }

    pub(crate) fn limit(&self) -> &Limit<'a> {
        #[expect(clippy::expect_used, reason = "`new` makes it so, and nothing changes it")]
        self.request.limits.first().expect("a question about one limit")
    }

    pub(crate) fn terms(&self) -> Terms {
        self.terms
    }
}

impl Request<'_> {
    /// The decision about each limit of which only this is to be said.
    pub(crate) fn in_flight_decision(
        &self,
        outcome: Outcome,
        decided_at: Timestamp,
        origin: Origin,
    ) -> Decision {
        let told = |limit: &Limit<'_>| LimitOutcome::new(limit.policy, Standing::Told(outcome));
        Decision {
            limits: self.limits.iter().map(told).collect(),
            allowed: outcome.fits,
            ..Decision::unasked(origin, decided_at)
        }
    }
}
