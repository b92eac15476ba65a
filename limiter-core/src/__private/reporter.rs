//! Logs errors that only the program's author can correct, since a caller may not see them.
//!
//! A rejection by a misconfigured limit can be replaced by a fallback or become a plain status
//! code, so each annotated function and each layer has a `Reporter` that logs the cause. The
//! throttles limit each event to one line per ten seconds. Log lines contain names of policies and
//! no keys. Tests: `limiter-tower/tests/log.rs`.

use std::borrow::Cow;
use std::fmt;
use std::hash::Hash;
use std::sync::LazyLock;
use std::time::Instant;

use crate::decision::{Decision, Rejection};
use crate::error::StoreErrorKind;
use crate::observe;
use crate::support::log_throttle::{LogThrottle, VariantLogThrottle};
use crate::units::Timestamp;

/// Logs misconfigurations, at most one every ten seconds, so that a busy function does not flood
/// the log.
#[derive(Debug)]
pub struct Reporter {
    /// The position of the limit.
    place: Cow<'static, str>,
    rejections: LogThrottle,
    failed_refunds: LogThrottle,
}

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
            rejections: LogThrottle::new(),
            failed_refunds: LogThrottle::new(),
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
        if self.rejections.is_due(now()) {
            tracing::error!(
                place = %self.place,
                %cause,
                "a rate limit is misconfigured; its calls are rejected"
            );
        }
    }

    /// Logs a failed refund of a call that does not count: the call stays charged.
    pub(super) fn not_given_back(&self, error: &Rejection) {
        if self.failed_refunds.is_due(now()) {
            tracing::warn!(
                place = %self.place,
                error = %error.diagnostic(),
                "cannot refund a call that does not count; it stays charged"
            );
        }
    }

    /// Logs a failed settlement of a call: the call stays charged at its estimate.
    pub(super) fn not_settled(&self, decision: &Decision, error: &Rejection) {
        if self.failed_refunds.is_due(now()) {
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
pub struct ReportThrottle(LogThrottle);

impl ReportThrottle {
    /// Creates the throttle of one event.
    #[expect(
        clippy::new_without_default,
        reason = "a static stores it, so the constructor is const"
    )]
    #[must_use]
    pub const fn new() -> Self {
        Self(LogThrottle::new())
    }

    /// Returns whether the event may be logged now, and counts it as logged.
    pub fn is_due(&self) -> bool {
        self.0.is_due(now())
    }
}

/// Limits an event to one log line every ten seconds for each variant, of which there are at most
/// 16.
#[derive(Debug)]
pub struct KeyedLogThrottle(VariantLogThrottle);

impl KeyedLogThrottle {
    /// Creates the throttle of one event.
    #[expect(
        clippy::new_without_default,
        reason = "a static stores it, so the constructor is const"
    )]
    #[must_use]
    pub const fn new() -> Self {
        Self(VariantLogThrottle::new())
    }

    /// Returns whether the event may be logged now for this variant, and counts it as logged. A
    /// variant must not depend on a client's input.
    pub fn is_due(&self, variant: &impl Hash) -> bool {
        self.0.is_due(now(), variant)
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

/// Returns the time since the first event, by a clock that never goes back.
fn now() -> Timestamp {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    Timestamp::default().after(START.elapsed())
}
