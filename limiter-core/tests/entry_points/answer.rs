//! The result of an entry point, in a common form.

use std::time::Duration;

use limiter_core::usage::UsageCell;
use limiter_core::{Decision, Origin, Rejection};

/// The result of an entry point. An entry point that returns no decision has no details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Allowed(Option<Details>),
    Limited(Option<Denial>),
    Forbidden,
    NeverFits,
    NotConfigured,
    Other(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Details {
    pub(crate) would_deny: bool,
    pub(crate) source: Source,
    /// True if the decision contains the state of the limit.
    pub(crate) shows_limit: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    pub(crate) retry_after: Duration,
    pub(crate) is_blocked: bool,
}

/// The origin. Redis, its deny cache and the memory store are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Store,
    Other(Origin),
}

impl Answer {
    /// Returns whether this result equals the expected result in all details that it contains.
    pub(crate) fn agrees_with(&self, expected: &Self) -> bool {
        match (self, expected) {
            (Self::Allowed(None), Self::Allowed(_)) | (Self::Limited(None), Self::Limited(_)) => true,
            _ => self == expected,
        }
    }

    /// Counts the call in the usage of its policy.
    pub(crate) fn count(&self, usage: &mut UsageCell) {
        match self {
            Self::Allowed(Some(details)) if details.would_deny => usage.would_deny += 1,
            Self::Allowed(Some(details)) if details.source == Source::Other(Origin::NotConfigured) => {}
            Self::Allowed(_) => usage.allowed += 1,
            Self::Limited(_) | Self::Forbidden => usage.denied += 1,
            Self::NeverFits => usage.failed += 1,
            Self::NotConfigured | Self::Other(_) => {}
        }
    }

    pub(crate) fn of_decision(decision: Result<Decision, Rejection>) -> Self {
        match decision.and_then(Decision::require) {
            Ok(allowed) => Self::allowed(&allowed),
            Err(rejection) => Self::of_rejection(&rejection),
        }
    }

    pub(crate) fn allowed(decision: &Decision) -> Self {
        let source = match decision.origin() {
            Origin::Redis | Origin::DenyCache | Origin::Memory => Source::Store,
            other => Source::Other(other),
        };
        Self::Allowed(Some(Details {
            would_deny: decision.would_deny(),
            source,
            shows_limit: decision.limits().iter().any(|limit| limit.policy().name() == "p"),
        }))
    }

    pub(crate) fn of_rejection(rejection: &Rejection) -> Self {
        match rejection {
            Rejection::Limited(decision)
            | Rejection::TimedOut {
                decision: Some(decision),
                ..
            } => Self::limited(decision),
            Rejection::Forbidden { .. } => Self::Forbidden,
            Rejection::NeverFits { .. } => Self::NeverFits,
            Rejection::NotConfigured { .. } => Self::NotConfigured,
            other => Self::Other(format!("{other:?}")),
        }
    }

    fn limited(decision: &Decision) -> Self {
        if decision
            .denied_by()
            .is_none_or(|limit| limit.policy().name() != "p")
        {
            return Self::Other(format!("denied by another limit: {decision:?}"));
        }
        Self::Limited(decision.retry_after().map(|retry_after| Denial {
            retry_after,
            is_blocked: decision.is_blocked(),
        }))
    }
}
