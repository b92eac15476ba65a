//! What only the program's author can mend stands in the log, whatever the caller is told.

use std::fmt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::decision::Rejection;
use crate::error::StoreErrorKind;
use crate::observe;

/// Logs misconfigurations, at most one in ten seconds, so that a busy function does not flood the log.
#[derive(Debug)]
pub struct Reporter {
    /// Where the limit stands.
    place: &'static str,
    /// Milliseconds from `START` until the next one may be logged.
    next: AtomicU64,
    /// The same of permits that could not be given back.
    next_kept: AtomicU64,
}

static START: LazyLock<Instant> = LazyLock::new(Instant::now);
const INTERVAL: Duration = Duration::from_secs(10);

impl Reporter {
    /// For one annotated function, or one layer.
    #[must_use]
    pub const fn new(place: &'static str) -> Self {
        Self {
            place,
            next: AtomicU64::new(0),
            next_kept: AtomicU64::new(0),
        }
    }

    /// Logs a rejection that is the program's own mistake. A fallback would hide it.
    pub fn report(&self, rejection: &Rejection) {
        let cause: &dyn fmt::Display = match rejection {
            Rejection::Config(error) => error,
            Rejection::NotConfigured { .. } => rejection,
            Rejection::Unavailable(error) if error.kind() == StoreErrorKind::NotInstalled => error,
            _ => return,
        };
        if is_due(&self.next, START.elapsed()) {
            tracing::error!(
                place = self.place,
                %cause,
                "a rate limit is misconfigured, so its calls are rejected; said once in ten seconds at most"
            );
        }
    }

    /// Logs that a permit which does not count could not be given back: it stays charged.
    pub(super) fn not_given_back(&self, error: &Rejection) {
        if is_due(&self.next_kept, START.elapsed()) {
            tracing::warn!(
                place = self.place,
                %error,
                "a call that does not count stays charged, since its permits could not be given back; said once in ten \
                 seconds at most"
            );
        }
    }

    /// Logs that what a call came to could not be settled: it stays charged at its estimate.
    pub(super) fn not_settled(&self, error: &Rejection) {
        if is_due(&self.next_kept, START.elapsed()) {
            tracing::warn!(
                place = self.place,
                %error,
                "a call stays charged at its estimate, since what it came to could not be settled; said once in ten seconds \
                 at most"
            );
        }
    }
}

/// What is to be logged once in ten seconds at most.
#[derive(Debug)]
pub struct Seldom(AtomicU64);

impl Seldom {
    /// For one event.
    #[expect(
        clippy::new_without_default,
        reason = "it stands in a static, for which it is const"
    )]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether it may be logged now. It counts as logged then.
    pub fn is_due(&self) -> bool {
        is_due(&self.0, START.elapsed())
    }
}

/// Counts a request that says it was forwarded, and is limited by the peer's address.
pub fn forwarded_unread() {
    observe::forwarded_unread();
}

fn is_due(next: &AtomicU64, now: Duration) -> bool {
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let due = next.load(Ordering::Relaxed);
    // Of several threads, one says it.
    millis(now) >= due
        && next
            .compare_exchange(due, millis(now + INTERVAL), Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_report_in_ten_seconds() {
        let reporter = Reporter::new("a::send");
        let due = |millis| is_due(&reporter.next, Duration::from_millis(millis));
        assert!(due(0));
        assert!(!due(0) && !due(9_999));
        assert!(due(10_000));
        assert!(!due(10_001) && due(25_000));
    }
}
