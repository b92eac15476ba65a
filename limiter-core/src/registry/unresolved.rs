//! Counts calls without a configured policy, and logs each name at most once a minute.
//!
//! A misspelled name leaves calls without a limit, so it must be visible, but a busy program must
//! not flood its log. The first 256 names have an interval each, and all further names share one,
//! which bounds the memory of a program that computes names from its input. Of a long name, the
//! start is kept and logged. Tests: below, and `tests/registry.rs`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::log_throttle::LogThrottle;
use crate::support::sync::RwLock;
use crate::units::Timestamp;

/// The minimum interval between two log events of one name.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// The number of names with an interval of their own. The limit bounds the memory of a program that
/// computes names from its input.
const MAX_NAMES: usize = 256;
/// The longest start of a name in bytes that is kept and logged.
const MAX_NAME_BYTES: usize = 120;

/// The reason why a call found no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupError {
    /// No policy has the name.
    NotThere,
    /// The policy's list of apps does not contain the caller's app.
    NotForApp,
}

#[derive(Debug, Default)]
pub(super) struct UnresolvedNames {
    count: AtomicU64,
    /// Reads take the shared lock only, because an app may request a policy of other apps in each
    /// of its calls.
    logged: RwLock<HashMap<Box<str>, LogThrottle>>,
    /// The throttle of all further names.
    others: LogThrottle,
}

impl UnresolvedNames {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, name: &str, app: Option<&str>, miss: LookupError, now: Timestamp) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let name = start_of(name);
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
        {
            let logged = self.logged.read();
            if let Some(throttle) = logged.get(name) {
                return throttle.is_due_every(LOG_INTERVAL, now);
            }
        }
        let mut logged = self.logged.write();
        if logged.len() >= MAX_NAMES && !logged.contains_key(name) {
            return self.others.is_due_every(LOG_INTERVAL, now);
        }
        logged
            .entry(name.into())
            .or_default()
            .is_due_every(LOG_INTERVAL, now)
    }
}

/// Returns the start of a name, which a program may compute from its input.
fn start_of(name: &str) -> &str {
    let mut end = name.len().min(MAX_NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.get(..end).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use crate::registry::unresolved::*;
    use crate::support::clock::ManualClock;

    #[test]
    fn name_is_logged_once_a_minute_and_further_names_share_an_event() {
        let (unresolved, clock) = (UnresolvedNames::default(), ManualClock::new());
        let due = |name: &str| unresolved.is_due(name, clock.now());
        assert!(due("a") && due("b"));
        assert!(!due("a") && !due("b"));
        clock.advance(LOG_INTERVAL - Duration::from_micros(1));
        assert!(!due("a"));
        clock.advance(Duration::from_micros(1));
        assert!(due("a") && !due("a"));

        let logged = (0..1_000).filter(|name| due(&name.to_string())).count();
        assert_eq!(logged, MAX_NAMES - 2 + 1);
        assert_eq!(unresolved.logged.read().len(), MAX_NAMES);
    }
}
