//! One call and its result.

use std::error::Error as _;
use std::time::{Duration, Instant};

use limiter_core::{Decision, Origin, Rejection, StoreError, StoreErrorKind};

/// A call with a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// The index of the limiter that was called, and the key.
    pub(crate) limiter: usize,
    pub(crate) key: u32,
    pub(crate) sent_at: Instant,
    pub(crate) took: Duration,
    /// Microseconds, by the clock of the store or replica that decided.
    pub(crate) decided_at: u64,
    pub(crate) allowed: bool,
    pub(crate) by: DecisionSource,
    /// The reason for a decision without the store.
    pub(crate) failure: Option<StoreFailure>,
}

/// The source of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecisionSource {
    Store,
    /// An earlier denial by the store that is still valid.
    Before,
    LocalFallback,
    /// The replica's local share, while replicas report the permits of a finished outage.
    Reconciling,
    Undecided,
}

/// The reason for a decision without the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreFailure {
    pub(crate) kind: StoreErrorKind,
    /// The server's error code, if it is one that these faults cause.
    pub(crate) code: Option<&'static str>,
}

/// Error codes in the server's and in the client library's spelling.
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
        sent_at: Instant,
        answer: &Result<Decision, Rejection>,
    ) -> Self {
        let (allowed, by, decided_at, failure) = match answer {
            Ok(decision) => (
                decision.is_allowed(),
                DecisionSource::of(decision),
                decision.decided_at().as_micros(),
                decision.store_error().map(StoreFailure::of),
            ),
            Err(Rejection::Unavailable { error, .. }) => {
                (false, DecisionSource::Undecided, 0, Some(StoreFailure::of(error)))
            }
            Err(_) => (false, DecisionSource::Undecided, 0, None),
        };
        Self {
            limiter,
            key,
            sent_at,
            took: sent_at.elapsed(),
            decided_at,
            allowed,
            by,
            failure,
        }
    }

    pub(crate) fn answered(&self) -> Instant {
        self.sent_at + self.took
    }

    pub(crate) fn is_healthy(&self) -> bool {
        matches!(
            self.by,
            DecisionSource::Store | DecisionSource::Before | DecisionSource::Reconciling
        )
    }

    pub(crate) fn has_code(&self, code: &str) -> bool {
        self.failure.is_some_and(|failure| failure.code == Some(code))
    }
}

impl DecisionSource {
    fn of(decision: &Decision) -> Self {
        let is_reconciling = decision
            .store_error()
            .is_some_and(|error| error.kind() == StoreErrorKind::Reconciling);
        match decision.origin() {
            Origin::Redis => Self::Store,
            Origin::DenyCache => Self::Before,
            Origin::FailedOpen | Origin::FailedClosed => Self::Undecided,
            Origin::LocalFallback if is_reconciling => Self::Reconciling,
            _ => Self::LocalFallback,
        }
    }
}

impl StoreFailure {
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
