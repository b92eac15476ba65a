//! Decisions of the store that include the blocks of penalties.
//!
//! A limit with a penalty is decided together with the block of its key. A denial is counted for
//! the penalty afterwards, within the deadline of the limit. Tests: `tests/contract/penalties.rs`.

use std::time::{Duration, Instant};

use crate::algorithm::Mode;
use crate::decision::{Decision, Rejection};
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::request::{DecisionRequest, LimitRequest};

impl Limiter {
    /// Decides these limits and the blocks of their keys, within the timeout and the deadline.
    pub(super) async fn decide_blocked(
        &self,
        requests: impl IntoIterator<Item = LimitRequest<'_>>,
        mode: Mode,
        timeout: Duration,
    ) -> Result<Decision, Rejection> {
        let mut request = DecisionRequest::new(requests, mode, self.inner.any_groups)?;
        request.add_blocks();
        match self.inner.backend.try_decide(&request) {
            Some(answer) => answer,
            None => {
                self.inner
                    .backend
                    .decide(&request, request.deadline().min(timeout))
                    .await
            }
        }
    }

    /// Decides these limits and counts a denial for the penalties.
    pub(super) async fn decide_and_apply_penalty(
        &self,
        requests: Vec<LimitRequest<'_>>,
        mode: Mode,
    ) -> Result<Decision, Rejection> {
        let applies_penalty = mode == Mode::Charge
            && requests
                .iter()
                .any(|request| request.policy().penalty_limits().is_some());
        if !applies_penalty {
            return self.decide_blocked(requests, mode, Duration::MAX).await;
        }
        let started = Instant::now();
        let mut decision = self
            .decide_blocked(requests.iter().cloned(), mode, Duration::MAX)
            .await?;
        if !decision.is_allowed() {
            let left = deadline(&requests).saturating_sub(started.elapsed());
            self.apply_penalty(&requests, mode, &mut decision, left).await;
        }
        Ok(decision)
    }
}

/// Returns the longest duration of a request with these limits.
pub(super) fn deadline(requests: &[LimitRequest<'_>]) -> Duration {
    let deadlines = requests.iter().map(|request| request.policy().deadline());
    deadlines.min().unwrap_or(Policy::DEFAULT_DEADLINE)
}
