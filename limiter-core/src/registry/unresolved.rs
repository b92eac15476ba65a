//! Counts the calls for which nothing is configured, and tells of them now and then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use crate::units::{Timestamp, micros_ceil};

/// A name is told of once in so long.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// A program asks for as many names as stand in its code. What computes them from its input must
/// not fill the memory.
const MOST_NAMES: usize = 256;

/// Why a call found no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupError {
    /// None has the name.
    NotThere,
    /// Its list of apps does not name the caller's.
    NotForApp,
}

#[derive(Debug, Default)]
pub(super) struct UnresolvedNames {
    count: AtomicU64,
    /// When each name was told of last, in microseconds. A limit that is not for an app is asked
    /// for by each of its calls, so that nobody is locked out here who only looks.
    told: RwLock<HashMap<Box<str>, AtomicU64>>,
    /// Of all names beyond those that are known.
    others: AtomicU64,
}

impl UnresolvedNames {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, name: &str, app: Option<&str>, miss: LookupError, now: Timestamp) {
        self.count.fetch_add(1, Ordering::Relaxed);
        if !self.is_due(name, now) {
            return;
        }
        let app = app.unwrap_or_default();
        match miss {
            LookupError::NotThere => {
                tracing::warn!(policy = name, app, "no policy of this name is configured")
            }
            LookupError::NotForApp => {
                tracing::info!(policy = name, app, "the policy is not configured for this app")
            }
        }
    }

    fn is_due(&self, name: &str, now: Timestamp) -> bool {
        let now = now.as_micros().max(1);
        {
            let told = self.told.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(last) = told.get(name) {
                return claim(last, now);
            }
        }
        let mut told = self.told.write().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= MOST_NAMES && !told.contains_key(name) {
            return claim(&self.others, now);
        }
        claim(told.entry(name.into()).or_default(), now)
    }
}

/// Whether it is this caller's turn to tell.
fn claim(last: &AtomicU64, now: u64) -> bool {
    let before = last.load(Ordering::Relaxed);
    // A test's clock may have been set back.
    let is_due = before == 0 || now.abs_diff(before) >= micros_ceil(TELL_EVERY);
    is_due
        && last
            .compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
}

#[cfg(test)]
mod tests {
    use crate::registry::unresolved::*;
    use crate::support::clock::ManualClock;

    #[test]
    fn a_name_is_told_of_once_a_minute_and_all_that_are_too_many_together() {
        let (missed, clock) = (UnresolvedNames::default(), ManualClock::new());
        let due = |name: &str| missed.is_due(name, clock.now());
        assert!(due("a") && due("b"));
        assert!(!due("a") && !due("b"));
        clock.advance(TELL_EVERY - Duration::from_micros(1));
        assert!(!due("a"));
        clock.advance(Duration::from_micros(1));
        assert!(due("a") && !due("a"));

        let told = (0..1_000).filter(|name| due(&name.to_string())).count();
        assert_eq!(told, MOST_NAMES - 2 + 1);
        assert_eq!(missed.told.read().unwrap().len(), MOST_NAMES);
    }
}
