//! One call and what came of it.

use std::error::Error as _;
use std::time::{Duration, Instant};

use limiter_core::{Decision, Origin, Rejection, StoreError, StoreErrorKind};

/// A call that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// Which of the load's limiters was asked, and for which key.
    pub(crate) limiter: usize,
    pub(crate) key: u32,
    pub(crate) asked: Instant,
    pub(crate) took: Duration,
    /// Microseconds, by the clock of the store or the replica that decided.
    pub(crate) decided_at: u64,
    pub(crate) allowed: bool,
    pub(crate) by: By,
    /// Why the store did not decide, where it did not.
    pub(crate) trouble: Option<Trouble>,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Store,
    /// The store, before this call: it denied, and its time is not over.
    Before,
    LocalFallback,
    /// The replica's share, while replicas report permits of an outage that is over.
    Reconciling,
    Nobody,
}

/// Why the store did not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) kind: StoreErrorKind,
    /// What the server said, where it is one of what these faults provoke.
    pub(crate) code: Option<&'static str>,
}

/// The codes of errors as the server writes them, and as the client library does.
const CODES: [(&str, &str); 9] = [
    ("READONLY", "ReadOnly"),
    ("MOVED", "Moved"),
    ("ASK", "Ask:"),
    ("TRYAGAIN", "TryAgain"),
    ("CLUSTERDOWN", "ClusterDown"),
    ("NOSCRIPT", "NoScript"),
    ("LOADING", "BusyLoading"),
    ("BUSY", "\"BUSY\""),
    ("OOM", "\"OOM\""),
];

impl Event {
    pub(crate) fn new(
        limiter: usize,
        key: u32,
        asked: Instant,
        answer: &Result<Decision, Rejection>,
    ) -> Self {
        let (allowed, by, decided_at, trouble) = match answer {
            Ok(decision) => (
                decision.is_allowed(),
                By::of(decision),
                decision.decided_at().as_micros(),
                decision.store_error().map(Trouble::of),
            ),
            Err(Rejection::Unavailable(error)) => (false, By::Nobody, 0, Some(Trouble::of(error))),
            Err(_) => (false, By::Nobody, 0, None),
        };
        Self {
            limiter,
            key,
            asked,
            took: asked.elapsed(),
            decided_at,
            allowed,
            by,
            trouble,
        }
    }

    pub(crate) fn answered(&self) -> Instant {
        self.asked + self.took
    }

    pub(crate) fn is_healthy(&self) -> bool {
        matches!(self.by, By::Store | By::Before | By::Reconciling)
    }

    pub(crate) fn has_code(&self, code: &str) -> bool {
        self.trouble.is_some_and(|trouble| trouble.code == Some(code))
    }
}

impl By {
    fn of(decision: &Decision) -> Self {
        let is_reconciling = decision
            .store_error()
            .is_some_and(|error| error.kind() == StoreErrorKind::Reconciling);
        match decision.origin() {
            Origin::Redis => Self::Store,
            Origin::DenyCache => Self::Before,
            Origin::FailedOpen | Origin::FailedClosed => Self::Nobody,
            Origin::LocalFallback if is_reconciling => Self::Reconciling,
            _ => Self::LocalFallback,
        }
    }
}

impl Trouble {
    pub(crate) fn of(error: &StoreError) -> Self {
        let code = error.source().and_then(|source| {
            let text = source.to_string();
            let named = |(wire, client): &&(&str, &str)| text.contains(wire) || text.contains(client);
            CODES.iter().find(named).map(|(wire, _)| *wire)
        });
        Self {
            kind: error.kind(),
            code,
        }
    }
}
