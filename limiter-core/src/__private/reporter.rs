//! Logs errors that only the program's author can correct, since a caller may not see them.

use std::borrow::Cow;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::decision::{Decision, Rejection};
use crate::error::StoreErrorKind;
use crate::observe;

/// Logs misconfigurations, at most one every ten seconds, so that a busy function does not flood
/// the log.
#[derive(Debug)]
pub struct Reporter {
    /// The position of the limit.
    place: Cow<'static, str>,
    /// Milliseconds from `START` until the next event may be logged.
    next: AtomicU64,
    /// The corresponding time for failed refunds.
    next_kept: AtomicU64,
}

static START: LazyLock<Instant> = LazyLock::new(Instant::now);
const INTERVAL: Duration = Duration::from_secs(10);

impl Reporter {
    /// Creates the reporter of one annotated function.
    #[must_use]
    pub const fn new(place: &'static str) -> Self {
        Self::at(Cow::Borrowed(place))
    }

    /// Creates the reporter of one layer, identified by its policies. Policies that depend on the
    /// request are named with the cause.
    pub fn of_layer<'a>(layer: &str, policies: impl IntoIterator<Item = &'a str>) -> Self {
        Self::at(Cow::Owned(match QuotedNames::of(policies) {
            QuotedNames(none) if none.is_empty() => layer.to_owned(),
            policies => format!("{layer} of {policies}"),
        }))
    }

    const fn at(place: Cow<'static, str>) -> Self {
        Self {
            place,
            next: AtomicU64::new(0),
            next_kept: AtomicU64::new(0),
        }
    }

    /// Logs a rejection that is an error of the program. A fallback would hide it.
    pub fn report(&self, rejection: &Rejection) {
        let diagnostic = rejection.diagnostic();
        let cause: &dyn fmt::Display = match rejection {
            Rejection::Config(error) => error,
            Rejection::NotConfigured { .. } => &diagnostic,
            Rejection::Unavailable { error, .. } if error.kind() == StoreErrorKind::NotInstalled => error,
            _ => return,
        };
        if is_due(&self.next, START.elapsed()) {
            tracing::error!(
                place = %self.place,
                %cause,
                "a rate limit is misconfigured; its calls are rejected"
            );
        }
    }

    /// Logs a failed refund of a call that does not count: the call stays charged.
    pub(super) fn not_given_back(&self, error: &Rejection) {
        if is_due(&self.next_kept, START.elapsed()) {
            tracing::warn!(
                place = %self.place,
                error = %error.diagnostic(),
                "cannot refund a call that does not count; it stays charged"
            );
        }
    }

    /// Logs a failed settlement of a call: the call stays charged at its estimate.
    pub(super) fn not_settled(&self, decision: &Decision, error: &Rejection) {
        if is_due(&self.next_kept, START.elapsed()) {
            let policies = QuotedNames::of(decision.limits().iter().map(|limit| limit.policy().name()));
            tracing::warn!(
                place = %self.place,
                %policies,
                error = %error.diagnostic(),
                "cannot settle a call; it stays charged at its estimate"
            );
        }
    }
}

/// Names between backticks.
struct QuotedNames(String);

impl QuotedNames {
    fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: Vec<_> = names.into_iter().map(|name| format!("`{name}`")).collect();
        Self(names.join(", "))
    }
}

impl fmt::Display for QuotedNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Limits an event to one log line every ten seconds.
#[derive(Debug)]
pub struct ReportThrottle(AtomicU64);

impl ReportThrottle {
    /// Creates the throttle of one event.
    #[expect(
        clippy::new_without_default,
        reason = "a static stores it, so the constructor is const"
    )]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns whether the event may be logged now, and counts it as logged.
    pub fn is_due(&self) -> bool {
        is_due(&self.0, START.elapsed())
    }
}

/// Limits an event to one log line every ten seconds for each variant.
#[derive(Debug)]
pub struct KeyedLogThrottle(Mutex<Vec<(u64, Duration)>>);

impl KeyedLogThrottle {
    /// Maximum number of variants every ten seconds. Further variants are not logged.
    const MOST: usize = 16;

    /// Creates the throttle of one event.
    #[expect(
        clippy::new_without_default,
        reason = "a static stores it, so the constructor is const"
    )]
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Returns whether the event may be logged now for this variant, and counts it as logged. A
    /// variant must not depend on a client's input.
    pub fn is_due(&self, way: &impl Hash) -> bool {
        self.is_due_at(START.elapsed(), way)
    }

    fn is_due_at(&self, now: Duration, way: &impl Hash) -> bool {
        let mut hasher = DefaultHasher::new();
        way.hash(&mut hasher);
        let way = hasher.finish();
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        logged.retain(|(_, until)| *until > now);
        if logged.len() >= Self::MOST || logged.iter().any(|(other, _)| *other == way) {
            return false;
        }
        logged.push((way, now + INTERVAL));
        true
    }
}

/// Counts a request with a forwarding header that is limited by the peer's address.
pub fn forwarded_unread() {
    observe::forwarded_unread();
}

/// Counts a request that a layer has shed, by the index of its class, the lowest first.
pub fn shed(class: usize) {
    observe::shed(class);
}

fn is_due(next: &AtomicU64, now: Duration) -> bool {
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let due = next.load(Ordering::Relaxed);
    // Of several threads, one logs the event.
    millis(now) >= due
        && next
            .compare_exchange(due, millis(now + INTERVAL), Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
}

#[cfg(test)]
mod tests {
    use crate::__private::reporter::*;

    #[test]
    fn one_report_in_ten_seconds() {
        let reporter = Reporter::new("a::send");
        let due = |millis| is_due(&reporter.next, Duration::from_millis(millis));
        assert!(due(0));
        assert!(!due(0) && !due(9_999));
        assert!(due(10_000));
        assert!(!due(10_001) && due(25_000));
    }

    #[test]
    fn variants_are_throttled_separately_and_bounded() {
        let seldom = KeyedLogThrottle::new();
        let due = |seconds, way: usize| seldom.is_due_at(Duration::from_secs(seconds), &way);
        assert!(due(0, 1) && due(5, 2) && !due(9, 1) && due(10, 1) && !due(14, 2));
        let logged = (0..100_usize).filter(|way| due(20, *way)).count();
        assert_eq!(logged, KeyedLogThrottle::MOST);
        assert!(seldom.0.lock().unwrap().len() <= KeyedLogThrottle::MOST);
        assert!(due(30, 99), "variants of the previous interval are removed");
    }
}
