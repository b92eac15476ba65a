//! What a denial comes to under a policy with a penalty.

use std::time::Duration;
#[cfg(feature = "redis")]
use std::time::Instant;

use crate::algorithm::{Mode, Standing};
use crate::decision::{Decision, LimitOutcome, Marks, Origin, Rejection};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::Key;
use crate::limiter::{Backend, Limiter};
use crate::policy::{Policy, Punishing};
use crate::request::{Ask, Request};
use crate::store::MemoryStore;
#[cfg(feature = "redis")]
use crate::tier::{Denied, Due, TOLD_WITHIN};
pub(crate) use crate::units::Timestamp;

impl Limiter {
    /// Until when, in the store's time, a [`Penalty`](crate::Penalty) of `policy` blocks `key`; nothing where it does not.
    ///
    /// It asks the store, charges nothing, and lists of keys and [`Enforcement`](crate::Enforcement) make no difference to it.
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
        let request = Request::of_block(punishing, key.into());
        let decision = match self.decide_now(&request) {
            Some(answer) => answer?,
            None => self.decide(&request, request.deadline()).await?,
        };
        match decision.limits.first() {
            Some(block) if block.is_allowed() => Ok(None),
            Some(block) => Ok(Some(decision.decided_at.after(block.retry_after()))),
            // Nobody was asked.
            None => {
                let unknown = || StoreError::new(StoreErrorKind::Connection, "the store gave no answer");
                let error = decision.store_error.map_or_else(unknown, |error| *error);
                Err(Rejection::Unavailable(error))
            }
        }
    }

    /// Counts a denial of these, which were decided as one. If it is one too many, the decision says so, where that can be had in
    /// what is left of the call's time.
    #[cfg_attr(
        not(feature = "redis"),
        expect(unused_variables, reason = "a store in this process answers at once")
    )]
    pub(crate) async fn punish(&self, asks: &[Ask<'_>], mode: Mode, denied: &mut Decision, left: Duration) {
        let by_store = matches!(denied.origin, Origin::Memory | Origin::Redis | Origin::DenyCache);
        if mode != Mode::Charge || !by_store || denied.is_blocked() {
            return;
        }
        #[cfg(feature = "redis")]
        let started = Instant::now();
        for (ask, outcome) in asks.iter().zip(&mut *denied.limits) {
            // What has room for the call itself has it wait for others, and is not what it was denied for.
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
                *outcome = LimitOutcome::new(ask.policy(), Standing::Told(blocked));
                denied.marks = denied.marks.and(Marks::BLOCKED);
            }
        }
    }
}

/// Counts a denial in this process: for how many microseconds the key is blocked, if it is now.
fn count_now(store: &MemoryStore, punishing: &Punishing, ask: &Ask<'_>) -> Option<u64> {
    let key = Key::from(ask.key()).bounded();
    let counting = Request::counting(punishing, &key, 1);
    let counted = store.decide_now(&counting).and_then(|counted| {
        if counted.denials_left() > 0 {
            return Ok(None);
        }
        let blocked = store.decide_now(&Request::blocking(punishing, &key))?;
        counting.limits.iter().for_each(|count| store.forget(count));
        Ok(Some(blocked.blocked_for()))
    });
    counted.unwrap_or_else(|error| {
        told_in_vain(ask.policy(), &error);
        None
    })
}

fn told_in_vain(policy: &Policy, error: &StoreError) {
    tracing::debug!(policy = policy.name(), %error, "denials were not counted");
}

#[cfg(feature = "redis")]
mod redis {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::identity::Identity;
    use crate::penalty::apply::{Ask, Backend, Denied, Due, Key, Limiter, TOLD_WITHIN, told_in_vain};
    use crate::tier::Guard;

    impl Limiter {
        /// Counts a denial with others, to be told with them: for how many microseconds the key is blocked, if it is now. Whoever
        /// tells it goes on if the caller does not wait for it any more, as it does for so long at most.
        pub(crate) async fn count(&self, guard: &Guard, ask: &Ask<'_>, left: Duration) -> Option<u64> {
            // One that has no identity was not decided.
            let (identity, _) = ask.charge().ok()?;
            let policy = ask.policy();
            let denied = Denied {
                identity,
                policy: policy.clone(),
                key: Key::from(ask.key()).bounded().into_owned(),
            };
            match guard.untold().count(&denied, self.inner.clock.now()) {
                Due::Nothing => None,
                Due::Soon => {
                    self.tell_soon(&denied);
                    None
                }
                Due::Now(denials) => {
                    let limiter = self.clone();
                    let telling = tokio::spawn(async move { limiter.tell(&denied, denials).await });
                    tokio::time::timeout(left.min(policy.deadline()), telling)
                        .await
                        .ok()?
                        .ok()?
                }
            }
        }

        /// Tells of all denials that are not told yet.
        pub(crate) async fn tell_all(&self, guard: &Guard) {
            for identity in guard.untold().untold() {
                self.tell_of(guard, identity).await;
            }
        }

        fn tell_soon(&self, denied: &Denied) {
            let (limiter, clock) = (Arc::downgrade(&self.inner), self.inner.clock.clone());
            let identity = denied.identity;
            let penalty = denied.policy.penalty();
            let delay = penalty.map_or(TOLD_WITHIN, |penalty| TOLD_WITHIN.min(penalty.within() / 2));
            let counted_at = clock.now();
            tokio::spawn(async move {
                clock.sleep(counted_at, delay).await;
                // Nobody denies any more where the limiter is gone.
                if let Some(inner) = limiter.upgrade() {
                    let limiter = Self { inner };
                    if let Backend::Redis(guard) = &limiter.inner.backend {
                        limiter.tell_of(guard, identity).await;
                    }
                }
            });
        }

        async fn tell_of(&self, guard: &Guard, identity: Identity) {
            if let Some((denied, denials)) = guard.untold().take(identity, self.inner.clock.now()) {
                self.tell(&denied, denials).await;
            }
        }

        async fn tell(&self, denied: &Denied, denials: u64) -> Option<u64> {
            let Backend::Redis(guard) = &self.inner.backend else {
                return None;
            };
            let answer = guard.punish(denied, denials).await;
            let now = self.inner.clock.now();
            match answer {
                Ok(Err(left)) => guard.untold().told(denied.identity, left, now),
                Ok(Ok(blocked_for)) => {
                    // The count begins anew, also of those that came while this one was told.
                    guard.untold().forget(denied.identity);
                    return Some(blocked_for);
                }
                Err(error) => {
                    told_in_vain(&denied.policy, &error);
                    if error.has_changed_nothing() {
                        guard.untold().untell(denied.identity, denials, now);
                    }
                }
            }
            None
        }
    }
}
