//! Whether a limiter's decisions are obeyed.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::limiter::Limiter;
use crate::policy::Enforcement;

/// The limiter's own setting, to which each call looks.
#[derive(Debug, Default)]
pub(crate) struct EnforcementSwitch(AtomicU8);

impl Limiter {
    /// Sets, for this limiter and its clones, whether decisions are obeyed: of what this says and
    /// what a policy does the looser holds. It takes effect on the next call. Calls that wait
    /// already go on as they have begun.
    ///
    /// See [`Enforcement`] for what each means, and how builders find the first one.
    pub fn set_enforcement(&self, enforcement: Enforcement) {
        let before = self
            .inner
            .enforcement
            .0
            .swap(enforcement.to_bits(), Ordering::AcqRel);
        let before = Enforcement::of_bits(before);
        if before != enforcement {
            tracing::info!(%before, now = %enforcement, "enforcement of the limiter changed");
        }
    }

    /// Whether this limiter's decisions are obeyed, as far as it is up to the limiter.
    #[must_use]
    pub fn enforcement(&self) -> Enforcement {
        Enforcement::of_bits(self.inner.enforcement.0.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn enforces(&self) -> bool {
        self.inner.enforcement.0.load(Ordering::Relaxed) == Enforcement::Enforce.to_bits()
    }

    /// The same limiter, which begins so.
    pub(crate) fn with_enforcement(self, enforcement: Enforcement) -> Self {
        self.inner
            .enforcement
            .0
            .store(enforcement.to_bits(), Ordering::Release);
        self
    }
}
