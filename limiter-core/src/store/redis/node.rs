//! One Redis server, and the connections to it.

use std::sync::{Arc, Mutex, PoisonError};

use bb8_redis::bb8::{ErrorSink, Pool, RunError};
use bb8_redis::redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::Notify;

use super::connection::{Connection, Dialer};
use super::script::{self, Call};
use crate::error::{StoreError, StoreErrorKind};

/// One server. A call takes a clone of a connection from the pool and gives the connection back before it sends
/// anything, so that no call waits for another's answer.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pool: Pool<Dialer>,
    failures: Arc<DialFailures>,
}

/// Why a call got no answer from a node.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing was sent, as there is no connection.
    Unreachable(StoreError),
    /// The server, or the connection, answered with an error.
    Answered(RedisError),
}

impl Node {
    pub(super) fn new(dialer: Dialer, connections: u32) -> Self {
        let failures = Arc::new(DialFailures::default());
        let pool = Pool::builder()
            .max_size(connections.max(1))
            // Health is known without asking; connections have no age at which they get worse.
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            // Each call dials anew where none is left, and learns at once why it failed.
            .retry_connection(false)
            .error_sink(failures.boxed_clone())
            .build_unchecked(dialer);
        Self { pool, failures }
    }

    /// Runs the script on this server.
    pub(super) async fn run(&self, call: &Call) -> Result<Value, StoreError> {
        self.try_run(call, false).await.map_err(StoreError::from)
    }

    /// Runs the script; `asking` on behalf of a slot that is moving here.
    pub(super) async fn try_run(&self, call: &Call, asking: bool) -> Result<Value, Failure> {
        let mut connection = self.connection().await.map_err(Failure::Unreachable)?;
        let answer = if asking {
            connection.send_asking(call.by_hash(), call).await
        } else {
            connection.send(&call.by_hash(), call).await
        };
        match answer {
            // Proof that nothing has run.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                if asking {
                    connection.send_asking(call.by_text(), call).await
                } else {
                    connection.send(&call.by_text(), call).await
                }
            }
            answer => answer,
        }
        .map_err(Failure::Answered)
    }

    /// Connects, and makes the server know the script.
    pub(super) async fn prepare(&self) -> Result<(), StoreError> {
        let mut connection = self.connection().await?;
        connection
            .command(&script::load())
            .await
            .map(|_| ())
            .map_err(StoreError::from)
    }

    /// A healthy connection, dialled if there is none.
    pub(super) async fn connection(&self) -> Result<Connection, StoreError> {
        loop {
            // Registered before the pool is asked, so that a failure in between is not missed.
            let failed = self.failures.happened.notified();
            tokio::pin!(failed);
            failed.as_mut().enable();
            let connection = tokio::select! {
                biased;
                connection = self.pool.get() => connection.map_err(|error| match error {
                    RunError::User(error) => StoreError::from(error),
                    RunError::TimedOut => StoreError::new(StoreErrorKind::Timeout, "no connection in time"),
                })?,
                () = failed => return Err(self.failures.last()),
            };
            // A broken one leaves the pool as it is dropped.
            if !connection.is_broken() {
                return Ok(connection.clone());
            }
        }
    }
}

/// Why dialling failed, told to those who wait for a connection.
#[derive(Debug, Default)]
struct DialFailures {
    happened: Notify,
    last: Mutex<Option<RedisError>>,
}

impl DialFailures {
    fn boxed_clone(self: &Arc<Self>) -> Box<dyn ErrorSink<RedisError>> {
        Box::new(DialFailureSink(Arc::clone(self)))
    }

    fn last(&self) -> StoreError {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match last {
            Some(error) => StoreError::from(error),
            None => StoreError::new(StoreErrorKind::Connection, "dialling failed"),
        }
    }
}

#[derive(Debug)]
struct DialFailureSink(Arc<DialFailures>);

impl ErrorSink<RedisError> for DialFailureSink {
    fn sink(&self, error: RedisError) {
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        self.0.happened.notify_waiters();
    }

    fn boxed_clone(&self) -> Box<dyn ErrorSink<RedisError>> {
        self.0.boxed_clone()
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unreachable(error) => error,
            Failure::Answered(error) => error.into(),
        }
    }
}

impl From<RedisError> for StoreError {
    fn from(error: RedisError) -> Self {
        let (kind, detail) = match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension => {
                (StoreErrorKind::Refused, "Redis refused the call")
            }
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => (
                StoreErrorKind::Protocol,
                "Redis answered with something unreadable",
            ),
            _ if error.is_timeout() => (StoreErrorKind::Timeout, "Redis did not answer in time"),
            _ => (StoreErrorKind::Connection, "no connection to Redis"),
        };
        StoreError::new(kind, detail).with_source(error)
    }
}
