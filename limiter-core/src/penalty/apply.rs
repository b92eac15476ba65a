//! Applies the penalty of a policy after a denial.

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
    /// Returns the time in the store's clock until which a [`Penalty`](crate::penalty::Penalty) of
    /// `policy` blocks `key`; `None` if the key is not blocked.
    ///
    /// The call queries the store and charges nothing. It ignores key lists and
    /// [`Enforcement`](crate::Enforcement).
    ///
    /// # Errors
    ///
    /// [`Rejection::Unavailable`] if the store does not reply.
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
        let Some(penalty_limits) = policy.punishing() else {
            return Ok(None);
        };
        let request = DecisionRequest::of_block(penalty_limits, key.into());
        let decision = match self.decide_now(&request) {
            Some(answer) => answer?,
            None => self.decide(&request, request.deadline()).await?,
        };
        match decision.limits.first() {
            Some(block) if block.is_allowed() => Ok(None),
            Some(block) => Ok(Some(decision.decided_at.after(block.retry_after()))),
            // The store was not queried.
            None => {
                let unknown = || StoreError::new(StoreErrorKind::Connection, "the store did not reply");
                let error = decision.store_error.map_or_else(unknown, |error| *error);
                Err(Rejection::Unavailable(error))
            }
        }
    }

    /// Counts a denial of these limits, which were decided together. If the denial triggers a
    /// block, the decision is updated, provided that the store replies within `left`.
    #[cfg_attr(
        not(feature = "redis"),
        expect(unused_variables, reason = "the in-process store needs no timeout")
    )]
    pub(crate) async fn apply_penalty(
        &self,
        requests: &[LimitRequest<'_>],
        mode: Mode,
        denial: &mut Decision,
        timeout: Duration,
    ) {
        let by_store = matches!(denial.origin, Origin::Memory | Origin::Redis | Origin::DenyCache);
        if mode != Mode::Charge || !by_store || denial.is_blocked() {
            return;
        }
        #[cfg(feature = "redis")]
        let started = Instant::now();
        for (request, outcome) in requests.iter().zip(&mut *denial.limits) {
            // A limit that fits only has to wait for the others of the request; it did not cause
            // the denial.
            let fits = || {
                request
                    .charge()
                    .is_ok_and(|(_, cost)| outcome.outcome().remaining >= cost)
            };
            let denies = !outcome.is_allowed() && !fits();
            let Some(penalty_limits) = request.policy().punishing().filter(|_| denies) else {
                continue;
            };
            let blocked = match &self.inner.backend {
                Backend::Memory(store) => count_now(store, penalty_limits, request),
                #[cfg(feature = "redis")]
                Backend::Redis(redis) => {
                    let timeout = timeout.saturating_sub(started.elapsed());
                    self.count(redis, request, timeout).await
                }
            };
            if let Some(micros) = blocked {
                let blocked = outcome.outcome().blocked_for(micros);
                *outcome = LimitOutcome::new(request.policy(), StepResult::Computed(blocked));
                denial.marks = denial.marks.and(DecisionFlags::BLOCKED);
            }
        }
    }
}

/// Counts a denial in this process. Returns the microseconds for which the key is now blocked.
fn count_now(store: &MemoryStore, penalty_limits: &PenaltyLimits, request: &LimitRequest<'_>) -> Option<u64> {
    let key = Key::from(request.key()).bounded();
    let counting = DecisionRequest::counting(penalty_limits, &key, 1);
    let counted = store.decide_now(&counting).and_then(|counted| {
        if counted.denials_left() > 0 {
            return Ok(None);
        }
        let blocked = store.decide_now(&DecisionRequest::blocking(penalty_limits, &key))?;
        counting.limits.iter().for_each(|count| store.forget(count));
        Ok(Some(blocked.blocked_for()))
    });
    counted.unwrap_or_else(|error| {
        log_uncounted(request.policy(), &error);
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
        /// Records a denial, which is reported together with others. Returns the microseconds for
        /// which the key is now blocked. A report continues if the caller stops waiting for it,
        /// after `left` at most.
        pub(crate) async fn count(
            &self,
            redis: &RedisBackend,
            request: &LimitRequest<'_>,
            timeout: Duration,
        ) -> Option<u64> {
            // A limit without an identity was not decided.
            let (identity, _) = request.charge().ok()?;
            let policy = request.policy();
            let denial = DeniedLimit {
                identity,
                policy: policy.clone(),
                key: Key::from(request.key()).bounded().into_owned(),
            };
            match redis.denial_counts().record(&denial, self.inner.clock.now()) {
                PenaltyAction::None => None,
                PenaltyAction::ScheduleReport => {
                    self.schedule_report(&denial);
                    None
                }
                PenaltyAction::Report(denials) => {
                    let limiter = self.clone();
                    let report = tokio::spawn(async move { limiter.report(&denial, denials).await });
                    real_time::timeout(timeout.min(policy.deadline()), report)
                        .await
                        .ok()?
                        .ok()?
                }
            }
        }

        /// Reports all denials that are not reported yet.
        pub(crate) async fn report_all_denials(&self, redis: &RedisBackend) {
            for identity in redis.denial_counts().unreported() {
                self.report_of(redis, identity).await;
            }
        }

        fn schedule_report(&self, denial: &DeniedLimit) {
            let (limiter, clock) = (Arc::downgrade(&self.inner), self.inner.clock.clone());
            let identity = denial.identity;
            let penalty = denial.policy.penalty();
            let delay = penalty.map_or(REPORT_WITHIN, |penalty| REPORT_WITHIN.min(penalty.within() / 2));
            let counted_at = clock.now();
            tokio::spawn(async move {
                clock.sleep(counted_at, delay).await;
                // Without the limiter there are no more denials.
                if let Some(inner) = limiter.upgrade() {
                    let limiter = Self { inner };
                    if let Backend::Redis(redis) = &limiter.inner.backend {
                        limiter.report_of(redis, identity).await;
                    }
                }
            });
        }

        async fn report_of(&self, redis: &RedisBackend, identity: Identity) {
            let now = self.inner.clock.now();
            if let Some((denial, denials)) = redis.denial_counts().take_unreported(identity, now) {
                self.report(&denial, denials).await;
            }
        }

        async fn report(&self, denial: &DeniedLimit, mut denials: Vec<DatedDenials>) -> Option<u64> {
            let Backend::Redis(redis) = &self.inner.backend else {
                return None;
            };
            let (counts, identity) = (redis.denial_counts(), denial.identity);
            loop {
                match redis.apply_penalty(denial, &denials).await {
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
                        log_uncounted(&denial.policy, &error);
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
