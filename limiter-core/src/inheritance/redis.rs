//! Limits of a policy that was another one until a moment, in proportion to which they go on: each
//! is converted before this replica first asks about it.

use std::collections::HashSet;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::algorithm::{Change, ScaleChange, scale};
use crate::decision::{Decision, Rejection};
use crate::error::StoreError;
use crate::identity::Identity;
use crate::policy::{Policy, PreviousPolicy};
use crate::redis::backend::RedisBackend;
use crate::request::{DecisionRequest, RequestedLimit};
use crate::support::deadline::within;
use crate::support::sync::Mutex;
pub(crate) use crate::units::Timestamp;

/// Of more limits than this it is forgotten that they are converted, which they then say
/// themselves.
const MOST_KNOWN: usize = 65_536;
/// Whoever has a value move meanwhile has charged it since the change, so it is found so at the
/// next look.
const MOST_TRIES: usize = 4;

/// Which limits need not be looked at: what is stored of them was stored since a change of this
/// moment, or will be.
#[derive(Debug, Default)]
pub(crate) struct ConvertedLimits {
    known: Mutex<HashSet<(Identity, Timestamp)>>,
}

impl ConvertedLimits {
    fn contains(&self, limit: (Identity, Timestamp)) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.contains(&limit)
    }

    fn insert(&self, limit: (Identity, Timestamp)) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(limit);
    }
}

impl RedisBackend {
    /// As [`decide`](Self::decide), by the policies that are in force. Nothing is charged of what
    /// could not be converted.
    #[cold]
    pub(crate) async fn decide_inheriting(
        &self,
        request: &DecisionRequest<'_>,
        deadline: Duration,
    ) -> Result<Decision, Rejection> {
        let started = Instant::now();
        match within(deadline, self.inherit(request)).await {
            Ok(in_force) => {
                let left = deadline.saturating_sub(started.elapsed());
                self.decide_as_asked(in_force.as_ref().unwrap_or(request), left)
                    .await
            }
            Err(error) => self.decide_without(request, error, started),
        }
    }

    /// As [`change`](Self::change), told in the numbers of the policy before a change in
    /// proportion.
    pub(crate) async fn change_in_proportion(
        &self,
        request: &DecisionRequest<'_>,
        change: Change,
    ) -> Result<(), StoreError> {
        if let Some(before) = within(request.deadline(), self.inherit(request)).await? {
            return self.change_as_asked(&before, change).await;
        }
        for limit in &request.limits {
            let (limit, change) = limit.in_proportion(change, |scaling| scaling);
            self.change_as_asked(&limit.alone(), change).await?;
        }
        Ok(())
    }

    /// Has every limit of a request converted that is not known to be. Of those whose change is yet
    /// to come, the request by the policies until then.
    pub(crate) async fn inherit<'a>(
        &self,
        request: &DecisionRequest<'a>,
    ) -> Result<Option<DecisionRequest<'a>>, StoreError> {
        let mut in_force = None;
        for (number, limit) in request.limits.iter().enumerate() {
            let policy: &'a Policy = limit.policy;
            let Some(scaled) = policy.pending(self.clock.now()) else {
                continue;
            };
            let known = (limit.identity, scaled.at);
            if self.converted.contains(known) {
                continue;
            }
            if self.convert(limit, scaled).await? {
                self.converted.insert(known);
            } else if let Some(limit) = in_force
                .get_or_insert_with(|| request.clone())
                .limits
                .get_mut(number)
            {
                limit.policy = &scaled.before;
            }
        }
        Ok(in_force)
    }

    /// Converts a limit, or finds that there is nothing to convert. `false` before the change, by
    /// the server's clock.
    async fn convert(&self, limit: &RequestedLimit<'_>, scaled: &PreviousPolicy) -> Result<bool, StoreError> {
        let scaling = ScaleChange::from_policies(scaled, limit.policy);
        for _ in 0..MOST_TRIES {
            let found = self.store.read_state(limit).await?;
            if found.now < scaling.at {
                return Ok(false);
            }
            let mut state = found.state.clone();
            if !scale(&scaling, &mut state, found.now) || self.store.replace(limit, &found, &state).await? {
                break;
            }
        }
        Ok(true)
    }
}
