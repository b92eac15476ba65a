//! Reports dial errors to all callers that wait for a connection. Without it, a pool lets them wait
//! until its timeout.

use std::sync::Arc;

use bb8_redis::bb8::ErrorSink;
use bb8_redis::redis::RedisError;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::error::{StoreError, StoreErrorKind};
use crate::redis::topology::dialer::Dialer;
use crate::support::sync::Mutex;

/// The failed dials of one pool.
#[derive(Debug)]
pub(crate) struct DialFailures {
    /// Names the server in errors.
    dialer: Dialer,
    happened: Notify,
    last: Mutex<Option<RedisError>>,
}

impl DialFailures {
    pub(crate) fn new(dialer: Dialer) -> Arc<Self> {
        Arc::new(Self {
            dialer,
            happened: Notify::new(),
            last: Mutex::new(None),
        })
    }

    /// Returns the sink to which a pool reports dial errors.
    pub(crate) fn sink(self: &Arc<Self>) -> Box<dyn ErrorSink<RedisError>> {
        Box::new(Sink(Arc::clone(self)))
    }

    /// Returns a future that completes at the next failure after it was enabled.
    pub(crate) fn next(&self) -> Notified<'_> {
        self.happened.notified()
    }

    /// Returns the error of the last failed dial.
    pub(crate) fn last(&self) -> StoreError {
        let last = self.last.lock().clone();
        let error = StoreError::new(
            StoreErrorKind::Connection,
            format!("no connection to Redis at {}", self.dialer),
        );
        match last {
            Some(cause) => error.with_source(cause),
            None => error,
        }
    }
}

#[derive(Debug)]
struct Sink(Arc<DialFailures>);

impl ErrorSink<RedisError> for Sink {
    fn sink(&self, error: RedisError) {
        *self.0.last.lock() = Some(error);
        self.0.happened.notify_waiters();
    }

    fn boxed_clone(&self) -> Box<dyn ErrorSink<RedisError>> {
        self.0.sink()
    }
}
