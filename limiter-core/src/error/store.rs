//! Errors of a store.
//!
//! A caller needs the cause and whether the call may have been charged, and no type of the Redis
//! client. `StoreError` is therefore opaque: a kind, a text, the error of the client as its source,
//! and a flag for errors that occurred before anything was sent. Tests: `error/tests.rs`,
//! `tests/faults.rs`.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// The reason why a store made no decision.
///
/// [`kind`](Self::kind) distinguishes the cases. [`source`](Error::source) is the error of the
/// Redis client, if there is one.
#[derive(Clone)]
pub struct StoreError {
    kind: StoreErrorKind,
    detail: Arc<str>,
    source: Option<Arc<dyn Error + Send + Sync>>,
    /// The error occurred before anything was sent.
    unsent: bool,
}

/// The cases of a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No reply within the deadline. The call may have been charged.
    Timeout,
    /// The connection could not be established, or it broke. A call that was sent may have been
    /// charged.
    Connection,
    /// The circuit breaker of the server is open for the deadline of the call, because recent calls
    /// received no reply within such a deadline. Nothing was sent or charged.
    CircuitOpen,
    /// Nothing was sent: after an outage, other replicas may not yet have reported the permits that
    /// they admitted, and this replica's share is used up. Nothing was charged.
    Reconciling,
    /// The maximum number of calls in flight to the server, or of waiting calls, is reached.
    /// Nothing was charged.
    Overloaded,
    /// The server rejected the call (busy, out of memory, read-only, no permission, …) before
    /// anything was charged.
    Refused,
    /// The key contains a value of another type. The value was not changed.
    WrongType,
    /// The key contains a value of another layout (a newer version, or foreign data). The value was
    /// not changed.
    UnknownLayout,
    /// The reply does not have the format of the script's replies.
    Protocol,
    /// The in-process store contains its maximum number of keys.
    Full,
    /// No limiter is installed, in a release build.
    NotInstalled,
    /// The limiter was shut down.
    ShutDown,
}

impl StoreError {
    pub(crate) fn new(kind: StoreErrorKind, detail: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            source: None,
            unsent: false,
        }
    }

    /// Marks the error as one that occurred before anything was sent.
    #[cfg(feature = "redis")]
    pub(crate) fn unsent(mut self) -> Self {
        self.unsent = true;
        self
    }

    /// Returns whether the error proves that no permits were taken or returned. A proxy's error
    /// about a server's reply proves nothing.
    #[cfg(feature = "redis")]
    pub(crate) fn has_changed_nothing(&self) -> bool {
        use StoreErrorKind::{CircuitOpen, Overloaded, Reconciling, UnknownLayout, WrongType};
        let never_charges = matches!(
            self.kind,
            CircuitOpen | Reconciling | Overloaded | WrongType | UnknownLayout
        );
        self.unsent || never_charges
    }

    #[cfg(feature = "redis")]
    pub(crate) fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Formats the error with its causes, in one line for a log.
    pub(crate) fn with_causes(&self) -> impl fmt::Display {
        let (mut text, mut cause) = (self.detail.to_string(), self.source());
        while let Some(error) = cause {
            let cause_text = error.to_string();
            // Some errors contain the text of their cause.
            if !text.ends_with(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            cause = error.source();
        }
        text
    }

    /// Moves the causes into the error's text, for callers that show only the text.
    #[cfg(feature = "redis")]
    pub(crate) fn in_one_line(self) -> Self {
        let detail = self.with_causes().to_string().into();
        Self {
            detail,
            source: None,
            ..self
        }
    }

    /// Returns whether the call may have been charged although no reply arrived.
    #[must_use]
    pub fn may_have_been_charged(&self) -> bool {
        let may_have_run = matches!(
            self.kind,
            StoreErrorKind::Timeout | StoreErrorKind::Connection | StoreErrorKind::Protocol
        );
        may_have_run && !self.unsent
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreError")
            .field("kind", &self.kind)
            .field("detail", &self.detail)
            .field("source", &self.source)
            .finish()
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn Error + 'static))
    }
}
