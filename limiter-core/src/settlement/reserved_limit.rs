//! One limit of a reservation: what it was charged, and what becomes of that.

use std::time::Duration;

use crate::algorithm::Change;
use crate::decision::{Decision, LimitOutcome, Origin, Participation, Rejection};
use crate::identity::Identity;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::{Algorithm, Funnel, Policy, TokenBucket};
use crate::request::{RequestedLimit, used_units};
use crate::units::{Amount, Timestamp};

/// One limit of a call that was allowed, of which there is something to be settled.
#[derive(Debug)]
pub(crate) struct ReservedLimit {
    identity: Identity,
    policy: Policy,
    key: Key<'static>,
    /// In the algorithm's own unit, as amounts are here.
    estimate: u64,
    /// When all that was used by then has come back by itself, in the time in which the limit's
    /// state is kept. `None` where nothing was charged, since nobody decided.
    whole_at: Option<Timestamp>,
    decided_at: Timestamp,
}

/// What the policy of a reservation is by the limiter's book when it is settled.
pub(crate) enum CurrentPolicy {
    /// The same, as far as what was used is concerned.
    Same,
    /// This one, as which it goes on in proportion.
    Proportional(Policy),
    /// One that was changed in proportion from another one in between.
    Unknown,
}

impl ReservedLimit {
    /// What there is to be settled of each limit of an allowed call, by the decision. `None` of
    /// those that were not charged: what is off, what a list allows, and what goes on in spite of a
    /// denial.
    pub(crate) fn each<'a>(
        limits: impl IntoIterator<Item = Option<RequestedLimit<'a>>>,
        decision: &Decision,
    ) -> impl Iterator<Item = Option<Self>> {
        let mut outcomes = decision.limits().iter();
        let numbered = limits.into_iter().enumerate();
        numbered.map(move |(number, limit)| {
            let told = match decision.parts.get(number) {
                Participation::Absent => return None,
                Participation::Apart => {
                    outcomes.next();
                    return None;
                }
                Participation::AsDecided => outcomes.next(),
            };
            let (limit, decided_at) = (limit?, decision.decided_at());
            let whole_at = match decision.origin() {
                _ if decision.is_degraded() => return None,
                Origin::Redis | Origin::Lease | Origin::Memory | Origin::LocalFallback => {
                    let told = told?;
                    Some(match told.outcome().whole_at {
                        0 => decided_at.after(whole_after(decided_by(limit.policy, decided_at), told)),
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

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// An amount in the limit's own unit.
    pub(crate) fn units(&self, amount: Amount) -> Result<u64, Rejection> {
        used_units(&self.policy, amount)
    }

    pub(crate) fn estimate(&self) -> u64 {
        self.estimate
    }

    /// The limit, at this cost.
    pub(crate) fn limit(&self, cost: u64) -> RequestedLimit<'_> {
        RequestedLimit {
            identity: self.identity,
            policy: &self.policy,
            key: (&self.key).into(),
            cost,
            blocks: None,
        }
    }

    /// The difference to what was used in the end, and what becomes of it; `None` where there is
    /// nothing to do.
    pub(crate) fn settlement_change(&self, actual: u64) -> Option<(RequestedLimit<'_>, Change)> {
        let limit = self.limit(self.estimate.abs_diff(actual));
        let change = match (actual > self.estimate, self.whole_at) {
            (true, _) => Change::Owe,
            (false, Some(whole_at)) => Change::Refund {
                whole_at: whole_at.as_micros().max(1),
            },
            (false, None) => return None,
        };
        (limit.cost > 0).then_some((limit, change))
    }

    /// What became of the policy, as far as the limiter's book says so.
    pub(crate) fn successor(&self, limiter: &Limiter, limit: &RequestedLimit<'_>) -> CurrentPolicy {
        let now = limiter.in_force(limit.policy.name(), &limit.key);
        let now = now.filter(|now| limit.has_policy(now));
        let now = now.unwrap_or_else(|| limit.policy.clone());
        let by = decided_by(limit.policy, self.decided_at).algorithm();
        match now.before() {
            Some((before, at)) if self.decided_at < at && now.algorithm() != by => {
                if before.algorithm() == by {
                    CurrentPolicy::Proportional(now)
                } else {
                    CurrentPolicy::Unknown
                }
            }
            _ => CurrentPolicy::Same,
        }
    }
}

/// The policy whose numbers decided: until its change it is the one before.
fn decided_by(policy: &Policy, decided_at: Timestamp) -> &Policy {
    match policy.before() {
        Some((before, at)) if decided_at < at => before,
        _ => policy,
    }
}

/// How long it takes from a decision until what was used by then has come back by itself. What is
/// lent of a limit is not used, though the limit is not whole before that has come back, too; no
/// limit but a bucket or a funnel lends.
fn whole_after(policy: &Policy, told: &LimitOutcome) -> Duration {
    let algorithm = policy.algorithm();
    let used_back_after = match algorithm {
        Algorithm::TokenBucket(TokenBucket { rate, .. }) | Algorithm::Funnel(Funnel { rate, .. })
            if policy.lease().is_some() =>
        {
            let left = used_units(policy, told.remaining());
            let used = left.map_or(0, |left| algorithm.quota().saturating_sub(left));
            Duration::from_micros(rate.time_for(used, 0))
        }
        _ => Duration::MAX,
    };
    told.reset_after().min(used_back_after)
}
