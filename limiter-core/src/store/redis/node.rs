//! One Redis server, and the connections to it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bb8_redis::bb8::{CustomizeConnection, Pool, RunError};
use bb8_redis::redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::sync::Semaphore;

use super::breaker::{Breaker, Pass};
use super::connection::{Connection, Dialer};
use super::dial_failures::DialFailures;
use super::pools::Pools;
use super::script::Call;
use crate::clock::{Clock, Seldom};
use crate::error::{StoreError, StoreErrorKind};

/// One server. Cheap to clone.
///
/// A call takes a clone of a connection from the pool and gives the connection back before it sends anything, so that no
/// call waits for another's answer.
#[derive(Clone, Debug)]
pub(super) struct Node(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    dialer: Dialer,
    settings: NodeSettings,
    pools: Pools,
    failures: Arc<DialFailures>,
    breaker: Arc<Breaker>,
    told_out: Seldom,
    told_back: Seldom,
    /// A server that is slow must not gather calls without end: they would all wait for their deadlines.
    in_flight: Semaphore,
}

/// How a node is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeSettings {
    /// Connections that are kept.
    pub(crate) connections: u32,
    /// Calls that may be on their way at once.
    pub(crate) max_in_flight: u32,
}

/// Why a call got no answer from a node.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing was sent.
    Unreachable(StoreError),
    /// The server, or the connection, answered with an error.
    Answered(RedisError),
}

impl Node {
    pub(super) fn new(dialer: Dialer, settings: NodeSettings) -> Self {
        let max_in_flight = usize::try_from(settings.max_in_flight).unwrap_or(Semaphore::MAX_PERMITS);
        Self(Arc::new(Inner {
            dialer,
            settings,
            pools: Pools::default(),
            failures: Arc::new(DialFailures::default()),
            breaker: Arc::new(Breaker::new()),
            told_out: Seldom::default(),
            told_back: Seldom::default(),
            in_flight: Semaphore::new(max_in_flight.min(Semaphore::MAX_PERMITS)),
        }))
    }

    /// Runs the script on this server.
    pub(super) async fn run(&self, call: &Call) -> Result<Value, StoreError> {
        self.try_run(call, false).await.map_err(StoreError::from)
    }

    /// Runs the script, unless the breaker is open or too many calls are in flight; `asking` on behalf of a slot that is
    /// moving here.
    pub(super) async fn try_run(&self, call: &Call, asking: bool) -> Result<Value, Failure> {
        let Ok(_place) = self.0.in_flight.try_acquire() else {
            let detail = format!(
                "{} calls are on their way to Redis at {} already",
                self.0.settings.max_in_flight, self.0.dialer
            );
            return Err(Failure::Unreachable(StoreError::new(
                StoreErrorKind::Overloaded,
                detail,
            )));
        };
        let Some(pass) = self.0.breaker.admit(Instant::now()) else {
            let detail = "Redis was not asked, since it left recent calls without an answer";
            return Err(Failure::Unreachable(StoreError::new(
                StoreErrorKind::CircuitOpen,
                detail,
            )));
        };
        let mut pass = Some(pass);
        let overdue = || self.failed(pass.take());
        let answer = call.wait().for_answer(self.exchange(call, asking), overdue).await;
        match &answer {
            Err(Failure::Unreachable(_)) => self.failed(pass),
            Err(Failure::Answered(error)) if error.is_io_error() => self.failed(pass),
            _ => self.answered(pass),
        }
        answer
    }

    fn answered(&self, pass: Option<Pass<'_>>) {
        if pass.is_some_and(Pass::answered) && self.0.told_back.is_due(Clock::System.now()) {
            tracing::info!(node = %self, "Redis answers again");
        }
    }

    fn failed(&self, pass: Option<Pass<'_>>) {
        if pass.is_some_and(|pass| pass.failed(Instant::now())) && self.0.told_out.is_due(Clock::System.now())
        {
            tracing::warn!(node = %self, "Redis does not answer; it is asked again by one call at a time");
        }
    }

    /// Connects, and has the script run once without keys, so that the server knows it and the permissions are known to
    /// suffice.
    pub(super) async fn prepare(&self, empty: &Call) -> Result<(), StoreError> {
        self.exchange(empty, false)
            .await
            .map(|_| ())
            .map_err(StoreError::from)
    }

    async fn exchange(&self, call: &Call, asking: bool) -> Result<Value, Failure> {
        let mut connection = self
            .connection(call.wait().deadline())
            .await
            .map_err(Failure::Unreachable)?;
        let answer = connection.send(call.by_hash(), asking, call.wait()).await;
        match answer {
            // Proof that nothing has run.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                connection.send(call.by_text(), asking, call.wait()).await
            }
            answer => answer,
        }
        .map_err(Failure::Answered)
    }

    /// A connection for a call of this deadline, dialled if there is no healthy one.
    pub(super) async fn connection(&self, deadline: Duration) -> Result<Connection, StoreError> {
        let pool = self.0.pools.current(|| self.0.new_pool())?;
        loop {
            // Registered before the pool is asked, so that a failure in between is not missed.
            let failed = self.0.failures.next();
            tokio::pin!(failed);
            failed.as_mut().enable();
            let connection = tokio::select! {
                biased;
                connection = pool.get() => connection.map_err(|error| match error {
                    RunError::User(error) => StoreError::from(error),
                    RunError::TimedOut => StoreError::new(StoreErrorKind::Timeout, "no connection in time"),
                })?,
                () = failed => return Err(self.0.failures.last(&self.0.dialer)),
            };
            // A broken one leaves the pool as it is dropped.
            if connection.is_healthy(deadline) {
                return Ok(connection.clone());
            }
        }
    }
}

/// Where it is.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.dialer.fmt(f)
    }
}

impl Inner {
    fn new_pool(&self) -> Pool<Dialer> {
        Pool::builder()
            .max_size(self.settings.connections)
            .min_idle(Some(self.settings.connections))
            // Health is known without asking; connections have no age at which they get worse.
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            // Each call dials anew where none is left, and learns at once why it failed.
            .retry_connection(false)
            .error_sink(self.failures.sink())
            .connection_customizer(Box::new(Connected(Arc::clone(&self.breaker))))
            .build_unchecked(self.dialer.clone())
    }
}

/// Tells the breaker of each new connection.
#[derive(Debug)]
struct Connected(Arc<Breaker>);

impl CustomizeConnection<Connection, RedisError> for Connected {
    fn on_acquire<'a>(
        &'a self,
        _connection: &'a mut Connection,
    ) -> Pin<Box<dyn Future<Output = Result<(), RedisError>> + Send + 'a>> {
        self.0.connected(Instant::now());
        Box::pin(std::future::ready(Ok(())))
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
