//! Counts the decisions of a limiter for the usage of the whole fleet in Redis.
//!
//! A decision of a limiter that reports its usage increments one counter of its policy, and a
//! denial enters the sketch of its policy. [`UsageReporter`](crate::redis::usage) removes
//! the counts every few seconds and adds them to those of the other processes in Redis. A limiter
//! that does not report has no recorder.
//!
//! Memory is bounded: a recorder counts at most [`MAX_POLICIES`] policies, so a program that
//! computes names of policies from input cannot exhaust it. Tests: `tests/usage.rs`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::decision::Origin;
use crate::key;
use crate::policy::Policy;
use crate::support::clock::Clock;
use crate::support::sync::Mutex;
use crate::usage_counters::denied_keys::{DeniedKeys, KeyDenial};
use crate::usage_counters::{PolicyUsage, USAGE_OUTCOMES};

/// The largest number of policies of a recorder.
pub(crate) const MAX_POLICIES: usize = 4_096;

/// The usage that a limiter reports to Redis
/// ([`RedisBuilder::usage`](crate::RedisBuilder::usage)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum UsageReporting {
    /// Nothing is reported.
    #[default]
    Off,
    /// The number of decisions, by policy, app, outcome and minute.
    Counts,
    /// The number of decisions, and the most denied keys of each policy and minute. Keys may be
    /// personal data; they are stored in Redis for 24 hours.
    CountsAndDeniedKeys,
}

/// The outcome by which a decision is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsageOutcome {
    Allowed,
    Denied,
    WouldDeny,
    Failed,
    TrialAllowed,
    TrialDenied,
}

/// Decisions of one limit with one outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedUsage {
    pub(crate) outcome: UsageOutcome,
    pub(crate) origin: Option<Origin>,
    pub(crate) calls: u64,
}

const _: () = assert!(UsageOutcome::TrialDenied as usize + 1 == USAGE_OUTCOMES);

/// The unreported decisions of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnreportedUsage {
    pub(crate) policy: Arc<str>,
    pub(crate) counts: [u64; USAGE_OUTCOMES],
    pub(crate) denied: DeniedKeys,
}

/// The decisions of a limiter that are not reported yet.
#[derive(Debug)]
pub(crate) struct UsageRecorder {
    number: u64,
    has_keys: bool,
    clock: Clock,
    policies: Mutex<HashMap<Arc<str>, Arc<PolicyUsage>>>,
    /// Decisions of policies above the largest number.
    uncounted: AtomicU64,
}

impl UsageRecorder {
    pub(crate) fn new(clock: Clock) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            has_keys: false,
            clock,
            policies: Mutex::default(),
            uncounted: AtomicU64::new(0),
        }
    }

    /// Records denied keys. Default: counts only.
    pub(crate) fn with_denied_keys(self) -> Self {
        Self {
            has_keys: true,
            ..self
        }
    }

    /// Counts decisions of one limit. `key` is escaped.
    pub(crate) fn record(&self, policy: &Policy, key: Option<&str>, counted: CountedUsage) {
        let CountedUsage {
            outcome,
            origin,
            calls,
        } = counted;
        let usage = policy
            .usage_slot()
            .get(self.number, || self.look_up(policy.name()));
        let Some(usage) = usage else {
            self.uncounted.fetch_add(calls, Ordering::Relaxed);
            return;
        };
        usage.count(outcome as usize, calls);
        if let (UsageOutcome::Denied, true, Some(key)) = (outcome, self.has_keys, key) {
            usage.deny(KeyDenial {
                key: &key::bounded_text(key),
                at: self.clock.calendar(),
                origin: origin.map_or(0, Origin::number),
                calls,
            });
        }
    }

    fn look_up(&self, policy: &str) -> Option<Arc<PolicyUsage>> {
        let mut policies = self.policies.lock();
        if let Some(usage) = policies.get(policy) {
            return Some(Arc::clone(usage));
        }
        if policies.len() >= MAX_POLICIES {
            return None;
        }
        let usage = Arc::<PolicyUsage>::default();
        policies.insert(policy.into(), Arc::clone(&usage));
        Some(usage)
    }

    /// Removes and returns the decisions that are not reported yet, by policy.
    pub(crate) fn take(&self) -> Vec<UnreportedUsage> {
        let mut taken = Vec::new();
        // Under the lock, counters that no policy refers to cannot be looked up again.
        self.policies.lock().retain(|policy, usage| {
            let is_referenced = Arc::strong_count(usage) > 1;
            let counts = usage.take_counts();
            if counts.iter().any(|count| *count > 0) {
                taken.push(UnreportedUsage {
                    policy: Arc::clone(policy),
                    counts,
                    denied: usage.take_denied(),
                });
                return true;
            }
            is_referenced
        });
        taken
    }

    /// Removes and returns the number of decisions that were not counted by policy.
    pub(crate) fn take_uncounted(&self) -> u64 {
        self.uncounted.swap(0, Ordering::Relaxed)
    }
}
