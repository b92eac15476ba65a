//! One limit of a reservation: its charge and its settlement.
//!
//! The settlement may follow a policy change or run on another node. The limit therefore keeps the
//! policy and the time of the decision, the estimate, and the time at which the usage at the
//! decision is fully refilled. The difference to the actual cost is a refund or an unconditional
//! charge.
//!
//! Invariant: nothing is refunded if nothing was charged, or if the units of the estimate are
//! unknown after several proportional changes. Tests: `tests/contract/settlement.rs`,
//! `tests/reservations.rs`, `settlement/tests.rs`.

use std::time::Duration;

use crate::algorithm::{PastUsage, UsageCorrection};
use crate::decision::{Decision, LimitOutcome, Origin, Participation, Rejection};
use crate::detachment::record::{RecordedCharge, algorithm_digest};
use crate::identity::Identity;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::request::{ValidatedLimit, used_units};
use crate::units::{Amount, Timestamp};

/// A charged limit of an allowed call.
#[derive(Debug)]
pub(crate) struct ReservedLimit {
    identity: Identity,
    policy: Policy,
    key: Key<'static>,
    /// In the unit of the algorithm, like all amounts in this module.
    estimate: u64,
    /// Time at which the usage at the decision is fully refilled, in the clock of the stored state.
    /// `None` if nothing was charged because the store did not decide.
    whole_at: Option<Timestamp>,
    decided_at: Timestamp,
}

/// Relation between the policy of a reservation and the current policy of the registry.
pub(crate) enum CurrentPolicy {
    /// The usage did not change.
    Same,
    /// Changed to this policy, which keeps the usage.
    Successor(Policy),
    /// Converted proportionally to this policy.
    Proportional(Policy),
    /// Converted to this policy through an intermediate one.
    Unknown(Policy),
}

impl ReservedLimit {
    /// Returns the limit to settle for each limit of an allowed call. `None` for limits that were
    /// not charged: switched off, allowed by a key list, or denied in shadow mode.
    pub(crate) fn for_limits<'a>(
        limits: impl IntoIterator<Item = Option<ValidatedLimit<'a>>>,
        decision: &Decision,
    ) -> impl Iterator<Item = Option<Self>> {
        let mut outcomes = decision.limits().iter();
        let indexed = limits.into_iter().enumerate();
        indexed.map(move |(number, limit)| {
            let outcome = match decision.parts.get(number) {
                Participation::Absent => return None,
                Participation::Apart => {
                    outcomes.next();
                    return None;
                }
                Participation::AsDecided | Participation::InShadow => outcomes.next(),
            };
            let (limit, decided_at) = (limit?, decision.decided_at());
            let limit = match outcome {
                Some(outcome) => limit.decided_under(outcome.policy()),
                None => limit,
            };
            let whole_at = match decision.origin() {
                _ if decision.is_degraded() => return None,
                Origin::Redis | Origin::Lease | Origin::Memory | Origin::LocalFallback => {
                    let outcome = outcome?;
                    Some(match outcome.outcome().whole_at {
                        0 => decided_at.after(whole_after(decided_by(limit.policy, decided_at), outcome)),
                        whole_at => Timestamp::from_micros(whole_at),
                    })
                }
                Origin::FailedOpen => None,
                _ => return None,
            };
            Some(Self {
                identity: limit.identity,
                policy: limit.policy.clone(),
                key: limit.key.into_owned(),
                estimate: limit.cost,
                whole_at,
                decided_at,
            })
        })
    }

    /// Returns a limit with an unknown charge.
    pub(crate) fn of_unknown_charge(limit: ValidatedLimit<'_>) -> Self {
        Self {
            identity: limit.identity,
            policy: limit.policy.clone(),
            key: limit.key.into_owned(),
            estimate: 0,
            whole_at: None,
            decided_at: Timestamp::default(),
        }
    }

    /// Returns the limit with the charge of a record.
    ///
    /// If the policy was changed proportionally more than once since the decision, the units of the
    /// estimate are unknown, and nothing is refunded. If other numbers decided and the usage was
    /// kept, it is refilled within the window of this policy.
    pub(crate) fn with_charge(self, charge: RecordedCharge, decided_at: Timestamp) -> Self {
        let changed_since = self.policy.before().is_some_and(|(_, at)| decided_at < at);
        let by = decided_by(&self.policy, decided_at).algorithm();
        let whole_at = match algorithm_digest(by) == charge.algorithm {
            true => charge.whole_at,
            false if changed_since => None,
            false => {
                let refilled_at = decided_at.after(self.policy.window());
                charge.whole_at.map(|whole_at| whole_at.min(refilled_at))
            }
        };
        Self {
            estimate: charge.estimate,
            whole_at,
            decided_at,
            ..self
        }
    }

    /// Returns the charge in the form of a record.
    pub(crate) fn to_charge(&self) -> RecordedCharge {
        RecordedCharge {
            estimate: self.estimate,
            whole_at: self.whole_at,
            algorithm: algorithm_digest(decided_by(&self.policy, self.decided_at).algorithm()),
        }
    }

    pub(crate) fn with_deadline(self, deadline: Duration) -> Self {
        Self {
            policy: self.policy.with_deadline(deadline),
            ..self
        }
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.policy.deadline()
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Converts an amount to the unit of the limit.
    pub(crate) fn units(&self, amount: Amount) -> Result<u64, Rejection> {
        used_units(&self.policy, amount)
    }

    pub(crate) fn estimate(&self) -> u64 {
        self.estimate
    }

    /// Returns the limit with this cost.
    pub(crate) fn limit(&self, cost: u64) -> ValidatedLimit<'_> {
        ValidatedLimit {
            identity: self.identity,
            policy: &self.policy,
            key: (&self.key).into(),
            cost,
            blocks: None,
        }
    }

    /// Returns the difference to the actual cost and the kind of change; `None` if there is no
    /// difference.
    pub(crate) fn settlement_change(&self, actual: u64) -> Option<(ValidatedLimit<'_>, UsageCorrection)> {
        let limit = self.limit(self.estimate.abs_diff(actual));
        let change = match (actual > self.estimate, self.whole_at) {
            (true, _) => UsageCorrection::ForceCharge,
            (false, Some(whole_at)) => UsageCorrection::Refund {
                whole_at: whole_at.as_micros().max(1),
            },
            (false, None) => return None,
        };
        (limit.cost > 0).then_some((limit, change))
    }

    /// Returns the refund under a policy that replaced the one of the decision and kept the usage;
    /// `None` if the policy of the decision has to compute it.
    pub(crate) fn refund_under(&self, successor: &Policy) -> Option<UsageCorrection> {
        let usage = PastUsage {
            decided_at: self.decided_at.as_micros(),
            whole_at: self.whole_at?.as_micros(),
        };
        let before = decided_by(&self.policy, self.decided_at).algorithm();
        let whole_at = usage.whole_under(before, successor.algorithm())?.max(1);
        Some(UsageCorrection::Refund { whole_at })
    }

    /// Returns the relation to the current policy of the limiter's registry.
    pub(crate) fn successor(&self, limiter: &Limiter, limit: &ValidatedLimit<'_>) -> CurrentPolicy {
        let now = limiter.in_force(limit.policy.name(), &limit.key);
        let now = now.filter(|now| limit.has_policy(now));
        let now = now.unwrap_or_else(|| limit.policy.clone());
        let algorithm = decided_by(limit.policy, self.decided_at).algorithm();
        match now.before() {
            // Also if the current numbers are those of the decision: the permits were refilled at
            // the rates of the policies between them.
            Some((before, at)) if self.decided_at < at && before.algorithm() != algorithm => {
                CurrentPolicy::Unknown(now)
            }
            Some((_, at)) if self.decided_at < at && now.algorithm() != algorithm => {
                CurrentPolicy::Proportional(now)
            }
            _ if now.algorithm() != algorithm => CurrentPolicy::Successor(now),
            _ => CurrentPolicy::Same,
        }
    }
}

/// Returns the policy that decided: the previous one until its change takes effect.
fn decided_by(policy: &Policy, decided_at: Timestamp) -> &Policy {
    match policy.before() {
        Some((before, at)) if decided_at < at => before,
        _ => policy,
    }
}

/// Returns the time from a decision until the usage is refilled. Leased tokens are not usage,
/// although the limit is not full before they return; only buckets and funnels lease tokens.
fn whole_after(policy: &Policy, outcome: &LimitOutcome) -> Duration {
    let algorithm = policy.algorithm();
    let usage_refilled_after = policy.lease().and_then(|_| {
        let left = used_units(policy, outcome.remaining());
        let used = left.map_or(0, |left| algorithm.quota().saturating_sub(left));
        algorithm.refill_micros(used)
    });
    let usage_refilled_after = usage_refilled_after.map_or(Duration::MAX, Duration::from_micros);
    outcome.reset_after().min(usage_refilled_after)
}
