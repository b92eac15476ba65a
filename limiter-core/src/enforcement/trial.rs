//! Trial values, decided beside the limits in force.
//!
//! The decisions run concurrently with that of the limits in force, so with Redis they add no round
//! trip, and join the same batches. Their results are only counted. Tests:
//! `tests/contract/trials.rs`, `tests/trials.rs`.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use crate::algorithm::Mode;
use crate::decision::Rejection;
use crate::limiter::Limiter;
use crate::observe;
use crate::observe::LimitEvent;
use crate::request::{DecisionRequest, LimitRequest};

/// A limit with trial values.
#[derive(Debug)]
pub(super) struct TrialRequest<'a> {
    limit: LimitRequest<'a>,
    /// The deadline of the limit in force.
    deadline: Duration,
}

impl Limiter {
    /// Returns the trial of a charged limit, unless it has ended.
    pub(super) fn trial_of<'a>(&self, limit: &LimitRequest<'a>, mode: Mode) -> Option<TrialRequest<'a>> {
        let (trial, until) = limit.policy().trial()?;
        (mode == Mode::Charge && self.inner.clock.calendar() < until).then(|| TrialRequest {
            limit: LimitRequest {
                policy: trial,
                key: limit.key.clone(),
                cost: limit.cost.clone(),
            },
            deadline: limit.policy().deadline(),
        })
    }

    /// Decides and counts trials, all of them concurrently.
    pub(super) async fn decide_trials(&self, trials: Vec<TrialRequest<'_>>) {
        let trials = trials.into_iter().map(|trial| Box::pin(self.decide_trial(trial)));
        let mut pending: Vec<_> = trials.collect();
        poll_fn(|context| {
            pending.retain_mut(|trial| trial.as_mut().poll(context).is_pending());
            match pending.is_empty() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    /// Decides and counts a trial. An unknown result is not counted.
    async fn decide_trial(&self, TrialRequest { limit, deadline }: TrialRequest<'_>) {
        let policy = limit.policy();
        let answer = match DecisionRequest::new([limit], Mode::Charge, self.inner.any_groups) {
            Ok(request) => match self.inner.backend.try_decide(&request) {
                Some(answer) => answer,
                None => self.inner.backend.decide(&request, deadline).await,
            },
            Err(rejection) => Err(rejection),
        };
        let event = match answer {
            Ok(decision) if decision.is_allowed() => LimitEvent::Allowed,
            Ok(_) | Err(Rejection::NeverFits { .. }) => LimitEvent::Denied,
            Err(_) => return,
        };
        observe::trial(self.inner.backend.usage(), policy, event);
    }
}
