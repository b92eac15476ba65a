//! A call whose policies, or whose limiter, say more than a store knows: lists of keys, shadow,
//! off, penalties. What a store is to decide is found out first; calls that say nothing of the kind
//! never come here.

use std::time::{Duration, Instant};

use crate::algorithm::{Mode, StepOutcome, StepResult};
use crate::decision::{
    Allowed, Decision, DecisionFlags, LimitOutcome, Origin, Participation, Participations, Rejection,
};
use crate::enforcement::KeyRule;
use crate::error::StoreError;
use crate::limiter::Limiter;
use crate::observe;
use crate::policy::{Enforcement, Policy};
use crate::request::{DecisionRequest, LimitRequest};
use crate::settlement::{PendingGrant, Reservation};
pub(crate) use crate::support::one_or_many::OneOrMany;
use crate::waiting::WaitBudget;

/// A call's limits, by what becomes of them.
#[derive(Debug)]
pub(crate) struct EnforcementPlan<'a> {
    limiter: &'a Limiter,
    mode: Mode,
    /// How many limits there are.
    asked: usize,
    /// Decided as one, and obeyed.
    enforced: Subset<'a>,
    /// Decided as one after these, if they allow the call, and told.
    shadow: Subset<'a>,
    /// Whether any limit is enforced, also by a list.
    enforces: bool,
    /// The first policy that denies its key by a list …
    forbidden: Option<&'a Policy>,
    /// … and the first that would if it were not in shadow.
    would_forbid: bool,
    /// Whether some policy allows its key by a list.
    listed: bool,
    /// Policies that have no part in the decision: who excuses the call, and whether they would
    /// deny it.
    excused: Vec<(&'a Policy, Origin, bool)>,
}

/// Limits that are decided together, and the numbers under which they were asked for.
#[derive(Debug, Default)]
struct Subset<'a> {
    asks: Vec<LimitRequest<'a>>,
    places: Vec<usize>,
}

impl<'a> EnforcementPlan<'a> {
    pub(crate) fn new(limiter: &'a Limiter, asks: OneOrMany<LimitRequest<'a>>, mode: Mode) -> Self {
        let mut sorted = Self {
            limiter,
            mode,
            asked: asks.len(),
            enforced: Subset::default(),
            shadow: Subset::default(),
            enforces: false,
            forbidden: None,
            would_forbid: false,
            listed: false,
            excused: Vec::new(),
        };
        let whole = limiter.enforcement();
        for (place, ask) in asks.into_iter().enumerate() {
            sorted.add(place, ask, whole);
        }
        sorted
    }

    fn add(&mut self, place: usize, ask: LimitRequest<'a>, whole: Enforcement) {
        let policy = ask.policy();
        let enforcement = policy.enforcement().max(whole);
        if enforcement == Enforcement::Off {
            self.excused.push((policy, Origin::Off, false));
            return;
        }
        let is_enforced = enforcement == Enforcement::Enforce;
        self.enforces |= is_enforced;
        match KeyRule::for_key(policy, ask.key()) {
            KeyRule::Denied if is_enforced => {
                self.forbidden.get_or_insert(policy);
            }
            KeyRule::Denied => {
                self.would_forbid = true;
                self.excused.push((policy, Origin::KeyList, true));
            }
            KeyRule::Allowed => {
                self.listed = true;
                self.excused.push((policy, Origin::KeyList, false));
            }
            KeyRule::Unlisted => {
                let part = if is_enforced {
                    &mut self.enforced
                } else {
                    &mut self.shadow
                };
                part.asks.push(ask);
                part.places.push(place);
            }
        }
    }

    /// The decision that all of this comes to.
    pub(crate) async fn decide(mut self) -> Result<Decision, Rejection> {
        let (policies, mode) = (self.policies(), self.mode);
        let excused = std::mem::take(&mut self.excused);
        let answer = self.decide_all().await;
        observe::answered(policies.iter().copied(), mode, &answer);
        if answer.as_ref().is_ok_and(Decision::is_allowed) {
            count_excused(mode, &excused);
        }
        answer
    }

    /// The same for a call that waits for those of its limits that are enforced.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what is granted to one who has left goes to the next, or is given back.
    pub(crate) async fn acquire(mut self, stay: WaitBudget<'_>) -> Result<Allowed, Rejection> {
        let (policies, mode) = (self.policies(), self.mode);
        let excused = std::mem::take(&mut self.excused);
        let in_shadow = self.shadow.asks.len();
        let answer = self.acquire_all(stay).await;
        // Those in shadow come first in these, and are not asked where the others deny.
        let skipped = if answer.is_ok() { 0 } else { in_shadow };
        observe::waited(policies.iter().copied().skip(skipped), mode, &answer);
        if answer.is_ok() {
            count_excused(mode, &excused);
        }
        answer
    }

    /// Of all that is asked, or, where nothing is, the one that forbids it.
    fn policies(&self) -> Vec<&'a Policy> {
        let asked = self.shadow.asks.iter().chain(&self.enforced.asks);
        asked.map(LimitRequest::policy).chain(self.forbidden).collect()
    }

    async fn decide_all(mut self) -> Result<Decision, Rejection> {
        if let Some(decided) = self.decide_without_store()? {
            return Ok(decided);
        }
        let (asks, started) = (std::mem::take(&mut self.enforced.asks), Instant::now());
        let mut left = Duration::MAX;
        let enforced = if asks.is_empty() {
            None
        } else {
            let deadline = deadline(&asks);
            let decision = self.limiter.decide_and_punish(asks, self.mode).await?;
            if !decision.is_allowed() {
                return Ok(decision);
            }
            left = deadline.saturating_sub(started.elapsed());
            Some(decision)
        };
        let shadow = self.decide_shadow(left).await;
        Ok(self.both(enforced, shadow))
    }

    async fn acquire_all(mut self, stay: WaitBudget<'_>) -> Result<Allowed, Rejection> {
        if let Some(decided) = self.decide_without_store()? {
            return decided.require();
        }
        let limiter = self.limiter;
        let (asks, started) = (std::mem::take(&mut self.enforced.asks), Instant::now());
        if asks.is_empty() {
            let shadow = self.decide_shadow(Duration::MAX).await;
            return self.both(None, shadow).require();
        }
        let asks_until = limiter.now().after(stay.max_query_time);
        let left = || match stay.timeout.is_zero() {
            // It is a check.
            true => deadline(&asks).saturating_sub(started.elapsed()),
            false => limiter.remaining_time(asks_until, stay.timeout),
        };
        let mut request = DecisionRequest::new(asks.iter().cloned(), self.mode, limiter.inner.any_groups)?;
        request.add_blocks();
        let mut answer = limiter.wait_uncounted(&request, stay).await;
        if let Err(
            Rejection::TimedOut {
                decision: Some(denied),
                ..
            }
            | Rejection::Limited(denied),
        ) = &mut answer
        {
            limiter.apply_penalty(&asks, self.mode, denied, left()).await;
        }
        // Whoever shuts the limiter down waits for what is given back, too.
        let _open = limiter.inner.closing.subscribe();
        let mut grant = PendingGrant::new(Reservation::of_request(limiter, &request, answer?));
        let shadow = self.decide_shadow(left()).await;
        // It is taken here alone.
        let enforced = grant.take().map(Allowed::into_decision);
        self.both(enforced, shadow).require()
    }

    /// The decision, where no store has to be asked for it.
    fn decide_without_store(&self) -> Result<Option<Decision>, StoreError> {
        let now = || self.limiter.inner.clock.now();
        if self.enforces {
            self.limiter.open()?;
        }
        if let Some(policy) = self.forbidden {
            let denies = StepResult::Computed(StepOutcome::default());
            return Ok(Some(Decision {
                limits: OneOrMany::One(LimitOutcome::new(policy, denies)),
                allowed: false,
                ..Decision::unasked(Origin::KeyList, now())
            }));
        }
        if !(self.enforced.asks.is_empty() && self.shadow.asks.is_empty()) {
            return Ok(None);
        }
        let by_list = self.listed || self.would_forbid;
        let origin = if by_list { Origin::KeyList } else { Origin::Off };
        Ok(Some(self.mark(Decision::unasked(origin, now()))))
    }

    /// What those in shadow say, asked for so long at most.
    async fn decide_shadow(&mut self, patience: Duration) -> Option<Decision> {
        let asks = std::mem::take(&mut self.shadow.asks);
        if asks.is_empty() {
            return None;
        }
        Some(self.shadow_decision(asks, patience).await)
    }

    /// What a decision that allows the call says with what those in shadow do.
    fn both(self, enforced: Option<Decision>, shadow: Option<Decision>) -> Decision {
        let parts = self.parts(enforced.as_ref(), shadow.as_ref());
        let decision = match (enforced, shadow) {
            (Some(enforced), Some(shadow)) => self.merge(enforced, shadow),
            (Some(decision), None) | (None, Some(decision)) => decision,
            (None, None) => Decision::unasked(Origin::Off, self.limiter.inner.clock.now()),
        };
        Decision {
            parts,
            ..self.mark(decision)
        }
    }

    /// Of which limits it was charged what the decision of both says.
    fn parts(&self, enforced: Option<&Decision>, shadow: Option<&Decision>) -> Participations {
        let mut parts = Participations::default();
        for place in 0..self.asked {
            parts.set(place, Participation::Absent);
        }
        let mut set = |part: &Subset<'_>, what| part.places.iter().for_each(|place| parts.set(*place, what));
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
                    () if is_alike => Participation::AsDecided,
                    () if shadow.limits.is_empty() => Participation::Absent,
                    () => Participation::Apart,
                },
            );
        }
        parts
    }

    /// What those in shadow say; whatever it is, the call goes on.
    async fn shadow_decision(&self, asks: Vec<LimitRequest<'a>>, patience: Duration) -> Decision {
        let answer = match self.limiter.open() {
            Ok(()) => self.limiter.decide_blocked(asks, self.mode, patience).await,
            Err(closed) => Err(closed.into()),
        };
        let mut decision = answer.unwrap_or_else(|rejection| {
            tracing::debug!(rejection = %rejection.diagnostic(), "shadow mode: call would be rejected");
            let now = self.limiter.inner.clock.now();
            let mut decision = Decision {
                allowed: false,
                ..Decision::unasked(self.limiter.inner.backend.origin(), now)
            };
            // Anything else is an invalid call, which the store is not asked about. It works, as
            // far as is known.
            if let Rejection::Unavailable(error) = rejection {
                decision.origin = Origin::FailedOpen;
                decision.store_error = Some(Box::new(error));
            }
            decision
        });
        if !decision.allowed {
            decision.allowed = true;
            decision.marks = decision.marks.and(DecisionFlags::WOULD_DENY);
        }
        // Nobody waits for it.
        if !decision.delay().is_zero() {
            let limits = decision.limits.into_iter();
            decision.limits = limits.map(LimitOutcome::without_delay).collect();
        }
        decision
    }

    /// One decision of both, with the limits in the order in which they were asked for.
    fn merge(&self, enforced: Decision, shadow: Decision) -> Decision {
        let of = |part: &Subset<'_>, limits: OneOrMany<LimitOutcome>| {
            part.places.clone().into_iter().zip(limits).collect::<Vec<_>>()
        };
        let mut limits = of(&self.enforced, enforced.limits);
        limits.extend(of(&self.shadow, shadow.limits));
        limits.sort_by_key(|(place, _)| *place);
        Decision {
            limits: limits.into_iter().map(|(_, limit)| limit).collect(),
            marks: enforced.marks.and(shadow.marks),
            store_error: enforced.store_error.or(shadow.store_error),
            ..Decision::unasked(enforced.origin, enforced.decided_at)
        }
    }

    fn mark(&self, mut decision: Decision) -> Decision {
        if self.would_forbid {
            decision.marks = decision.marks.and(DecisionFlags::WOULD_DENY);
        }
        decision
    }
}

/// What a question about these takes at most.
fn deadline(asks: &[LimitRequest<'_>]) -> Duration {
    let deadlines = asks.iter().map(|ask| ask.policy().deadline());
    deadlines.min().unwrap_or(Policy::DEFAULT_DEADLINE)
}

/// Of a call that was allowed.
fn count_excused(mode: Mode, excused: &[(&Policy, Origin, bool)]) {
    if mode == Mode::Charge {
        for (policy, origin, would_deny) in excused {
            observe::count_exempt(policy, *origin, *would_deny);
        }
    }
}

impl Limiter {
    /// Whether a call is charged anything where it is allowed.
    pub(crate) fn charges(&self, ask: &LimitRequest<'_>) -> bool {
        let policy = ask.policy();
        policy.enforcement().max(self.enforcement()) != Enforcement::Off
            && KeyRule::for_key(policy, ask.key()) == KeyRule::Unlisted
    }

    /// The store's decision on these limits and on the blocks of their keys, waited for so long at
    /// most, and for their deadline.
    async fn decide_blocked(
        &self,
        asks: impl IntoIterator<Item = LimitRequest<'_>>,
        mode: Mode,
        patience: Duration,
    ) -> Result<Decision, Rejection> {
        let mut request = DecisionRequest::new(asks, mode, self.inner.any_groups)?;
        request.add_blocks();
        match self.inner.backend.try_decide(&request) {
            Some(answer) => answer,
            None => {
                self.inner
                    .backend
                    .decide(&request, request.deadline().min(patience))
                    .await
            }
        }
    }

    /// The same, after which a denial counts.
    async fn decide_and_punish(
        &self,
        asks: Vec<LimitRequest<'_>>,
        mode: Mode,
    ) -> Result<Decision, Rejection> {
        let punishes = mode == Mode::Charge && asks.iter().any(|ask| ask.policy().punishing().is_some());
        if !punishes {
            return self.decide_blocked(asks, mode, Duration::MAX).await;
        }
        let started = Instant::now();
        let mut decision = self
            .decide_blocked(asks.iter().cloned(), mode, Duration::MAX)
            .await?;
        if !decision.is_allowed() {
            let left = deadline(&asks).saturating_sub(started.elapsed());
            self.apply_penalty(&asks, mode, &mut decision, left).await;
        }
        Ok(decision)
    }
}
