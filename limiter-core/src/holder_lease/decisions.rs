//! The calls that a holder decided without the limiter, for the metrics and the usage.
//!
//! A holder of a token lease spends permits in its own process, so the limiter does not see these
//! calls. The holder reports their numbers by outcome, and `Limiter::count_decisions` adds them to
//! the counters of decisions. Permits are not charged here, because the renewal of the lease
//! reports them. Tests: `tests/usage.rs`, `tests/metrics.rs` (`decisions_of_holders_are_counted`).

use crate::decision::Origin;
use crate::key::Key;
use crate::limiter::Limiter;
use crate::observe::{self, LimitEvent, ReportedLimit};
use crate::policy::Policy;

/// The numbers of calls that a holder decided. Counted by [`Limiter::count_decisions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "nothing is counted until this is passed to `count_decisions`"]
pub struct HolderDecisions {
    origin: Origin,
    allowed: u64,
    denied: u64,
    would_deny: u64,
}

impl HolderDecisions {
    /// Creates numbers of calls, all zero, that were decided by this origin: [`Origin::Lease`] for
    /// calls that leased permits decided.
    pub fn by(origin: Origin) -> Self {
        Self {
            origin,
            allowed: 0,
            denied: 0,
            would_deny: 0,
        }
    }

    /// Sets the number of calls that passed. Default: 0.
    pub fn allowed(self, allowed: u64) -> Self {
        Self { allowed, ..self }
    }

    /// Sets the number of calls that were denied. Default: 0.
    pub fn denied(self, denied: u64) -> Self {
        Self { denied, ..self }
    }

    /// Sets the number of calls that passed and would have been denied, because the policy is in
    /// shadow mode. Default: 0.
    pub fn would_deny(self, would_deny: u64) -> Self {
        Self { would_deny, ..self }
    }
}

impl Limiter {
    /// Counts calls of `key` under `policy` that a holder of a [lease](Self::token_lease) decided,
    /// in the metrics and in the usage, like calls that the limiter decided. No permits are
    /// charged: the holder reports them with the renewal of its lease.
    ///
    /// ```
    /// use limiter_core::lease::HolderDecisions;
    /// use limiter_core::{Limiter, Origin, Policy};
    ///
    /// let limits = Limiter::in_process().build();
    /// let bytes = Policy::token_bucket("bytes").capacity(100).rate("1/s").build()?;
    /// let decisions = HolderDecisions::by(Origin::Lease).allowed(12).denied(3);
    /// limits.count_decisions(&bytes, "ann", decisions);
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    pub fn count_decisions<'a>(
        &self,
        policy: &'a Policy,
        key: impl Into<Key<'a>>,
        decisions: HolderDecisions,
    ) {
        let limit = ReportedLimit {
            policy,
            key: Some(key.into()),
        };
        let counts = [
            (LimitEvent::Allowed, decisions.allowed),
            (LimitEvent::Denied, decisions.denied),
            (LimitEvent::ShadowDenied, decisions.would_deny),
        ];
        for count in counts {
            observe::record_holder_decisions(self.inner.backend.usage(), &limit, count, decisions.origin);
        }
    }
}
