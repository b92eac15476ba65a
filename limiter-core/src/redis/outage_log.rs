//! What is said of an outage: its reason as it begins, once for each answer that policies give
//! meanwhile; and its end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{StoreError, StoreErrorKind};
use crate::policy::OnStoreFailure;
use crate::request::DecisionRequest;
use crate::units::{Timestamp, micros_ceil};

/// After so long without a decision that was made without Redis, it is said to decide again.
const CALM: Duration = Duration::from_secs(10);

/// Whether there is an outage, and what of it was told.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// When Redis last gave no decision, in microseconds; 0 when it gave all of them lately.
    last: AtomicU64,
    /// Whether it was told, by the answer that calls got.
    told: [AtomicBool; 4],
}

impl Outage {
    /// The local fallback decides.
    pub(crate) fn log_fallback(&self, error: &StoreError, replicas: u32, now: Timestamp) {
        if self.is_new(OnStoreFailure::Local, now) {
            let error = error.with_causes();
            tracing::warn!(%error, replicas, "Redis made no decision; applying this replica's share in process");
        }
    }

    /// The request is answered as its policies say.
    pub(crate) fn answers(&self, request: &DecisionRequest<'_>, error: &StoreError, now: Timestamp) {
        let answer = request.on_store_failure();
        if is_outage(error.kind()) && self.is_new(answer, now) {
            let policy = request.policies().next().map(|policy| policy.name());
            let error = error.with_causes();
            tracing::warn!(policy, ?answer, %error, "Redis made no decision; applying on_store_failure of each policy");
        }
    }

    fn is_new(&self, answer: OnStoreFailure, now: Timestamp) -> bool {
        self.last.store(now.as_micros().max(1), Ordering::Relaxed);
        let [local, allow, deny, error] = &self.told;
        let told = match answer {
            OnStoreFailure::Local => local,
            OnStoreFailure::FailOpen => allow,
            OnStoreFailure::FailClosed => deny,
            OnStoreFailure::Error => error,
        };
        // Looked at first, since calls are many and it is set once.
        !told.load(Ordering::Relaxed) && !told.swap(true, Ordering::Relaxed)
    }

    /// Redis decided. A store that answers some calls and others not is out until all are answered
    /// for a while: one event, not many.
    #[inline]
    pub(crate) fn decided(&self, now: impl FnOnce() -> Timestamp) {
        let last = self.last.load(Ordering::Relaxed);
        if last != 0 {
            self.may_be_over(last, now());
        }
    }

    #[cold]
    fn may_be_over(&self, last: u64, now: Timestamp) {
        if now.as_micros().saturating_sub(last) >= micros_ceil(CALM)
            && self.last.swap(0, Ordering::Relaxed) != 0
        {
            self.told
                .iter()
                .for_each(|told| told.store(false, Ordering::Relaxed));
            tracing::info!("Redis makes all decisions again; outage ended");
        }
    }
}

/// Whether Redis cannot decide any call. Other errors concern one key, or follow a shutdown.
pub(crate) fn is_outage(kind: StoreErrorKind) -> bool {
    !matches!(
        kind,
        StoreErrorKind::WrongType | StoreErrorKind::UnknownLayout | StoreErrorKind::ShutDown
    )
}
