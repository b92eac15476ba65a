//! Log messages of an outage: one at its start for each failure mode, and one at its end.
//!
//! In an outage, each decision fails, and a message for each would fill the log. The first failure
//! of each mode is logged with its cause. The outage ends with the first reply of Redis after ten
//! seconds without a failure, so intermittent replies do not split it into several events.
//!
//! Tests: `tests/faults/outage_log.rs`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind};
use crate::policy::OnStoreFailure;
use crate::request::DecisionRequest;
use crate::units::{Timestamp, micros_ceil};

/// Time without failed decisions after which an outage counts as ended.
const RECOVERY_TIME: Duration = Duration::from_secs(10);

/// The current outage and its logged messages.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// Time of the last failed decision in microseconds; 0 without an outage.
    last: AtomicU64,
    /// True if a message was logged, by failure mode.
    logged: [AtomicBool; 4],
}

impl Outage {
    /// Logs a decision of the local fallback.
    pub(crate) fn log_fallback(&self, error: &StoreError, replicas: u32, now: Timestamp) {
        if self.is_new(OnStoreFailure::Local, now) {
            let error = error.with_causes();
            tracing::warn!(%error, replicas, "Redis made no decision; applying this replica's share in process");
        }
    }

    /// Logs a decision according to the policies' failure modes.
    pub(crate) fn log_failure_mode(&self, request: &DecisionRequest<'_>, error: &StoreError, now: Timestamp) {
        let answer = request.on_store_failure();
        if is_outage(error.kind()) && self.is_new(answer, now) {
            let policy = request
                .policies_and_keys()
                .next()
                .map(|(policy, _)| policy.name());
            let error = error.with_causes();
            tracing::warn!(policy, ?answer, %error, "Redis made no decision; applying on_store_failure of each policy");
        }
    }

    fn is_new(&self, answer: OnStoreFailure, now: Timestamp) -> bool {
        self.last.store(now.as_micros().max(1), Ordering::Relaxed);
        let [local, fail_open, fail_closed, error] = &self.logged;
        let logged = match answer {
            OnStoreFailure::Local => local,
            OnStoreFailure::FailOpen => fail_open,
            OnStoreFailure::FailClosed => fail_closed,
            OnStoreFailure::Error => error,
        };
        // Read before the write, since calls are many and the flag is set once.
        !logged.load(Ordering::Relaxed) && !logged.swap(true, Ordering::Relaxed)
    }

    /// Records a decision of Redis. An outage with intermittent replies ends only after a time
    /// without failures, so that it is one event.
    pub(crate) fn on_decision(&self, now: Timestamp) {
        let last = self.last.load(Ordering::Relaxed);
        if last != 0
            && now.as_micros().saturating_sub(last) >= micros_ceil(RECOVERY_TIME)
            && self.last.swap(0, Ordering::Relaxed) != 0
        {
            self.logged
                .iter()
                .for_each(|logged| logged.store(false, Ordering::Relaxed));
            tracing::info!("Redis makes all decisions again; outage ended");
        }
    }
}

/// Returns whether Redis cannot decide any call. Other errors concern one key, or follow a
/// shutdown.
pub(crate) fn is_outage(kind: StoreErrorKind) -> bool {
    !matches!(
        kind,
        StoreErrorKind::WrongType | StoreErrorKind::UnknownLayout | StoreErrorKind::ShutDown
    )
}
