//! The decision without a reply of the store and without a fallback.

use crate::decision::{Decision, DecisionFlags, Origin, Participations, Rejection};
use crate::error::StoreError;
use crate::observe;
use crate::policy::OnStoreFailure;
use crate::request::DecisionRequest;
use crate::support::one_or_many::OneOrMany;
use crate::units::Timestamp;

/// Decides by the strictest policy of the request. `Local` is an error, since no fallback is
/// left.
pub(crate) fn without_store(
    request: &DecisionRequest<'_>,
    error: StoreError,
    now: Timestamp,
) -> Result<Decision, Rejection> {
    observe::store_failed(error.kind());
    let answer = request.on_store_failure();
    tracing::debug!(
        policy = request.limits.first().map(|limit| limit.policy.name()),
        kind = ?error.kind(),
        error = %error,
        ?answer,
        "the store made no decision"
    );
    let (allowed, origin) = match answer {
        OnStoreFailure::FailOpen => (true, Origin::FailedOpen),
        OnStoreFailure::FailClosed => (false, Origin::FailedClosed),
        OnStoreFailure::Error | OnStoreFailure::Local => return Err(Rejection::from(error)),
    };
    Ok(Decision {
        allowed,
        limits: OneOrMany::default(),
        decided_at: now,
        origin,
        store_error: Some(Box::new(error)),
        flags: DecisionFlags::default(),
        parts: Participations::default(),
    })
}
