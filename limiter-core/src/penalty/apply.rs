//! What a denial comes to under a policy with a penalty.

use std::time::Duration;
#[cfg(feature = "redis")]
use std::time::Instant;

use crate::algorithm::{Mode, StepResult};
use crate::decision::{Decision, DecisionFlags, LimitOutcome, Origin, Rejection};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::Key;
use crate::limiter::{Backend, Limiter};
use crate::policy::{PenaltyLimits, Policy};
use crate::request::{DecisionRequest, LimitRequest};
use crate::store::MemoryStore;
#[cfg(feature = "redis")]
use crate::tier::{DatedDenials, DeniedLimit, PenaltyAction, PenaltyState, REPORT_WITHIN};
pub(crate) use crate::units::Timestamp;

impl Limiter {
    /// Until when, in the store's time, a [`Penalty`](crate::Penalty) of `policy` blocks `key`;
    /// nothing where it does not.
    ///
    /// It asks the store, charges nothing, and lists of keys and
    /// [`Enforcement`](crate::Enforcement) make no difference to it.
    ///
    /// # Errors
    ///
    /// [`Rejection::Unavailable`] when the store gives no answer.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn blocked_until<'a>(
        &self,
        policy: &'a Policy,
        key: impl Into<Key<'a>>,
    ) -> Result<Option<Timestamp>, Rejection> {
        self.open()?;
        let Some(punishing) = policy.punishing() else {
            return Ok(None);
        };
        let request = DecisionRequest::of_block(punishing, key.into());
        let decision = match self.decide_now(&request) {
            Some(answer) => answer?,
            None => self.decide(&request, request.deadline()).await?,
        };
        match decision.limits.first() {
            Some(block) if block.is_allowed() => Ok(None),
            Some(block) => Ok(Some(decision.decided_at.after(block.retry_after()))),
            // Nobody was asked.
            None => {
                let unknown = || StoreError::new(StoreErrorKind::Connection, "the store did not reply");
                let error = decision.store_error.map_or_else(unknown, |error| *error);
                Err(Rejection::Unavailable(error))
            }
        }
    }

    /// Counts a denial of these, which were decided as one. If it is one too many, the decision
    /// says so, where that can be had in what is left of the call's time.
    #[cfg_attr(
        not(feature = "redis"),
        expect(unused_variables, reason = "a store in this process answers at once")
    )]
    pub(crate) async fn apply_penalty(
        &self,
        asks: &[LimitRequest<'_>],
        mode: Mode,
        denied: &mut Decision,
        left: Duration,
    ) {
        let by_store = matches!(denied.origin, Origin::Memory | Origin::Redis | Origin::DenyCache);
        if mode != Mode::Charge || !by_store || denied.is_blocked() {
            return;
        }
        #[cfg(feature = "redis")]
        let started = Instant::now();
        for (ask, outcome) in asks.iter().zip(&mut *denied.limits) {
            // What has room for the call itself has it wait for others, and is not what it was
            // denied for.
            let has_room = || {
                ask.charge()
                    .is_ok_and(|(_, cost)| outcome.outcome().remaining >= cost)
            };
            let denies = !outcome.is_allowed() && !has_room();
            let Some(punishing) = ask.policy().punishing().filter(|_| denies) else {
                continue;
            };
            let blocked = match &self.inner.backend {
                Backend::Memory(store) => count_now(store, punishing, ask),
                #[cfg(feature = "redis")]
                Backend::Redis(guard) => {
                    let left = left.saturating_sub(started.elapsed());
                    self.count(guard, ask, left).await
                }
            };
            if let Some(micros) = blocked {
                let blocked = outcome.outcome().blocked_for(micros);
                *outcome = LimitOutcome::new(ask.policy(), StepResult::Told(blocked));
                denied.marks = denied.marks.and(DecisionFlags::BLOCKED);
            }
        }
    }
}

/// Counts a denial in this process: for how many microseconds the key is blocked, if it is now.
fn count_now(store: &MemoryStore, punishing: &PenaltyLimits, ask: &LimitRequest<'_>) -> Option<u64> {
    let key = Key::from(ask.key()).bounded();
    let counting = DecisionRequest::counting(punishing, &key, 1);
    let counted = store.decide_now(&counting).and_then(|counted| {
        if counted.denials_left() > 0 {
            return Ok(None);
        }
        let blocked = store.decide_now(&DecisionRequest::blocking(punishing, &key))?;
        counting.limits.iter().for_each(|count| store.forget(count));
        Ok(Some(blocked.blocked_for()))
    });
    counted.unwrap_or_else(|error| {
        log_uncounted(ask.policy(), &error);
        None
    })
}

fn log_uncounted(policy: &Policy, error: &StoreError) {
    tracing::debug!(policy = policy.name(), %error, "cannot report denials for a penalty");
}

#[cfg(feature = "redis")]
mod redis {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::identity::Identity;
    use crate::penalty::apply::{
        Backend, DatedDenials, DeniedLimit, Key, LimitRequest, Limiter, PenaltyAction, PenaltyState,
        REPORT_WITHIN, log_uncounted,
    };
    use crate::support::real_time;
    use crate::tier::RedisBackend;

    impl Limiter {
        /// Records a denial, to be reported with others. Returns for how many microseconds the key
        /// is blocked, if it is now. A report goes on if the caller, which waits for `left` at
        /// most, does not wait for it any more.
        pub(crate) async fn count(
            &self,
            guard: &RedisBackend,
            ask: &LimitRequest<'_>,
            left: Duration,
        ) -> Option<u64> {
            // A limit without an identity was not decided.
            let (identity, _) = ask.charge().ok()?;
            let policy = ask.policy();
            let denied = DeniedLimit {
                identity,
                policy: policy.clone(),
                key: Key::from(ask.key()).bounded().into_owned(),
            };
            match guard.denial_counts().record(&denied, self.inner.clock.now()) {
                PenaltyAction::None => None,
                PenaltyAction::ScheduleReport => {
                    self.schedule_report(&denied);
                    None
                }
                PenaltyAction::Report(denials) => {
                    let limiter = self.clone();
                    let report = tokio::spawn(async move { limiter.report(&denied, denials).await });
                    real_time::timeout(left.min(policy.deadline()), report)
                        .await
                        .ok()?
                        .ok()?
                }
            }
        }

        /// Reports all denials that are not reported yet.
        pub(crate) async fn report_all_denials(&self, guard: &RedisBackend) {
            for identity in guard.denial_counts().unreported() {
                self.report_of(guard, identity).await;
            }
        }

        fn schedule_report(&self, denied: &DeniedLimit) {
            let (limiter, clock) = (Arc::downgrade(&self.inner), self.inner.clock.clone());
            let identity = denied.identity;
            let penalty = denied.policy.penalty();
            let delay = penalty.map_or(REPORT_WITHIN, |penalty| REPORT_WITHIN.min(penalty.within() / 2));
            let counted_at = clock.now();
            tokio::spawn(async move {
                clock.sleep(counted_at, delay).await;
                // Without the limiter there are no more denials.
                if let Some(inner) = limiter.upgrade() {
                    let limiter = Self { inner };
                    if let Backend::Redis(guard) = &limiter.inner.backend {
                        limiter.report_of(guard, identity).await;
                    }
                }
            });
        }

        async fn report_of(&self, guard: &RedisBackend, identity: Identity) {
            let now = self.inner.clock.now();
            if let Some((denied, denials)) = guard.denial_counts().take_unreported(identity, now) {
                self.report(&denied, denials).await;
            }
        }

        async fn report(&self, denied: &DeniedLimit, mut denials: Vec<DatedDenials>) -> Option<u64> {
            let Backend::Redis(guard) = &self.inner.backend else {
                return None;
            };
            let (counts, identity) = (guard.denial_counts(), denied.identity);
            loop {
                match guard.apply_penalty(denied, &denials).await {
                    Ok(PenaltyState::Blocked(micros)) => {
                        // Counting starts again, without the denials that came during the report.
                        counts.forget(identity);
                        return Some(micros);
                    }
                    Ok(PenaltyState::DenialsLeft(left)) => {
                        let now = self.inner.clock.now();
                        denials = counts.mark_reported(identity, left, now)?;
                    }
                    Err(error) => {
                        log_uncounted(&denied.policy, &error);
                        if error.has_changed_nothing() {
                            counts.restore(identity, denials);
                        }
                        return None;
                    }
                }
            }
        }
    }
}
