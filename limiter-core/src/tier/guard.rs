//! Bounds the time that a decision may take, and answers when the store does not.

use std::time::Duration;

use smallvec::SmallVec;

use crate::decision::{Decision, Origin, Rejection};
use crate::error::{StoreError, StoreErrorKind};
use crate::policy::OnStoreFailure;
use crate::request::Request;
use crate::units::Timestamp;

/// Waits for the store's answer, at most until the deadline.
pub(crate) async fn within<T>(
    deadline: Duration,
    answer: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::time::timeout(deadline, answer).await.unwrap_or_else(|_| {
        Err(StoreError::new(
            StoreErrorKind::Timeout,
            format!("no answer from the store within {deadline:?}"),
        ))
    })
}

/// The answer that the policies want when the store has none.
pub(crate) fn without_store(
    request: &Request<'_>,
    error: StoreError,
    now: Timestamp,
) -> Result<Decision, Rejection> {
    let answer = request.on_store_failure();
    tracing::debug!(
        policy = request.limits.first().map(|limit| limit.policy.name()),
        kind = ?error.kind(),
        error = %error,
        ?answer,
        "the store gave no decision"
    );
    let (allowed, origin) = match answer {
        OnStoreFailure::Allow => (true, Origin::FailedOpen),
        OnStoreFailure::Deny => (false, Origin::FailedClosed),
        OnStoreFailure::Error => return Err(Rejection::Unavailable(error)),
    };
    Ok(Decision {
        allowed,
        limits: SmallVec::new(),
        decided_at: now,
        origin,
        store_error: Some(error),
    })
}
