//! Counts of the decisions of one policy that are not reported to Redis yet.
//!
//! The module depends on no policy: a policy stores the counters that it used last, and
//! [`usage_recorder`](crate::usage_recorder) counts and reports.
//!
//! Invariant: `take_counts` returns each counted decision once. Tests: `tests/usage.rs`,
//! `usage_counters/denied_keys.rs`.

pub(crate) mod denied_keys;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::support::sync::Mutex;
use crate::usage_counters::denied_keys::{DeniedKeys, KeyDenial};

/// The number of outcomes that are counted separately.
pub(crate) const USAGE_OUTCOMES: usize = 6;

/// The unreported decisions of one policy, by the index of their outcome, and its denied keys.
#[derive(Debug, Default)]
pub(crate) struct PolicyUsage {
    counts: [AtomicU64; USAGE_OUTCOMES],
    denied: Mutex<DeniedKeys>,
}

impl PolicyUsage {
    /// Counts decisions with one outcome.
    #[inline]
    pub(crate) fn count(&self, outcome: usize, calls: u64) {
        if let Some(count) = self.counts.get(outcome) {
            count.fetch_add(calls, Ordering::Relaxed);
        }
    }

    /// Records denials of a key.
    pub(crate) fn deny(&self, denial: KeyDenial<'_>) {
        self.denied.lock().add(denial);
    }

    /// Removes and returns the counts.
    pub(crate) fn take_counts(&self) -> [u64; USAGE_OUTCOMES] {
        let mut taken = [0; USAGE_OUTCOMES];
        for (taken, count) in taken.iter_mut().zip(&self.counts) {
            // A swap writes the cache line, which a hot policy shares between its threads.
            if count.load(Ordering::Relaxed) > 0 {
                *taken = count.swap(0, Ordering::Relaxed);
            }
        }
        taken
    }

    /// Removes and returns the denied keys.
    pub(crate) fn take_denied(&self) -> DeniedKeys {
        std::mem::take(&mut *self.denied.lock())
    }
}

/// The counters of a policy in the recorder that counted it first, so that its calls need no
/// lookup. Other recorders look the policy up by its name.
#[derive(Default)]
pub(crate) struct UsageSlot(OnceLock<(u64, Arc<PolicyUsage>)>);

impl UsageSlot {
    /// Returns the counters of the recorder with this number, and stores them if the slot is empty.
    #[inline]
    pub(crate) fn get(
        &self,
        recorder: u64,
        look_up: impl Fn() -> Option<Arc<PolicyUsage>>,
    ) -> Option<Arc<PolicyUsage>> {
        match self.0.get() {
            Some((number, usage)) if *number == recorder => Some(Arc::clone(usage)),
            Some(_) => look_up(),
            None => {
                let usage = look_up()?;
                let (number, stored) = self.0.get_or_init(|| (recorder, Arc::clone(&usage)));
                Some(if *number == recorder {
                    Arc::clone(stored)
                } else {
                    usage
                })
            }
        }
    }
}

/// A policy derived from another one has a slot of its own.
impl Clone for UsageSlot {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for UsageSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UsageSlot")
    }
}
