//! A request for a decision, validated before any I/O.
//!
//! Invalid costs (`limit_request.rs`) and limits of different groups are rejected, so the stores
//! receive only requests that one node can decide. Tests: `tests/contract/input.rs`,
//! `tests/contract/groups.rs`.

mod holder;
mod identified;
pub(crate) mod limit_request;
pub(crate) mod owned;

#[cfg(feature = "redis")]
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

#[cfg(feature = "redis")]
use crate::algorithm::StepState;
use crate::algorithm::{Mode, ScaleChange, StepOutcome, StepResult, UsageCorrection, scale_change};
use crate::decision::{Decision, DecisionFlags, LimitOutcome, Origin, Participations, Rejection};
use crate::error::ConfigError;
use crate::identity::Identity;
use crate::key::Key;
use crate::policy::{CachedPolicy, OnStoreFailure, Policy};
pub(crate) use crate::request::holder::{HolderLease, HolderRenewal, HolderReply};
pub(crate) use crate::request::identified::IdentifiedLimit;
pub use crate::request::limit_request::LimitRequest;
pub(crate) use crate::request::limit_request::{
    LimitCharge, charge_of_bounded_key, identity, never_fits, used_units,
};
use crate::request::limit_request::{RequestedCost, units};
use crate::support::one_or_many::OneOrMany;
use crate::units::Timestamp;

/// Maximum number of limits in one decision.
const MAX_LIMITS: usize = 16;

/// A valid request for a decision: every cost is within its quota, and one node can decide all
/// limits.
#[derive(Clone, Debug)]
pub(crate) struct DecisionRequest<'a> {
    pub(crate) limits: SmallVec<[ValidatedLimit<'a>; 1]>,
    pub(crate) mode: Mode,
}

/// One limit of a request.
#[derive(Clone, Debug)]
pub(crate) struct ValidatedLimit<'a> {
    pub(crate) identity: Identity,
    pub(crate) policy: &'a Policy,
    pub(crate) key: Key<'a>,
    /// In the algorithm's unit: thousandths, or whole permits for a window. At most the quota.
    pub(crate) cost: u64,
    /// For the block of a penalty, which is checked and never charged: the index of the blocked
    /// limit.
    pub(crate) blocks: Option<usize>,
}

impl<'a> ValidatedLimit<'a> {
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

    /// Builds one limit; `None` if its cost can never be charged.
    pub(crate) fn of(LimitRequest { policy, key, cost }: LimitRequest<'a>) -> Option<Self> {
        Self::new(policy, key, &cost).ok()
    }

    /// Builds a request for this limit alone, for a change of its state.
    pub(crate) fn alone(self) -> DecisionRequest<'a> {
        DecisionRequest {
            limits: SmallVec::from_buf([self]),
            mode: Mode::Peek,
        }
    }

    /// Converts a refund or charge that was computed under the previous policy to the units of the
    /// current policy, if the policy was changed proportionally. `in_time` converts the moment of
    /// the change to the time scale of the limit's state.
    pub(crate) fn in_proportion(
        &self,
        change: UsageCorrection,
        in_time: impl Fn(ScaleChange<'_>) -> ScaleChange<'_>,
    ) -> (Self, UsageCorrection) {
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

    /// Returns the limit in the state of another version of its policy.
    pub(crate) fn under<'b>(&'b self, policy: &'b Policy) -> ValidatedLimit<'b> {
        ValidatedLimit {
            identity: identity(policy, &self.key),
            policy,
            key: (&self.key).into(),
            ..*self
        }
    }

    /// Returns the limit under the policy that decided it: the registry may have replaced the
    /// policy while the call waited. The times of the decision are those of this policy.
    pub(crate) fn decided_under(self, decided: &'a Policy) -> Self {
        // Before a scheduled change, its previous policy decides, and the change converts the
        // charge.
        let is_in_force = self.policy.before().is_some_and(|(before, _)| before == decided);
        if decided == self.policy || is_in_force || decided.name() != self.policy.name() {
            return self;
        }
        Self {
            identity: identity(decided, &self.key),
            // The request under this policy was valid.
            cost: used_units(decided, self.policy.amount(self.cost)).unwrap_or(self.cost),
            policy: decided,
            ..self
        }
    }

    /// Returns whether the limit uses the state of this policy.
    pub(crate) fn has_policy(&self, policy: &Policy) -> bool {
        identity(policy, &self.key) == self.identity
    }

    /// Returns whether a decision that allows the call charges this limit.
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
    /// Validates the limits of a request. `any_groups` allows limits of different groups, which one
    /// node of a cluster cannot decide.
    pub(crate) fn new(
        requests: impl IntoIterator<Item = LimitRequest<'a>>,
        mode: Mode,
        any_groups: bool,
    ) -> Result<Self, Rejection> {
        let requests = requests.into_iter();
        // Checked first: the comparison of each limit with all others takes quadratic time.
        let (number, _) = requests.size_hint();
        if number > MAX_LIMITS {
            return Err(wrong_number(number));
        }
        let mut limits: SmallVec<[ValidatedLimit<'a>; 1]> = SmallVec::new();
        for LimitRequest { policy, key, cost } in requests {
            // The size hint of an iterator may be too low.
            if limits.len() == MAX_LIMITS {
                return Err(wrong_number(MAX_LIMITS + 1));
            }
            let limit = ValidatedLimit::new(policy, key, &cost)?;
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

    /// Builds the request of one limit whose identity and cost are known.
    pub(crate) fn of_charged(limit: LimitRequest<'a>, charge: LimitCharge, mode: Mode) -> Self {
        let limit = ValidatedLimit {
            identity: charge.identity,
            policy: limit.policy,
            key: limit.key.bounded(),
            cost: charge.cost,
            blocks: None,
        };
        Self {
            limits: SmallVec::from_buf([limit]),
            mode,
        }
    }

    /// Returns the shortest deadline of the policies.
    pub(crate) fn deadline(&self) -> Duration {
        self.limits
            .iter()
            .map(|limit| limit.policy.deadline())
            .min()
            .unwrap_or(Policy::DEFAULT_DEADLINE)
    }

    /// Returns the strictest reaction of the policies to a failure of the store: an error, else a
    /// denial, else the replica's share, else a permit.
    pub(crate) fn on_store_failure(&self) -> OnStoreFailure {
        match &*self.limits {
            [limit] => limit.policy.on_store_failure(),
            limits => {
                let reactions = limits.iter().map(|limit| limit.policy.on_store_failure());
                reactions
                    .max_by_key(|reaction| reaction.strictness())
                    .unwrap_or(OnStoreFailure::FailOpen)
            }
        }
    }

    /// Returns the policies and keys of the limits, in the order of the request.
    pub(crate) fn policies_and_keys(&self) -> impl Iterator<Item = (&Policy, &Key<'a>)> {
        let limits = self.limits.iter().filter(|limit| limit.blocks.is_none());
        limits.map(|limit| (limit.policy, &limit.key))
    }

    /// Returns the identity of the request's queue: its limits without the blocks of penalties,
    /// since a refund names only limits.
    pub(crate) fn queue(&self) -> SmallVec<[Identity; 2]> {
        let limits = self.limits.iter().filter(|limit| limit.blocks.is_none());
        limits.map(|limit| limit.identity).collect()
    }

    /// Returns the request under the policies that decide at `now`, if the proportional change of
    /// one of them has not taken effect.
    pub(crate) fn in_force_at(&self, now: Timestamp) -> Option<Self> {
        let mut in_force = None;
        for (number, limit) in self.limits.iter().enumerate() {
            let scaled = limit.policy.scaled();
            if let Some(previous) = scaled.and_then(|scaled| scaled.in_force_at(now)) {
                let limits = &mut in_force.get_or_insert_with(|| self.clone()).limits;
                if let Some(limit) = limits.get_mut(number) {
                    limit.policy = previous;
                }
            }
        }
        in_force
    }

    /// Returns whether the state of a limit may have to be converted first.
    pub(crate) fn is_scaled(&self) -> bool {
        self.limits.iter().any(|limit| limit.policy.is_scaled())
    }

    /// Returns the only limit if its tokens may be leased.
    #[cfg(feature = "redis")]
    pub(crate) fn leasable(&self) -> Option<&ValidatedLimit<'a>> {
        match &*self.limits {
            [limit] if limit.policy.lease().is_some() => Some(limit),
            _ => None,
        }
    }

    /// Returns whether it charges nothing, and is therefore always allowed.
    pub(crate) fn is_free(&self) -> bool {
        self.limits.iter().all(|limit| !limit.is_charged())
    }

    /// Converts a store's verdict into a decision.
    pub(crate) fn decision(&self, mut verdict: Verdict, origin: Origin) -> Decision {
        let flags = match &*self.limits {
            [_] => DecisionFlags::default(),
            limits => apply_blocks(limits, &mut verdict.outcomes),
        };
        let outcome_of = |(limit, outcome): (&ValidatedLimit<'_>, &StepOutcome)| LimitOutcome {
            policy: CachedPolicy::new(limit.policy),
            result: StepResult::Computed(*outcome),
        };
        let limits = match (&*self.limits, &*verdict.outcomes) {
            // Nearly all requests have one limit, which needs no allocation.
            ([limit], [outcome]) => OneOrMany::One(outcome_of((limit, outcome))),
            (limits, outcomes) => limits.iter().zip(outcomes).map(outcome_of).collect(),
        };
        Decision {
            allowed: verdict.fits(),
            limits,
            decided_at: verdict.decided_at,
            origin,
            store_error: None,
            flags,
            parts: Participations::default(),
        }
    }
}

/// A store's reply: one outcome for each limit of the request, in its order.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) decided_at: Timestamp,
    pub(crate) outcomes: SmallVec<[StepOutcome; 1]>,
    /// After a denial by Redis, the state of each limit, from which later calls are answered.
    #[cfg(feature = "redis")]
    pub(crate) states: Option<Arc<[ReportedState]>>,
}

/// The state of a limit as Redis reports it after a denial.
#[cfg(feature = "redis")]
#[derive(Debug)]
pub(crate) enum ReportedState {
    Stored(StepState),
    /// The number of permits in a sliding window; their moments stay in Redis.
    WindowUsage(u64),
}

impl Verdict {
    /// Returns a verdict without states.
    pub(crate) fn new(decided_at: Timestamp, outcomes: SmallVec<[StepOutcome; 1]>) -> Self {
        Self {
            decided_at,
            outcomes,
            #[cfg(feature = "redis")]
            states: None,
        }
    }

    /// Returns whether all limits admit the call.
    pub(crate) fn fits(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.fits)
    }
}

#[cold]
fn wrong_number(number: usize) -> Rejection {
    let expected = format!("1 to {MAX_LIMITS}");
    Rejection::Config(ConfigError::invalid("number of limits", number, expected))
}

impl StepOutcome {
    /// Applies a block of `micros` microseconds to an outcome.
    pub(crate) fn blocked_for(self, micros: u64) -> Self {
        Self {
            fits: false,
            remaining: 0,
            // Zero if the limit itself fits.
            retry_after: self.retry_after.max(micros),
            reset_after: self.reset_after.max(micros),
            next_after: self.next_after.max(micros),
            expires_after: self.expires_after.max(micros),
            delay: 0,
            ..self
        }
    }
}

/// Copies the outcome of each penalty's block to the limit that it blocks. The blocks are the last
/// limits of a request.
fn apply_blocks(limits: &[ValidatedLimit<'_>], outcomes: &mut SmallVec<[StepOutcome; 1]>) -> DecisionFlags {
    let Some(requested) = limits.iter().position(|limit| limit.blocks.is_some()) else {
        return DecisionFlags::default();
    };
    let mut flags = DecisionFlags::default();
    for (limit, block) in limits.iter().zip(outcomes.clone()) {
        if let Some(number) = limit.blocks {
            if !block.fits {
                if let Some(outcome) = outcomes.get_mut(number) {
                    *outcome = outcome.blocked_for(block.retry_after);
                    flags = DecisionFlags::BLOCKED;
                }
            }
        }
    }
    // The blocks come last.
    outcomes.truncate(requested);
    flags
}
