//! The runtime enforcement mode of a limiter.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::limiter::Limiter;
use crate::policy::Enforcement;

/// The limiter's own mode, which each call reads.
#[derive(Debug, Default)]
pub(crate) struct EnforcementSwitch(AtomicU8);

impl Limiter {
    /// Sets the enforcement mode of this limiter and its clones: the looser of this mode and the
    /// policy's applies. It takes effect on the next call. Waiting calls continue with the previous
    /// mode.
    ///
    /// See [`Enforcement`] for the modes and for the initial mode of builders.
    pub fn set_enforcement(&self, enforcement: Enforcement) {
        let previous = self
            .inner
            .enforcement
            .0
            .swap(enforcement.to_bits(), Ordering::AcqRel);
        let previous = Enforcement::from_bits(previous);
        if previous != enforcement {
            tracing::info!(before = %previous, now = %enforcement, "enforcement of the limiter changed");
        }
    }

    /// Returns the enforcement mode of the limiter.
    #[must_use]
    pub fn enforcement(&self) -> Enforcement {
        Enforcement::from_bits(self.inner.enforcement.0.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn enforces(&self) -> bool {
        self.inner.enforcement.0.load(Ordering::Relaxed) == Enforcement::Enforce.to_bits()
    }

    /// Returns this limiter with an initial mode.
    pub(crate) fn with_enforcement(self, enforcement: Enforcement) -> Self {
        self.inner
            .enforcement
            .0
            .store(enforcement.to_bits(), Ordering::Release);
        self
    }
}
