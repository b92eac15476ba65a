//! Log messages of a layer about single requests.

use limiter_core::{Decision, Rejection};

use super::LayerConfig;

impl LayerConfig {
    /// The reason for the rejection of a request.
    #[cold]
    pub(crate) fn log_rejection(&self, denied: Result<Decision, Rejection>) -> Rejection {
        let rejection = match denied.and_then(Decision::require) {
            Err(rejection) => rejection,
            // An allowed decision has no reason.
            Ok(allowed) => Rejection::Limited(Box::new(allowed.into_decision())),
        };
        self.reporter.report(&rejection);
        let origin = rejection.decision().map(Decision::origin);
        tracing::debug!(rejection = %rejection.diagnostic(), ?origin, "request rejected");
        rejection
    }
}

/// Logs why a request was allowed although the store did not allow it.
#[cold]
pub(super) fn log_degraded(decision: &Decision) {
    let (would_deny, degraded) = (decision.would_deny(), decision.is_degraded());
    let (origin, error) = (decision.origin(), decision.store_error());
    tracing::debug!(
        ?origin,
        would_deny,
        degraded,
        ?error,
        "request allowed without a store decision"
    );
}
