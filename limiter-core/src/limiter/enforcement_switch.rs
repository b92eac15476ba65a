//! The runtime state of a limiter that each call reads: its enforcement mode, the presence of
//! overlays in its registry, and its shutdown.
//!
//! One byte contains all three, so that a call of an open limiter without overlays compares it once
//! with a constant. Tests: `tests/contract/enforcement.rs`, `tests/contract/failed_waits.rs`
//! (shutdown), `tests/registry/overlays.rs`.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::error::StoreError;
use crate::limiter::{Limiter, LimiterInner, shut_down};
use crate::policy::Enforcement;
use crate::registry::OverlayWatcher;

/// The bits of the mode.
const MODE: u8 = 0b011;
/// The registry has overlays. The bit is stored with the mode, so that a call without overlays
/// reads nothing else.
const HAS_OVERLAYS: u8 = 0b100;
/// The limiter was shut down. The bit is never cleared.
const CLOSED: u8 = 0b1000;

/// The limiter's own mode, the presence of overlays, and the shutdown, which each call reads.
#[derive(Debug, Default)]
pub(crate) struct EnforcementSwitch {
    pub(crate) bits: AtomicU8,
    /// The environment has set the mode, so suspensions do not apply.
    is_from_environment: AtomicBool,
}

impl EnforcementSwitch {
    /// The bits of an open limiter that enforces decisions, without overlays in its registry.
    pub(crate) const ENFORCES: u8 = Enforcement::Enforce.to_bits();

    /// Rejects all later calls.
    pub(crate) fn close(&self) {
        self.bits.fetch_or(CLOSED, Ordering::AcqRel);
    }

    fn replace_mode(&self, enforcement: Enforcement) -> Enforcement {
        let replace = |bits: u8| Some(bits & !MODE | enforcement.to_bits());
        let previous = self
            .bits
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, replace);
        // The update is not conditional.
        Enforcement::from_bits(previous.unwrap_or_default() & MODE)
    }
}

impl OverlayWatcher for LimiterInner {
    fn set_has_overlays(&self, has_overlays: bool) {
        let bits = &self.enforcement.bits;
        match has_overlays {
            true => bits.fetch_or(HAS_OVERLAYS, Ordering::AcqRel),
            false => bits.fetch_and(!HAS_OVERLAYS, Ordering::AcqRel),
        };
    }
}

impl Limiter {
    /// Sets the enforcement mode of this limiter and its clones: the looser of this mode and the
    /// policy's applies. It takes effect on the next call. Waiting calls continue with the previous
    /// mode.
    ///
    /// See [`Enforcement`] for the modes and for the initial mode of builders.
    pub fn set_enforcement(&self, enforcement: Enforcement) {
        let previous = self.inner.enforcement.replace_mode(enforcement);
        if previous != enforcement {
            tracing::info!(before = %previous, now = %enforcement, "enforcement of the limiter changed");
        }
    }

    /// Returns the enforcement mode of the limiter.
    #[must_use]
    pub fn enforcement(&self) -> Enforcement {
        Enforcement::from_bits(self.inner.enforcement.bits.load(Ordering::Acquire) & MODE)
    }

    /// Returns whether the limiter is open and enforces decisions, and its registry has no
    /// overlays.
    #[inline(always)]
    pub(crate) fn enforces(&self) -> bool {
        self.inner.enforcement.bits.load(Ordering::Relaxed) == EnforcementSwitch::ENFORCES
    }

    /// Returns an error if the limiter was shut down.
    #[inline(always)]
    pub(crate) fn open(&self) -> Result<(), StoreError> {
        if self.inner.enforcement.bits.load(Ordering::Acquire) & CLOSED != 0 {
            Err(shut_down())
        } else {
            Ok(())
        }
    }

    /// Returns whether overlays of the registry may apply to calls.
    pub(crate) fn has_overlays(&self) -> bool {
        self.inner.enforcement.bits.load(Ordering::Acquire) & HAS_OVERLAYS != 0
    }

    /// Returns whether suspensions apply. The environment takes precedence over them.
    pub(crate) fn obeys_suspensions(&self) -> bool {
        !self.inner.enforcement.is_from_environment.load(Ordering::Relaxed)
    }

    /// Returns this limiter with the initial mode of its builder or of the environment.
    pub(crate) fn with_enforcement(
        self,
        of_builder: Option<Enforcement>,
        of_environment: Option<Enforcement>,
    ) -> Self {
        let switch = &self.inner.enforcement;
        let is_from_environment = of_builder.is_none() && of_environment.is_some();
        switch.replace_mode(of_builder.or(of_environment).unwrap_or_default());
        switch
            .is_from_environment
            .store(is_from_environment, Ordering::Relaxed);
        self
    }
}
