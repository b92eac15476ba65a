//! Decisions of calls with settings outside of the store: key lists, shadow mode, `Off`, overlays
//! and penalties.
//!
//! The limits of one call may have different settings, but the store decides limits of one request
//! together. [`EnforcementPlan`] separates them: limits that are off or exempt take no part, the
//! enforced limits are decided in one request, and the limits in shadow mode are decided in a
//! second request if the enforced limits allow the call. It then merges the outcomes in the order
//! of the call. Calls without such settings do not use a plan.
//!
//! Invariants: a denial in shadow mode neither denies nor delays a call. A call that a key list
//! denies charges no limit. Each limit of a call is counted once in the metrics.
//!
//! Tests: `tests/contract/{enforcement,key_lists,overlays,penalties,trials}.rs`,
//! `tests/key_lists.rs`.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::algorithm::{Mode, StepOutcome, StepResult};
use crate::decision::{
    Allowed, Decision, DecisionFlags, LimitOutcome, Origin, Participation, Participations, Rejection,
};
use crate::enforcement::KeyRule;
use crate::enforcement::blocked_decision::deadline;
use crate::enforcement::trial::TrialRequest;
use crate::error::StoreError;
use crate::limiter::Limiter;
use crate::observe::{self, LimitEvent, ReportedLimit, UsageRecorder};
use crate::policy::{Enforcement, Policy};
use crate::request::{DecisionRequest, LimitRequest};
use crate::settlement::{PendingGrant, Reservation};
pub(crate) use crate::support::one_or_many::OneOrMany;
use crate::waiting::WaitBudget;

/// The limits of a call, grouped by the way they are decided.
#[derive(Debug)]
pub(crate) struct EnforcementPlan<'a> {
    limiter: &'a Limiter,
    mode: Mode,
    /// Number of limits of the call.
    count: usize,
    /// Decided in one request; a denial is enforced.
    enforced: Subset<'a>,
    /// Decided in one request after the enforced limits, if these allow the call. A denial is only
    /// reported.
    shadow: Subset<'a>,
    /// True if any limit is enforced, by the store or by a key list.
    enforces: bool,
    /// The first limit whose key is denied without the store, its position, and the origin of the
    /// denial.
    forbidden: Option<(ReportedLimit<'a>, usize, Origin)>,
    /// The origin of such a denial under a policy in shadow mode.
    would_forbid: Option<Origin>,
    /// An allow list of a policy contains the key.
    listed: bool,
    /// Policies without a part in the decision: the event of an allowed call, and the origin of the
    /// exemption.
    exempt: Vec<(&'a Policy, LimitEvent, Origin)>,
    /// Trial values of the limits that the store decides.
    trials: Vec<TrialRequest<'a>>,
}

/// Limits that are decided together, and their positions in the request.
#[derive(Debug, Default)]
struct Subset<'a> {
    requests: Vec<LimitRequest<'a>>,
    positions: Vec<usize>,
}

impl<'a> EnforcementPlan<'a> {
    pub(crate) fn new(limiter: &'a Limiter, requests: OneOrMany<LimitRequest<'a>>, mode: Mode) -> Self {
        let mut sorted = Self {
            limiter,
            mode,
            count: requests.len(),
            enforced: Subset::default(),
            shadow: Subset::default(),
            enforces: false,
            forbidden: None,
            would_forbid: None,
            listed: false,
            exempt: Vec::new(),
            trials: Vec::new(),
        };
        for (position, request) in requests.into_iter().enumerate() {
            sorted.add(position, request.with_defaults(&limiter.inner.defaults));
        }
        if sorted.forbidden.is_some() {
            // The store does not decide the call, and its other limits are not counted.
            (sorted.enforced, sorted.shadow) = Default::default();
            sorted.trials.clear();
        }
        sorted
    }

    fn add(&mut self, position: usize, request: LimitRequest<'a>) {
        let policy = request.policy();
        let (enforcement, key_rule) = self.limiter.enforcement_of(policy, request.key());
        if enforcement == Enforcement::Off {
            self.exempt.push((policy, LimitEvent::Allowed, Origin::Off));
            return;
        }
        let is_enforced = enforcement == Enforcement::Enforce;
        self.enforces |= is_enforced;
        match key_rule {
            KeyRule::Denied(origin) if is_enforced => {
                let limiter = self.limiter;
                self.forbidden
                    .get_or_insert_with(|| (limiter.reported_limit(&request), position, origin));
            }
            KeyRule::Denied(origin) => {
                self.would_forbid.get_or_insert(origin);
                self.exempt.push((policy, LimitEvent::ShadowDenied, origin));
            }
            KeyRule::Allowed => {
                self.listed = true;
                self.exempt.push((policy, LimitEvent::Allowed, Origin::KeyList));
            }
            KeyRule::Unlisted => {
                let part = if is_enforced {
                    &mut self.enforced
                } else {
                    &mut self.shadow
                };
                self.trials.extend(self.limiter.trial_of(&request, self.mode));
                part.requests.push(request);
                part.positions.push(position);
            }
        }
    }

    /// Decides the call without waiting.
    pub(crate) async fn decide(mut self) -> Result<Decision, Rejection> {
        let (limiter, limits, mode) = (self.limiter, self.reported_limits(), self.mode);
        let exempt = std::mem::take(&mut self.exempt);
        let in_shadow = self.shadow.requests.len();
        let trials = std::mem::take(&mut self.trials);
        let answer = match trials.is_empty() {
            true => self.decide_all().await,
            false => {
                let trials = self.limiter.decide_trials(trials);
                tokio::join!(self.decide_all(), trials).0
            }
        };
        let usage = limiter.inner.backend.usage();
        let is_allowed = answer.as_ref().is_ok_and(Decision::is_allowed);
        // As in `acquire`, the shadow limits come first and are not evaluated for a denied call.
        let skipped = if is_allowed { 0 } else { in_shadow };
        observe::record_call(usage, limits.into_iter().skip(skipped), mode, &answer);
        if is_allowed {
            count_exempt(usage, mode, &exempt);
        }
        answer
    }

    /// Waits until the enforced limits allow the call, within the budget.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: permits that are granted to a dropped call go to the next waiter or are
    /// refunded.
    pub(crate) async fn acquire(mut self, budget: WaitBudget<'_>) -> Result<Allowed, Rejection> {
        let (limiter, limits, mode) = (self.limiter, self.reported_limits(), self.mode);
        let exempt = std::mem::take(&mut self.exempt);
        let in_shadow = self.shadow.requests.len();
        let mut trials = std::mem::take(&mut self.trials);
        if budget.has_counted_trials() {
            trials.clear();
        }
        let trials = self.limiter.decide_trials(trials);
        // A shutdown of the limiter also waits for a refund.
        let _open = limiter.inner.closing.subscribe();
        let (answer, ()) = tokio::join!(self.acquire_all(budget), trials);
        // Kept until the trials are decided, since the call may be cancelled before.
        let answer = answer.map(|(grant, allowed)| {
            let _ = grant.map(|mut grant| grant.take());
            allowed
        });
        let usage = limiter.inner.backend.usage();
        // The shadow limits come first in `limits`, and are not evaluated if an enforced limit
        // denies.
        let skipped = if answer.is_ok() { 0 } else { in_shadow };
        observe::record_wait(usage, limits.into_iter().skip(skipped), mode, &answer);
        if answer.is_ok() {
            count_exempt(usage, mode, &exempt);
        }
        answer
    }

    /// Returns the limits that the store decides, and the limit whose key is forbidden.
    fn reported_limits(&self) -> SmallVec<[ReportedLimit<'a>; 2]> {
        let limits = self.shadow.requests.iter().chain(&self.enforced.requests);
        let limits = limits.map(|request| self.limiter.reported_limit(request));
        limits
            .chain(self.forbidden.clone().map(|(limit, ..)| limit))
            .collect()
    }

    async fn decide_all(mut self) -> Result<Decision, Rejection> {
        if let Some(decided) = self.decide_without_store()? {
            return Ok(decided);
        }
        let (requests, started) = (std::mem::take(&mut self.enforced.requests), Instant::now());
        let mut left = Duration::MAX;
        let enforced = if requests.is_empty() {
            None
        } else {
            let deadline = deadline(&requests);
            let decision = self.limiter.decide_and_apply_penalty(requests, self.mode).await?;
            if !decision.is_allowed() {
                let parts = self.parts(Some(&decision), None);
                return Ok(Decision { parts, ..decision });
            }
            left = deadline.saturating_sub(started.elapsed());
            Some(decision)
        };
        let shadow = self.decide_shadow(left).await;
        Ok(self.both(enforced, shadow))
    }

    /// Returns the decision, and the grant of the enforced limits, which is refunded unless it is
    /// taken.
    async fn acquire_all(
        mut self,
        budget: WaitBudget<'_>,
    ) -> Result<(Option<PendingGrant>, Allowed), Rejection> {
        if let Some(decided) = self.decide_without_store()? {
            return Ok((None, decided.require()?));
        }
        let limiter = self.limiter;
        let (requests, started) = (std::mem::take(&mut self.enforced.requests), Instant::now());
        if requests.is_empty() {
            let shadow = self.decide_shadow(Duration::MAX).await;
            return Ok((None, self.both(None, shadow).require()?));
        }
        let query_end = limiter.now().after(budget.max_query_time);
        let left = || match budget.timeout.is_zero() {
            // A call with a timeout of zero is a check.
            true => deadline(&requests).saturating_sub(started.elapsed()),
            false => limiter.remaining_time(query_end, budget.timeout),
        };
        let mut request =
            DecisionRequest::new(requests.iter().cloned(), self.mode, limiter.inner.any_groups)?;
        request.add_blocks();
        let mut answer = limiter.wait_uncounted(&request, budget).await;
        if let Err(
            Rejection::TimedOut {
                decision: Some(denied),
                ..
            }
            | Rejection::Limited(denied),
        ) = &mut answer
        {
            limiter.apply_penalty(&requests, self.mode, denied, left()).await;
            denied.parts = self.parts(Some(denied), None);
        }
        let grant = PendingGrant::new(Reservation::of_request(limiter, &request, answer?));
        let shadow = self.decide_shadow(left()).await;
        let allowed = self.both(grant.decision(), shadow).require()?;
        Ok((Some(grant), allowed))
    }

    /// Returns the decision if it needs no store.
    fn decide_without_store(&self) -> Result<Option<Decision>, StoreError> {
        let now = || self.limiter.inner.clock.now();
        if self.enforces {
            self.limiter.open()?;
        }
        if let Some((ReportedLimit { policy, .. }, position, origin)) = self.forbidden {
            let denies = StepResult::Computed(StepOutcome::default());
            let mut parts = Participations::absent(self.count);
            parts.set(position, Participation::AsDecided);
            return Ok(Some(Decision {
                limits: OneOrMany::One(LimitOutcome::new(policy, denies)),
                allowed: false,
                parts,
                ..Decision::without_query(origin, now())
            }));
        }
        if !(self.enforced.requests.is_empty() && self.shadow.requests.is_empty()) {
            return Ok(None);
        }
        let of_list = self.listed.then_some(Origin::KeyList);
        let origin = self.would_forbid.or(of_list).unwrap_or(Origin::Off);
        Ok(Some(self.flagged(Decision::without_query(origin, now()))))
    }

    /// Decides the shadow limits within a timeout.
    async fn decide_shadow(&mut self, timeout: Duration) -> Option<Decision> {
        let requests = std::mem::take(&mut self.shadow.requests);
        if requests.is_empty() {
            return None;
        }
        Some(self.shadow_decision(requests, timeout).await)
    }

    /// Combines a decision that allows the call with that of the shadow limits.
    fn both(self, enforced: Option<Decision>, shadow: Option<Decision>) -> Decision {
        let parts = self.parts(enforced.as_ref(), shadow.as_ref());
        let decision = match (enforced, shadow) {
            (Some(enforced), Some(shadow)) => self.merge(enforced, shadow),
            (Some(decision), None) | (None, Some(decision)) => decision,
            (None, None) => Decision::without_query(Origin::Off, self.limiter.inner.clock.now()),
        };
        Decision {
            parts,
            ..self.flagged(decision)
        }
    }

    /// Returns the participation of each limit in the combined decision.
    fn parts(&self, enforced: Option<&Decision>, shadow: Option<&Decision>) -> Participations {
        let mut parts = Participations::absent(self.count);
        let mut set = |part: &Subset<'_>, participation| {
            part.positions
                .iter()
                .for_each(|position| parts.set(*position, participation))
        };
        if enforced.is_some() {
            set(&self.enforced, Participation::AsDecided);
        }
        if let Some(shadow) = shadow {
            let is_alike = enforced.is_none_or(|enforced| enforced.origin.charges_as(shadow.origin));
            set(
                &self.shadow,
                match () {
                    () if shadow.would_deny() && shadow.limits.is_empty() => Participation::Absent,
                    () if shadow.would_deny() => Participation::Apart,
                    () if is_alike => Participation::InShadow,
                    () if shadow.limits.is_empty() => Participation::Absent,
                    () => Participation::Apart,
                },
            );
        }
        parts
    }

    /// Decides the shadow limits. The call proceeds regardless of the result.
    async fn shadow_decision(&self, requests: Vec<LimitRequest<'a>>, timeout: Duration) -> Decision {
        let answer = match self.limiter.open() {
            Ok(()) => self.limiter.decide_blocked(requests, self.mode, timeout).await,
            Err(closed) => Err(closed.into()),
        };
        let mut decision = answer.unwrap_or_else(|rejection| {
            tracing::debug!(rejection = %rejection.diagnostic(), "shadow mode: call would be rejected");
            let now = self.limiter.inner.clock.now();
            let mut decision = Decision {
                allowed: false,
                ..Decision::without_query(self.limiter.inner.backend.origin(), now)
            };
            // Any other rejection is caused by an invalid call, which is not sent to the store.
            if let Rejection::Unavailable { error, .. } = rejection {
                decision.origin = Origin::FailedOpen;
                decision.store_error = Some(Box::new(error));
            }
            decision
        });
        if !decision.allowed {
            decision.allowed = true;
            decision.flags = decision.flags.and(DecisionFlags::WOULD_DENY);
        }
        // Shadow limits do not delay calls.
        if !decision.delay().is_zero() {
            let limits = decision.limits.into_iter();
            decision.limits = limits.map(LimitOutcome::without_delay).collect();
        }
        decision
    }

    /// Combines both decisions, with the limits in the order of the request.
    fn merge(&self, enforced: Decision, shadow: Decision) -> Decision {
        let of = |part: &Subset<'_>, limits: OneOrMany<LimitOutcome>| {
            part.positions.clone().into_iter().zip(limits).collect::<Vec<_>>()
        };
        let mut limits = of(&self.enforced, enforced.limits);
        limits.extend(of(&self.shadow, shadow.limits));
        limits.sort_by_key(|(position, _)| *position);
        Decision {
            limits: limits.into_iter().map(|(_, limit)| limit).collect(),
            flags: enforced.flags.and(shadow.flags.without(DecisionFlags::IN_SHARE)),
            store_error: enforced.store_error.or(shadow.store_error),
            ..Decision::without_query(enforced.origin, enforced.decided_at)
        }
    }

    fn flagged(&self, mut decision: Decision) -> Decision {
        if self.would_forbid.is_some() {
            decision.flags = decision.flags.and(DecisionFlags::WOULD_DENY);
        }
        decision
    }
}

/// Counts the exempt policies of a call that was allowed.
fn count_exempt(usage: Option<&UsageRecorder>, mode: Mode, exempt: &[(&Policy, LimitEvent, Origin)]) {
    if mode == Mode::Charge {
        for (policy, event, origin) in exempt {
            observe::count_exempt(usage, policy, *event, *origin);
        }
    }
}

impl Limiter {
    /// Returns whether an allowed call is charged under this limit.
    pub(crate) fn charges(&self, request: &LimitRequest<'_>) -> bool {
        let (enforcement, key_rule) = self.enforcement_of(request.policy(), request.key());
        enforcement != Enforcement::Off && key_rule == KeyRule::Unlisted
    }
}
