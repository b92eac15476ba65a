//! Operations on concurrency permits, each of which the store of the limiter executes.
//!
//! The operations `try_acquire` and `try_peek_permits` decide in process without a future and
//! return `None` with Redis. Tests: `tests/contract/concurrency.rs`.

use std::time::Duration;

use crate::backend::Backend;
use crate::decision::{Decision, Rejection};
use crate::error::StoreError;
use crate::permits::acquire_deadline::AcquireDeadline;
use crate::permits::permit::ConcurrencyPermit;
use crate::permits::request::ConcurrencyRequest;

impl Backend {
    /// Acquires concurrency permits in process, without waiting. `None` with Redis.
    pub(crate) fn try_acquire(
        &self,
        request: &ConcurrencyRequest<'_>,
    ) -> Option<Result<ConcurrencyPermit, Rejection>> {
        match self {
            Self::Memory(memory) => Some(memory.acquire(request)),
            #[cfg(feature = "redis")]
            Self::Redis(_) => None,
        }
    }

    /// Acquires concurrency permits without joining the queue, within a deadline.
    pub(crate) async fn acquire(
        &self,
        request: &ConcurrencyRequest<'_>,
        deadline: Duration,
    ) -> Result<ConcurrencyPermit, Rejection> {
        match self {
            Self::Memory(memory) => memory.acquire(request),
            #[cfg(feature = "redis")]
            // Boxed, so that the futures of waiting calls stay small.
            Self::Redis(redis) => Box::pin(redis.acquire(request, deadline)).await,
        }
    }

    /// Acquires concurrency permits after the calls that wait already.
    pub(crate) async fn acquire_in_turn(
        &self,
        request: &ConcurrencyRequest<'_>,
        wait: &AcquireDeadline<'_>,
    ) -> Result<ConcurrencyPermit, Rejection> {
        match self {
            Self::Memory(memory) => memory.acquire_in_turn(request, wait).await,
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.acquire_in_turn(request, wait).await,
        }
    }

    /// Reports in process whether concurrency permits are available. `None` with Redis.
    pub(crate) fn try_peek_permits(&self, request: &ConcurrencyRequest<'_>) -> Option<Decision> {
        match self {
            Self::Memory(memory) => Some(memory.peek_permits(request)),
            #[cfg(feature = "redis")]
            Self::Redis(_) => None,
        }
    }

    /// Reports whether concurrency permits are available.
    pub(crate) async fn peek_permits(&self, request: &ConcurrencyRequest<'_>) -> Result<Decision, Rejection> {
        match self {
            Self::Memory(memory) => Ok(memory.peek_permits(request)),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => {
                redis
                    .peek_permits(request, request.decision_request().deadline())
                    .await
            }
        }
    }

    /// Deletes the leases of concurrency permits that other processes may hold. In process all
    /// holders are known, and nothing is deleted.
    pub(crate) async fn reset_permits(&self, request: &ConcurrencyRequest<'_>) -> Result<(), StoreError> {
        match self {
            Self::Memory(_) => Ok(()),
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.reset_permits(request).await,
        }
    }
}
