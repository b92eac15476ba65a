//! Why no connection comes about, told at once to all who wait for one: a pool would have them wait
//! until it gives up.

use std::sync::{Arc, Mutex, PoisonError};

use bb8_redis::bb8::ErrorSink;
use bb8_redis::redis::RedisError;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::error::{StoreError, StoreErrorKind};
use crate::redis::client::connection::Dialer;

/// The dials of one node that failed.
#[derive(Debug, Default)]
pub(crate) struct DialFailures {
    happened: Notify,
    last: Mutex<Option<RedisError>>,
}

impl DialFailures {
    /// Where a pool reports them.
    pub(crate) fn sink(self: &Arc<Self>) -> Box<dyn ErrorSink<RedisError>> {
        Box::new(Sink(Arc::clone(self)))
    }

    /// Ends at the next one, once it is enabled.
    pub(crate) fn next(&self) -> Notified<'_> {
        self.happened.notified()
    }

    /// Why there is no connection.
    pub(crate) fn last(&self, dialer: &Dialer) -> StoreError {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let error = StoreError::new(
            StoreErrorKind::Connection,
            format!("no connection to Redis at {dialer}"),
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
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        self.0.happened.notify_waiters();
    }

    fn boxed_clone(&self) -> Box<dyn ErrorSink<RedisError>> {
        self.0.sink()
    }
}
