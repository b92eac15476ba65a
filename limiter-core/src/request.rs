//! A call's question to the store, checked before any I/O.

pub(crate) mod ask;
pub(crate) mod owned;

#[cfg(feature = "redis")]
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

#[cfg(feature = "redis")]
use crate::algorithm::StepState;
use crate::algorithm::{Change, Mode, ScaleChange, StepOutcome, StepResult, scale_change};
use crate::decision::{Decision, DecisionFlags, LimitOutcome, Origin, Participations, Rejection};
use crate::error::ConfigError;
use crate::identity::Identity;
use crate::key::Key;
use crate::policy::{Algorithm, OnStoreFailure, Policy};
pub use crate::request::ask::LimitRequest;
use crate::request::ask::RequestedCost;
use crate::support::one_or_many::OneOrMany;
use crate::units::{Amount, MAX_EXACT, Timestamp};

/// More limits than this in one decision are a mistake.
const MAX_LIMITS: usize = 16;

/// A question that a store can decide: every cost can fit, and all limits can be decided at one
/// place.
#[derive(Clone, Debug)]
pub(crate) struct DecisionRequest<'a> {
    pub(crate) limits: SmallVec<[RequestedLimit<'a>; 1]>,
    pub(crate) mode: Mode,
}

/// One limit of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestedLimit<'a> {
    pub(crate) identity: Identity,
    pub(crate) policy: &'a Policy,
    pub(crate) key: Key<'a>,
    /// In the algorithm's own unit: thousandths, or whole permits for a window. Not above the
    /// quota.
    pub(crate) cost: u64,
    /// It is the block of a penalty, asked for and never charged: of the limit with this number.
    pub(crate) blocks: Option<usize>,
}

impl<'a> RequestedLimit<'a> {
    fn new(policy: &'a Policy, key: Key<'a>, cost: &RequestedCost) -> Result<Self, Rejection> {
        let key = key.bounded();
        Ok(Self {
            identity: identity(policy, &key),
            policy,
            cost: units(policy, cost)?,
            key,
            blocks: None,
        })
    }

    /// One of them that is asked for, if its cost can ever be charged.
    pub(crate) fn of(LimitRequest { policy, key, cost }: LimitRequest<'a>) -> Option<Self> {
        Self::new(policy, key, &cost).ok()
    }

    /// A request for it alone, by which it is not decided but changed.
    pub(crate) fn alone(self) -> DecisionRequest<'a> {
        DecisionRequest {
            limits: SmallVec::from_buf([self]),
            mode: Mode::Peek,
        }
    }

    /// Of a policy that was changed in proportion: what a change of what was used is that is told
    /// in the numbers of before. `in_time` says when the policy was changed, in the time in which
    /// the limit's state is kept.
    pub(crate) fn in_proportion(
        &self,
        change: Change,
        in_time: impl Fn(ScaleChange<'_>) -> ScaleChange<'_>,
    ) -> (Self, Change) {
        let (cost, change) = match self.policy.scaled() {
            Some(scaled) => scale_change(
                &in_time(ScaleChange::from_policies(scaled, self.policy)),
                self.cost,
                change,
            ),
            None => (self.cost, change),
        };
        let limit = Self { cost, ..self.clone() };
        (limit, change)
    }

    /// Whether its state is one of this policy's.
    pub(crate) fn has_policy(&self, policy: &Policy) -> bool {
        identity(policy, &self.key) == self.identity
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

impl<'a> DecisionRequest<'a> {
    /// Checks what is asked. `any_groups` allows limits in different groups, which a cluster could
    /// not decide at one place.
    pub(crate) fn new(
        asks: impl IntoIterator<Item = LimitRequest<'a>>,
        mode: Mode,
        any_groups: bool,
    ) -> Result<Self, Rejection> {
        let asks = asks.into_iter();
        // Counted first: each limit is compared with all others, which takes quadratic time.
        let (number, _) = asks.size_hint();
        if number > MAX_LIMITS {
            return Err(wrong_number(number));
        }
        let mut limits: SmallVec<[RequestedLimit<'a>; 1]> = SmallVec::new();
        for LimitRequest { policy, key, cost } in asks {
            // An iterator need not know how many limits it yields.
            if limits.len() == MAX_LIMITS {
                return Err(wrong_number(MAX_LIMITS + 1));
            }
            let limit = RequestedLimit::new(policy, key, &cost)?;
            if let Some(first) = limits.first() {
                if !any_groups && first.tag() != limit.tag() {
                    let (first, other) = (first.policy.name().to_owned(), limit.policy.name().to_owned());
                    return Err(Rejection::Config(ConfigError::DifferentGroups { first, other }));
                }
            }
            if limits.iter().any(|earlier| earlier.identity == limit.identity) {
                let policy = limit.policy.name().to_owned();
                return Err(Rejection::Config(ConfigError::RepeatedLimit { policy }));
            }
            limits.push(limit);
        }
        if limits.is_empty() {
            return Err(wrong_number(0));
        }
        Ok(Self { limits, mode })
    }

    /// The shortest deadline of its policies.
    pub(crate) fn deadline(&self) -> Duration {
        self.limits
            .iter()
            .map(|limit| limit.policy.deadline())
            .min()
            .unwrap_or(Policy::DEFAULT_DEADLINE)
    }

    /// The strictest answer of its policies to a failure of the store: an error, else a denial,
    /// else the replica's share, else a permit.
    pub(crate) fn on_store_failure(&self) -> OnStoreFailure {
        let answers = || self.limits.iter().map(|limit| limit.policy.on_store_failure());
        [
            OnStoreFailure::Error,
            OnStoreFailure::FailClosed,
            OnStoreFailure::Local,
        ]
        .into_iter()
        .find(|strict| answers().any(|answer| answer == *strict))
        .unwrap_or(OnStoreFailure::FailOpen)
    }

    /// Of its limits, in their order.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &Policy> {
        let limits = self.limits.iter().filter(|limit| limit.blocks.is_none());
        limits.map(|limit| limit.policy)
    }

    /// What waits in one queue: the same limits of the same keys. Whether these are blocked has no
    /// part in it: whoever gives something back says nothing of that.
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
            [_] => DecisionFlags::default(),
            limits => apply_blocks(limits, &mut verdict.outcomes),
        };
        let told = |(limit, outcome): (&RequestedLimit<'_>, &StepOutcome)| {
            LimitOutcome::new(limit.policy, StepResult::Computed(*outcome))
        };
        let limits = match (&*self.limits, &*verdict.outcomes) {
            // As nearly always; nothing is collected then.
            ([limit], [outcome]) => OneOrMany::One(told((limit, outcome))),
            (limits, outcomes) => limits.iter().zip(outcomes).map(told).collect(),
        };
        Decision {
            allowed: limits.iter().all(LimitOutcome::is_allowed),
            limits,
            decided_at: verdict.decided_at,
            origin,
            store_error: None,
            marks,
            parts: Participations::default(),
        }
    }
}

/// What a store answers: one outcome for each limit of the request, in its order.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) decided_at: Timestamp,
    pub(crate) outcomes: SmallVec<[StepOutcome; 1]>,
    /// After a denial by Redis, the state of each limit: the answers to later calls follow from it.
    /// `None` for a sliding window, of which Redis reports no moments.
    #[cfg(feature = "redis")]
    pub(crate) states: Option<Arc<[Option<StepState>]>>,
}

impl Verdict {
    /// A verdict without states.
    pub(crate) fn new(decided_at: Timestamp, outcomes: SmallVec<[StepOutcome; 1]>) -> Self {
        Self {
            decided_at,
            outcomes,
            #[cfg(feature = "redis")]
            states: None,
        }
    }

    /// Whether all limits admit the call.
    #[cfg(feature = "redis")]
    pub(crate) fn fits(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.fits)
    }
}

#[cold]
fn wrong_number(number: usize) -> Rejection {
    let expected = format!("1 to {MAX_LIMITS}");
    Rejection::Config(ConfigError::invalid("number of limits", number, expected))
}

#[inline]
pub(crate) fn identity(policy: &Policy, key: &Key<'_>) -> Identity {
    policy.identity(key.group(policy.escaped_group()), key.as_str())
}

/// Who is charged, and how much in the algorithm's own unit, if that can ever fit. The key is
/// bounded.
#[inline]
pub(crate) fn charge(policy: &Policy, key: &Key<'_>, cost: Amount) -> Result<(Identity, u64), Rejection> {
    let cost = units(policy, &RequestedCost::from(Ok(cost)))?;
    Ok((identity(policy, key), cost))
}

/// The cost in the algorithm's own unit, if it can ever fit.
#[inline]
fn units(policy: &Policy, cost: &RequestedCost) -> Result<u64, Rejection> {
    match (cost, policy.algorithm()) {
        (_, Algorithm::Concurrency(_)) => Err(not_asked_so(policy)),
        (RequestedCost::Thousandths(cost), window) if window.is_window() => {
            permits(policy, Amount::from_thousandths(*cost))
        }
        (RequestedCost::Thousandths(cost), level) if *cost <= level.quota() => Ok(*cost),
        (RequestedCost::Thousandths(cost), _) => Err(never_fits(policy, Amount::from_thousandths(*cost))),
        (RequestedCost::Other(cost), _) => match **cost {
            // More than 64 bits hold.
            Ok(cost) => Err(never_fits(policy, cost)),
            Err(ref error) => Err(Rejection::Config(error.clone().for_policy(policy.name()))),
        },
    }
}

#[cold]
fn not_asked_so(policy: &Policy) -> Rejection {
    Rejection::Config(ConfigError::invalid(
        "policy",
        policy,
        "one of a rate: what is in flight is held by `Limiter::acquire_concurrency`, or by limiter-tower's `ConcurrencyLimitLayer`; looked at by \
         `Limiter::peek`; and freed by dropping the permit",
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

/// What was used, in the algorithm's own unit. It may be more than fits, and counts as what is
/// exact at most.
pub(crate) fn used_units(policy: &Policy, used: Amount) -> Result<u64, Rejection> {
    let units = match policy.algorithm().is_window() {
        true if used.is_whole() => used.whole(),
        true => return Err(not_whole(policy, used)),
        false => u64::try_from(used.as_thousandths()).unwrap_or(u64::MAX),
    };
    Ok(units.min(MAX_EXACT))
}

/// Replaces the outcome of each limit that a penalty blocks by the outcome of its block. The blocks
/// come last.
fn apply_blocks(limits: &[RequestedLimit<'_>], outcomes: &mut SmallVec<[StepOutcome; 1]>) -> DecisionFlags {
    let Some(asked) = limits.iter().position(|limit| limit.blocks.is_some()) else {
        return DecisionFlags::default();
    };
    let mut marks = DecisionFlags::default();
    for (limit, block) in limits.iter().zip(outcomes.clone()) {
        if let Some(number) = limit.blocks {
            if !block.fits {
                if let Some(outcome) = outcomes.get_mut(number) {
                    *outcome = outcome.blocked_for(block.retry_after);
                    marks = DecisionFlags::BLOCKED;
                }
            }
        }
    }
    // The blocks come last.
    outcomes.truncate(asked);
    marks
}
