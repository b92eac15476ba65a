//! The calls that streams report, as decisions for the metrics and the usage.
//!
//! An Envoy reports allowed and denied calls. In shadow mode it allows all calls, and the calls
//! that the policy would deny are computed: by the bucket of the stream's share, if the calls
//! arrived evenly since the last report. Tests: below.

use std::time::Duration;

use limiter_core::Origin;
use limiter_core::lease::HolderDecisions;

use crate::gateway::quota::bucket::AssignedBucket;
use crate::gateway::quota::messages::BucketUsage;
use crate::gateway::quota::mode::QuotaMode;
use crate::gateway::quota::shares::MicroRate;

const MILLION: u64 = 1_000_000;
/// The largest number of calls of a report that is counted: sums of larger ones exceed the counts
/// of a database.
const MAX_CALLS: u64 = u32::MAX as u64;

/// Reported calls of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedCalls {
    /// Calls that the Envoy allowed.
    pub allowed: u64,
    /// Calls that the Envoy denied.
    pub denied: u64,
    /// The time in which they arrived.
    pub time: Duration,
}

impl ReportedCalls {
    /// Creates the calls of a report that arrived this time after the report before.
    ///
    /// Envoy 1.40 reports the elapsed time in whole seconds, rounded down: 4 s of 4.99 s, which
    /// would change the demand by a quarter. The measured time is precise, but includes delays of
    /// the network. It counts within the second that the report states.
    #[must_use]
    pub fn of(usage: &BucketUsage, measured: Option<Duration>) -> Self {
        let elapsed = usage.time_elapsed.as_ref();
        let stated = elapsed.map_or(0, |elapsed| u64::try_from(elapsed.seconds).unwrap_or(0));
        // The first report of a bucket has no time.
        let shortest = Duration::from_secs(stated.max(1));
        let longest = shortest.max(Duration::from_secs(stated.saturating_add(1)));
        Self {
            allowed: usage.allowed.min(MAX_CALLS),
            denied: usage.denied.min(MAX_CALLS),
            time: measured.unwrap_or(shortest).clamp(shortest, longest),
        }
    }

    /// Returns the demand: all calls, by the time in which they arrived.
    #[must_use]
    pub fn demand(&self) -> MicroRate {
        let calls = u128::from(self.allowed.saturating_add(self.denied));
        let rate = calls * u128::from(MILLION) * 1_000_000_000 / self.time.as_nanos().max(1);
        MicroRate::try_from(rate).unwrap_or(MicroRate::MAX)
    }

    /// Adds the calls of a later report.
    pub fn add(&mut self, later: Self) {
        self.allowed = self.allowed.saturating_add(later.allowed);
        self.denied = self.denied.saturating_add(later.denied);
        self.time = self.time.saturating_add(later.time);
    }

    /// Returns the decisions of these calls under a mode. In shadow mode the policy would deny
    /// `would_deny` of them.
    pub fn decisions(&self, mode: QuotaMode, would_deny: u64) -> HolderDecisions {
        let (origin, would_deny) = match mode {
            QuotaMode::Divided => (Origin::Lease, 0),
            QuotaMode::Shadow => (Origin::Lease, would_deny.min(self.allowed)),
            QuotaMode::Blanket {
                origin,
                would_deny: true,
                ..
            } => (origin, self.allowed),
            QuotaMode::Blanket { origin, .. } => (origin, 0),
        };
        HolderDecisions::by(origin)
            .allowed(self.allowed - would_deny)
            .denied(self.denied)
            .would_deny(would_deny)
    }
}

/// The bucket of a share that is not sent, because the policy is in shadow mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShadowBucket {
    bucket: Option<AssignedBucket>,
    /// Millionths of permits.
    permits: u64,
}

impl ShadowBucket {
    /// Returns the allowed calls that the bucket of a share would deny; 0 without a share. A
    /// changed bucket starts full, as in Envoy.
    pub fn denials(&mut self, share: Option<AssignedBucket>, calls: ReportedCalls) -> u64 {
        if self.bucket != share {
            self.permits = share.map_or(0, |bucket| bucket.permits());
            self.bucket = share;
        }
        let Some(bucket) = share else {
            return 0;
        };
        let refilled = u128::from(bucket.rate()) * calls.time.as_nanos() / 1_000_000_000;
        let refilled = u64::try_from(refilled).unwrap_or(u64::MAX);
        let available = self.permits.saturating_add(refilled);
        let admitted = calls.allowed.min(available / MILLION);
        let left = available.saturating_sub(admitted.saturating_mul(MILLION));
        self.permits = left.min(bucket.permits());
        calls.allowed - admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: AssignedBucket = AssignedBucket {
        max_tokens: 50,
        tokens_per_fill: 10,
        fill_seconds: 1,
    };

    fn allowed(allowed: u64, seconds: u64) -> ReportedCalls {
        ReportedCalls {
            allowed,
            denied: 0,
            time: Duration::from_secs(seconds),
        }
    }

    #[test]
    fn demand_uses_measured_time_within_stated_second() {
        let usage = |seconds, calls| BucketUsage {
            time_elapsed: Some(prost_types::Duration { seconds, nanos: 0 }),
            allowed: calls,
            ..BucketUsage::default()
        };
        let demand = |seconds, calls, measured| {
            let measured = Some(Duration::from_millis(measured));
            ReportedCalls::of(&usage(seconds, calls), measured).demand()
        };
        assert_eq!(demand(4, 499, 4_990), 100_000_000);
        assert_eq!(demand(5, 501, 5_010), 100_000_000);
        // A delayed report, and the one after it.
        assert_eq!(demand(4, 500, 7_000), 100_000_000);
        assert_eq!(demand(5, 500, 2_000), 100_000_000);
        // The first report has no time.
        assert_eq!(ReportedCalls::of(&usage(0, 3), None).demand(), 3_000_000);
        assert_eq!(demand(0, 3, 200), 3_000_000);
        assert_eq!(demand(-1, 3, 0), 3_000_000);
        assert_eq!(demand(i64::MAX, u64::MAX, 0), 0);
    }

    #[test]
    fn numbers_that_no_envoy_reaches_do_not_exceed_the_counts_of_a_database() {
        let usage = BucketUsage {
            allowed: u64::MAX,
            denied: u64::MAX,
            ..BucketUsage::default()
        };
        let mut hour = ReportedCalls::default();
        for _ in 0..3_600 {
            hour.add(ReportedCalls::of(&usage, None));
        }
        assert!(
            i64::try_from(hour.allowed).is_ok() && i64::try_from(hour.denied).is_ok(),
            "{hour:?}"
        );
    }

    #[test]
    fn shadow_bucket_denies_calls_above_share() {
        let mut bucket = ShadowBucket::default();
        assert_eq!(bucket.denials(None, allowed(1_000, 5)), 0, "no share is known");
        assert_eq!(bucket.denials(Some(SHARE), allowed(120, 5)), 20);
        assert_eq!(bucket.denials(Some(SHARE), allowed(120, 5)), 70);
        // The bucket is full again after these.
        assert_eq!(bucket.denials(Some(SHARE), allowed(0, 60)), 0);
        assert_eq!(bucket.denials(Some(SHARE), allowed(61, 1)), 1);
        let larger = AssignedBucket {
            max_tokens: 100,
            ..SHARE
        };
        assert_eq!(bucket.denials(Some(larger), allowed(110, 1)), 0);
    }

    #[test]
    fn reports_are_summed_and_decided_by_mode() {
        let mut calls = allowed(10, 5);
        calls.add(ReportedCalls {
            allowed: 2,
            denied: 3,
            time: Duration::from_secs(1),
        });
        assert_eq!(calls.demand(), 2_500_000);
        let by = HolderDecisions::by;
        let (lease, all) = (by(Origin::Lease), by(Origin::Lease).allowed(12).denied(3));
        assert_eq!(calls.decisions(QuotaMode::Divided, 7), all);
        let shadow = lease.allowed(5).denied(3).would_deny(7);
        assert_eq!(calls.decisions(QuotaMode::Shadow, 7), shadow);
        let blocked = |would_deny| QuotaMode::Blanket {
            rule: crate::gateway::quota::messages::BlanketRule::AllowAll,
            origin: Origin::Block,
            would_deny,
        };
        let expected = by(Origin::Block).denied(3).would_deny(12);
        assert_eq!(calls.decisions(blocked(true), 0), expected);
        let expected = by(Origin::Block).allowed(12).denied(3);
        assert_eq!(calls.decisions(blocked(false), 0), expected);
    }
}
