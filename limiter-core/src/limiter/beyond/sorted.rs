//! A call whose policies, or whose limiter, say more than a store knows: lists of keys, shadow, off, penalties. What a store is to
//! decide is found out first; calls that say nothing of the kind never come here.

use std::time::Duration;

use crate::algorithm::{Mode, Outcome, Standing};
use crate::decision::{Allowed, Decision, LimitOutcome, Marks, Origin, Rejection};
use crate::error::StoreError;
use crate::few::Few;
use crate::limiter::{Check, Limiter};
use crate::observe;
use crate::policy::{Enforcement, Policy};
use crate::request::{Ask, Request};

/// A call's limits, by what becomes of them.
#[derive(Debug)]
pub(in crate::limiter) struct Sorted<'a> {
    limiter: &'a Limiter,
    mode: Mode,
    /// Decided as one, and obeyed.
    enforced: Part<'a>,
    /// Decided as one after these, if they allow the call, and told.
    shadow: Part<'a>,
    /// Whether any limit is enforced, also by a list.
    enforces: bool,
    /// The first policy that denies its key by a list …
    forbidden: Option<&'a Policy>,
    /// … and the first that would if it were not in shadow.
    would_forbid: bool,
    /// Whether some policy allows its key by a list.
    listed: bool,
}

/// Limits that are decided together, and the numbers under which they were asked for.
#[derive(Debug, Default)]
struct Part<'a> {
    asks: Vec<Ask<'a>>,
    places: Vec<usize>,
}

impl<'a> Sorted<'a> {
    pub(in crate::limiter) fn new(check: Check<'a>) -> Self {
        let (limiter, asks, mode) = check.into_parts();
        let mut sorted = Self {
            limiter,
            mode,
            enforced: Part::default(),
            shadow: Part::default(),
            enforces: false,
            forbidden: None,
            would_forbid: false,
            listed: false,
        };
        let whole = limiter.enforcement();
        for (place, ask) in asks.into_iter().enumerate() {
            sorted.add(place, ask, whole);
        }
        sorted
    }

    fn add(&mut self, place: usize, ask: Ask<'a>, whole: Enforcement) {
        let policy = ask.policy();
        let enforcement = policy.enforcement().max(whole);
        if enforcement == Enforcement::Off {
            return;
        }
        let is_enforced = enforcement == Enforcement::Enforce;
        self.enforces |= is_enforced;
        if policy.deny_keys().is_some_and(|list| list.denies(ask.key())) {
            if is_enforced {
                self.forbidden.get_or_insert(policy);
            } else {
                self.would_forbid = true;
            }
        } else if policy.allow_keys().is_some_and(|list| list.allows(ask.key())) {
            self.listed = true;
        } else {
            let part = if is_enforced {
                &mut self.enforced
            } else {
                &mut self.shadow
            };
            part.asks.push(ask);
            part.places.push(place);
        }
    }

    /// The decision that all of this comes to.
    pub(in crate::limiter) async fn decide(self) -> Result<Decision, Rejection> {
        let (policies, mode) = (self.policies(), self.mode);
        let answer = self.decide_all().await;
        observe::answered(policies.iter().copied(), mode, &answer);
        answer
    }

    /// Of all that is asked, or, where nothing is, the one that forbids it.
    fn policies(&self) -> Vec<&'a Policy> {
        let asked = self.enforced.asks.iter().chain(&self.shadow.asks);
        asked.map(Ask::policy).chain(self.forbidden).collect()
    }

    async fn decide_all(mut self) -> Result<Decision, Rejection> {
        if let Some(decided) = self.at_once()? {
            return Ok(decided);
        }
        let asks = std::mem::take(&mut self.enforced.asks);
        let enforced = if asks.is_empty() {
            None
        } else {
            let decision = self.limiter.decide_and_punish(asks, self.mode).await?;
            if !decision.is_allowed() {
                return Ok(decision);
            }
            Some(decision)
        };
        Ok(self.with_shadow(enforced).await)
    }

    /// The same for a call that waits for those of its limits that are enforced.
    pub(in crate::limiter) async fn acquire(mut self, up_to: Duration) -> Result<Allowed, Rejection> {
        if let Some(decided) = self.at_once()? {
            return decided.require();
        }
        let asks = std::mem::take(&mut self.enforced.asks);
        let enforced = if asks.is_empty() {
            None
        } else {
            let mut request = Request::new(asks.iter().cloned(), self.mode, self.limiter.inner.any_groups)?;
            request.add_blocks();
            let mut answer = self.limiter.wait(&request, up_to).await;
            if let Err(
                Rejection::TimedOut {
                    decision: Some(denied),
                    ..
                }
                | Rejection::Limited(denied),
            ) = &mut answer
            {
                self.limiter.punish(&asks, self.mode, denied).await;
            }
            Some(answer?.into_decision())
        };
        self.with_shadow(enforced).await.require()
    }

    /// The decision, where no store has to be asked for it.
    fn at_once(&self) -> Result<Option<Decision>, StoreError> {
        let now = || self.limiter.inner.clock.now();
        if self.enforces {
            self.limiter.open()?;
        }
        if let Some(policy) = self.forbidden {
            let denies = Standing::Told(Outcome::default());
            return Ok(Some(Decision {
                limits: Few::One(LimitOutcome::new(policy, denies)),
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

    /// What a decision that allows the call says with what those in shadow do.
    async fn with_shadow(mut self, enforced: Option<Decision>) -> Decision {
        let asks = std::mem::take(&mut self.shadow.asks);
        let shadow = if asks.is_empty() {
            None
        } else {
            Some(self.in_shadow(asks).await)
        };
        let decision = match (enforced, shadow) {
            (Some(enforced), Some(shadow)) => self.merge(enforced, shadow),
            (Some(decision), None) | (None, Some(decision)) => decision,
            (None, None) => Decision::unasked(Origin::Off, self.limiter.inner.clock.now()),
        };
        self.mark(decision)
    }

    /// What those in shadow say; whatever it is, the call goes on.
    async fn in_shadow(&self, asks: Vec<Ask<'a>>) -> Decision {
        let answer = match self.limiter.open() {
            Ok(()) => self.limiter.decide_blocked(asks, self.mode).await,
            Err(closed) => Err(closed.into()),
        };
        let mut decision = answer.unwrap_or_else(|rejection| {
            tracing::debug!(%rejection, "a call in shadow would be rejected");
            let mut decision = Decision::unasked(Origin::FailedOpen, self.limiter.inner.clock.now());
            decision.allowed = false;
            if let Rejection::Unavailable(error) = rejection {
                decision.store_error = Some(Box::new(error));
            }
            decision
        });
        if !decision.allowed {
            decision.allowed = true;
            decision.marks = decision.marks.and(Marks::WOULD_DENY);
        }
        decision
    }

    /// One decision of both, with the limits in the order in which they were asked for.
    fn merge(&self, enforced: Decision, shadow: Decision) -> Decision {
        let of = |part: &Part<'_>, limits: Few<LimitOutcome>| {
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
            decision.marks = decision.marks.and(Marks::WOULD_DENY);
        }
        decision
    }
}

impl Limiter {
    /// Whether a call is charged anything where it is allowed.
    pub(in crate::limiter) fn charges(&self, ask: &Ask<'_>) -> bool {
        let policy = ask.policy();
        policy.enforcement().max(self.enforcement()) != Enforcement::Off
            && !policy.allow_keys().is_some_and(|list| list.allows(ask.key()))
            && !policy.deny_keys().is_some_and(|list| list.denies(ask.key()))
    }

    /// The store's decision on these limits and on the blocks of their keys.
    async fn decide_blocked(
        &self,
        asks: impl IntoIterator<Item = Ask<'_>>,
        mode: Mode,
    ) -> Result<Decision, Rejection> {
        let mut request = Request::new(asks, mode, self.inner.any_groups)?;
        request.add_blocks();
        match self.decide_now(&request) {
            Some(answer) => answer,
            None => self.decide(&request, request.deadline()).await,
        }
    }

    /// The same, after which a denial counts.
    async fn decide_and_punish(&self, asks: Vec<Ask<'_>>, mode: Mode) -> Result<Decision, Rejection> {
        let punishes = mode == Mode::Charge && asks.iter().any(|ask| ask.policy().punishing().is_some());
        if !punishes {
            return self.decide_blocked(asks, mode).await;
        }
        let mut decision = self.decide_blocked(asks.iter().cloned(), mode).await?;
        if !decision.is_allowed() {
            self.punish(&asks, mode, &mut decision).await;
        }
        Ok(decision)
    }
}
