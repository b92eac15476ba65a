//! Penalties: counts denials, and reports until when a key is blocked.
//!
//! A penalty has two limits of its own: a counter of denials and a block (`policy/penalty.rs`).
//! After a denial by the store, the counter of each limit that denied is charged, and if this
//! triggers a block, the decision is changed to a blocked one.
//!
//! Invariant: a denial is counted only for limits that have no capacity for the call, and not for
//! calls that a block denied. Tests: `tests/contract/penalties.rs`, `tests/penalties.rs`,
//! `tests/penalty_agreement.rs`.

use std::time::{Duration, Instant};

use crate::algorithm::{Mode, StepResult};
use crate::decision::{Decision, DecisionFlags, LimitOutcome, Origin, Rejection};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::Key;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::request::{DecisionRequest, LimitRequest};
use crate::units::Timestamp;

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
        let limit = LimitRequest::new(policy, key).with_defaults(&self.inner.defaults);
        let Some(penalty_limits) = limit.policy().penalty_limits() else {
            return Ok(None);
        };
        let request = DecisionRequest::of_block(penalty_limits, limit.key);
        let backend = &self.inner.backend;
        let decision = match backend.try_decide(&request) {
            Some(answer) => answer?,
            None => backend.decide(&request, request.deadline()).await?,
        };
        match decision.limits.first() {
            Some(block) if block.is_allowed() => Ok(None),
            Some(block) => Ok(Some(decision.decided_at.after(block.retry_after()))),
            // The store was not queried.
            None => {
                let unknown = || StoreError::new(StoreErrorKind::Connection, "the store did not reply");
                let error = decision.store_error.map_or_else(unknown, |error| *error);
                Err(Rejection::from(error))
            }
        }
    }

    /// Counts a denial of these limits, which were decided together. If the denial triggers a
    /// block, the decision is updated, provided that the store replies within `timeout`.
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
        let started = Instant::now();
        for (request, outcome) in requests.iter().zip(&mut *denial.limits) {
            // A limit that fits only has to wait for the others of the request; it did not cause
            // the denial.
            let fits = || {
                request
                    .charge()
                    .is_ok_and(|charge| outcome.outcome().remaining >= charge.cost)
            };
            let denies = !outcome.is_allowed() && !fits();
            let Some(penalty_limits) = request.policy().penalty_limits().filter(|_| denies) else {
                continue;
            };
            let timeout = timeout.saturating_sub(started.elapsed());
            let blocked = self
                .inner
                .backend
                .count_denial(penalty_limits, request, timeout)
                .await;
            if let Some(micros) = blocked {
                let blocked = outcome.outcome().blocked_for(micros);
                *outcome = LimitOutcome::new(request.policy(), StepResult::Computed(blocked));
                denial.flags = denial.flags.and(DecisionFlags::BLOCKED);
            }
        }
    }
}
