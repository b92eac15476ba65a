//! The store behind a limiter: the memory of this process, or Redis.
//!
//! [`Backend`] has a method for each operation of a store, and its methods contain the only `match`
//! on the kind of store. Callers therefore do not depend on the location of the state. An operation
//! that one store does not need (refunds that are pending, a fallback during an outage) does
//! nothing there.
//!
//! Tests: `tests/contract` runs one suite on both stores and on a cluster.

#![cfg_attr(
    not(feature = "redis"),
    expect(
        unused_variables,
        clippy::unused_async,
        reason = "the memory of this process does not wait and has no outages"
    )
)]

mod detached;
mod holder_lease;
pub(crate) mod memory;
mod permits;
#[cfg(feature = "redis")]
mod redis_permits;

use std::fmt;
#[cfg(feature = "redis")]
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::algorithm::{Mode, UsageCorrection};
use crate::backend::memory::MemoryBackend;
#[cfg(feature = "redis")]
use crate::decision::DecisionFlags;
use crate::decision::{Decision, Decisions, Origin, Rejection, SingleOutcome};
use crate::error::StoreError;
#[cfg(feature = "redis")]
use crate::identity::Identity;
use crate::observe::UsageRecorder;
use crate::policy::PenaltyLimits;
#[cfg(feature = "redis")]
use crate::redis::RedisBackend;
#[cfg(all(feature = "registry", feature = "redis"))]
use crate::redis::registry_store::{RegistryStore, SubscriberStore};
use crate::request::{DecisionRequest, IdentifiedLimit, LimitRequest, ValidatedLimit};
#[cfg(feature = "redis")]
use crate::support::real_time::no_answer_within;

/// The store of a limiter.
pub(crate) enum Backend {
    Memory(MemoryBackend),
    #[cfg(feature = "redis")]
    Redis(Arc<RedisBackend>),
}

impl Backend {
    /// Returns the origin of decisions that the store makes.
    pub(crate) fn origin(&self) -> Origin {
        match self {
            Self::Memory(_) => Origin::Memory,
            #[cfg(feature = "redis")]
            Self::Redis(_) => Origin::Redis,
        }
    }

    /// Returns whether the state is in this process, so that every operation completes at its first
    /// poll.
    #[inline]
    pub(crate) fn is_in_process(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    /// Decides one limit in process by the fast step. `None` means that nothing was changed; the
    /// caller continues with [`try_decide_one`](Self::try_decide_one).
    ///
    /// Always inlined: the numbers of the step stay in registers until the caller's decision is
    /// written.
    #[inline(always)]
    pub(crate) fn try_decide_one_fast(
        &self,
        limit: IdentifiedLimit<'_>,
        mode: Mode,
    ) -> Option<SingleOutcome> {
        match self {
            Self::Memory(memory) => memory.store.decide_one_fast(limit, mode),
            #[cfg(feature = "redis")]
            Self::Redis(_) => None,
        }
    }

    /// Decides one limit without I/O: in process always, with Redis if the deny cache has a denial.
    /// Returns `None` if the limit needs I/O.
    ///
    /// The limit's policy must not have been [changed in proportion](Policy::is_scaled).
    pub(crate) fn try_decide_one(
        &self,
        limit: IdentifiedLimit<'_>,
        mode: Mode,
    ) -> Option<Result<SingleOutcome, StoreError>> {
        match self {
            Self::Memory(memory) => Some(memory.store.decide_one(limit, mode)),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.try_decide_one(limit, mode).map(Ok),
        }
    }

    /// Decides several limits in process, if the fast step can decide all of them.
    #[inline]
    pub(crate) fn try_decide_several_fast<const N: usize>(
        &self,
        limits: &[IdentifiedLimit<'_>; N],
        mode: Mode,
    ) -> Option<Decision> {
        match self {
            Self::Memory(memory) => memory.decide_several_fast(limits, mode),
            #[cfg(feature = "redis")]
            Self::Redis(_) => None,
        }
    }

    /// Decides a request without I/O: in process always, with Redis if leased tokens suffice or the
    /// deny cache has a denial.
    pub(crate) fn try_decide(&self, request: &DecisionRequest<'_>) -> Option<Result<Decision, Rejection>> {
        match self {
            Self::Memory(memory) => Some(memory.decide(request)),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.try_decide(request).map(Ok),
        }
    }

    /// Decides a request within a deadline.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open whether the request was charged; it is never charged twice.
    pub(crate) async fn decide(
        &self,
        request: &DecisionRequest<'_>,
        deadline: Duration,
    ) -> Result<Decision, Rejection> {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.decide(request, deadline).await,
            Self::Memory(memory) => memory.decide(request),
        }
    }

    /// Decides a request `times` times in a row, until the first denial or error. Returns the
    /// decisions up to that one.
    pub(crate) async fn decide_repeatedly(
        &self,
        request: &DecisionRequest<'_>,
        times: usize,
        deadline: Duration,
    ) -> Decisions {
        #[cfg(feature = "redis")]
        if let (Self::Redis(redis), 2..) = (self, times) {
            return redis.decide_run(request, times, deadline).await;
        }
        let mut answers = Decisions::new();
        for _ in 0..times {
            let answer = self.decide(request, deadline).await;
            let is_last = !answer.as_ref().is_ok_and(Decision::is_allowed);
            answers.push(answer);
            if is_last {
                break;
            }
        }
        answers
    }

    /// Decides a request without Redis, which has not replied within `timeout` since `started`.
    /// `None` in process.
    pub(crate) fn decide_without_store(
        &self,
        request: &DecisionRequest<'_>,
        timeout: Duration,
        started: Instant,
    ) -> Option<Result<Decision, Rejection>> {
        match self {
            Self::Memory(_) => None,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => {
                let error = no_answer_within(timeout);
                Some(redis.decide_without(request, error, started))
            }
        }
    }

    /// Refunds the cost of a request's limits, or charges it even if too little is left.
    pub(crate) async fn change(
        &self,
        request: &DecisionRequest<'_>,
        change: UsageCorrection,
    ) -> Result<(), StoreError> {
        match self {
            Self::Memory(memory) => memory.change(request, change),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.change(request, change).await,
        }
    }

    /// Refunds or charges costs that were recorded before the policy was
    /// [changed in proportion](Policy::is_scaled), converted to the quota of the current policy.
    pub(crate) async fn change_in_proportion(
        &self,
        request: &DecisionRequest<'_>,
        change: UsageCorrection,
    ) -> Result<(), StoreError> {
        match self {
            Self::Memory(memory) => memory.change_in_proportion(request, change),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.change_proportional(request, change).await,
        }
    }

    /// Refunds or charges the share from which this replica decided during an outage of Redis.
    pub(crate) fn change_share(
        &self,
        request: &DecisionRequest<'_>,
        change: UsageCorrection,
    ) -> Result<(), StoreError> {
        match self {
            Self::Memory(_) => Ok(()),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.change_share(request, change),
        }
    }

    /// Refunds or charges the share that admitted a call besides Redis by this decision, which has
    /// charged the estimate.
    pub(crate) fn correct_share(
        &self,
        request: &DecisionRequest<'_>,
        change: UsageCorrection,
        (decision, estimate): (&Decision, u64),
    ) {
        match self {
            Self::Memory(_) => {}
            #[cfg(feature = "redis")]
            Self::Redis(redis) => {
                if decision.flags.has(DecisionFlags::IN_SHARE) {
                    redis.correct_share(request, change, (decision.decided_at, estimate));
                }
            }
        }
    }

    /// Announces a refund that a background task will send to Redis. Returns the ticket for
    /// [`finish_refund`](Self::finish_refund), which must be called however the refund ends.
    #[cfg(feature = "redis")]
    pub(crate) fn start_refund(&self, limits: &[Identity]) -> Option<u64> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(redis) => Some(redis.start_refund(limits)),
        }
    }

    /// Ends a refund that was announced by [`start_refund`](Self::start_refund).
    #[cfg(feature = "redis")]
    pub(crate) fn finish_refund(&self, limits: &[Identity], ticket: u64) {
        match self {
            Self::Memory(_) => {}
            Self::Redis(redis) => redis.finish_refund(limits, ticket),
        }
    }

    /// Deletes the state of every limit of a request.
    pub(crate) async fn reset(&self, request: &DecisionRequest<'_>) -> Result<(), StoreError> {
        match self {
            Self::Memory(memory) => {
                memory.reset(request);
                Ok(())
            }
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.reset(request).await,
        }
    }

    /// Counts a denial for a penalty, within `left`. Returns the microseconds for which the key is
    /// blocked, if it is.
    pub(crate) async fn count_denial(
        &self,
        penalty_limits: &PenaltyLimits,
        limit: &LimitRequest<'_>,
        left: Duration,
    ) -> Option<u64> {
        match self {
            Self::Memory(memory) => memory.count_denial(penalty_limits, limit),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.count_denial(limit, left).await,
        }
    }

    /// Connects to every primary, loads the scripts and checks permissions.
    pub(crate) async fn ready(&self, timeout: Duration) -> Result<(), StoreError> {
        match self {
            Self::Memory(_) => Ok(()),
            #[cfg(feature = "redis")]
            // Boxed: called once in a program, it must not make the caller's future large.
            Self::Redis(redis) => Box::pin(redis.ready(timeout))
                .await
                .map_err(StoreError::in_one_line),
        }
    }

    /// Reports denials, returns leases, and deregisters this replica.
    pub(crate) async fn shutdown(&self) {
        match self {
            Self::Memory(_) => {}
            #[cfg(feature = "redis")]
            Self::Redis(redis) => {
                // At once: many denials take longer than the deadline of the caller.
                tokio::join!(redis.report_all_denials(), redis.shutdown());
            }
        }
    }

    /// Returns the recorder of a limiter that reports its usage, for a decision that was made.
    #[inline]
    pub(crate) fn usage(&self) -> Option<&UsageRecorder> {
        match self {
            Self::Memory(_) => None,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.usage(),
        }
    }

    /// Returns the access to the usage in Redis. `None` in process.
    #[cfg(feature = "redis")]
    pub(crate) fn usage_store(&self) -> Option<crate::redis::usage::UsageStore> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(redis) => Some(redis.store().usage_store()),
        }
    }

    /// Returns the number of replicas that share the limits.
    pub(crate) fn replicas(&self) -> u32 {
        match self {
            Self::Memory(_) => 1,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.replicas(),
        }
    }

    /// Returns the name of the Redis key of a request's first limit. `None` in process.
    pub(crate) fn redis_key(&self, request: &DecisionRequest<'_>) -> Option<String> {
        match self {
            Self::Memory(_) => None,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => Some(redis.store().redis_key(request.limits.first()?)),
        }
    }

    /// Returns the name of a limit that every process of its store derives; for the in-process
    /// store, a name that is unique in this process.
    pub(crate) fn scope(&self, limit: &ValidatedLimit<'_>) -> String {
        match self {
            Self::Memory(_) => format!("{:?}", limit.identity),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.store().redis_key(limit),
        }
    }

    /// Returns the access to the policy registry in Redis and to its subscribers. `None` in
    /// process.
    #[cfg(all(feature = "registry", feature = "redis"))]
    pub(crate) fn registry_store(&self) -> Option<(RegistryStore, SubscriberStore)> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(redis) => Some((redis.store().registry_store(), redis.store().subscriber_store())),
        }
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(_) => f.write_str("\"memory\""),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.store().fmt(f),
        }
    }
}
