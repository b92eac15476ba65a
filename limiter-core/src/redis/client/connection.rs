//! Connections that know their own health, and how they come about.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::{ManageConnection, Pool};
use bb8_redis::redis::aio::{ConnectionLike, MultiplexedConnection};
use bb8_redis::redis::{Cmd, ErrorKind, Pipeline, RedisError, Value};

use crate::redis::call_deadline::CallDeadline;
use crate::redis::client::dial;
use crate::redis::client::dial::Driver;
use crate::redis::client::endpoint::Endpoint;
use crate::redis::client::health::Health;
use crate::redis::topology::sentinel::Sentinel;

/// One for each command of several.
type Answers = Vec<Result<Value, RedisError>>;

/// Opens connections.
#[derive(Clone)]
pub(crate) enum Dialer {
    /// To one server.
    To(Endpoint),
    /// To whichever server is the primary now.
    Primary(Arc<Sentinel>),
    /// As the manager of a pool does.
    Through(Pool<RedisConnectionManager>),
}

/// Where it leads to; never the credentials.
impl fmt::Display for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::To(endpoint) => write!(f, "{endpoint}"),
            Self::Primary(sentinel) => write!(f, "{sentinel}"),
            Self::Through(_) => f.write_str("the address of a pool's manager"),
        }
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dialer({self})")
    }
}

/// One connection, shared by whoever has a clone: calls on it do not wait for each other.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    inner: MultiplexedConnection,
    health: Arc<Health>,
    _driver: Option<Arc<Driver>>,
}

impl Connection {
    pub(crate) fn new(inner: MultiplexedConnection, health: Arc<Health>, driver: Option<Driver>) -> Self {
        Self {
            inner,
            health,
            _driver: driver.map(Arc::new),
        }
    }

    /// Whether a call of this deadline should use it.
    pub(crate) fn is_healthy(&self, deadline: Duration) -> bool {
        self.health.is_good(deadline)
    }

    /// How the connection is doing, as long as there is one.
    pub(crate) fn health(&self) -> Weak<Health> {
        Arc::downgrade(&self.health)
    }

    /// Sends a command that is no call, so that it says nothing about the connection's health.
    pub(crate) async fn query(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        self.inner
            .req_packed_command(command)
            .await
            .and_then(Value::extract_error)
    }

    /// Subscribes to a channel, for which it has to speak RESP3. It should be used for nothing
    /// else.
    #[cfg(feature = "registry")]
    pub(crate) async fn subscribe(&mut self, channel: &str) -> Result<(), RedisError> {
        self.inner.subscribe(channel).await
    }

    /// Waits for the next message, whatever it is: whether there will be more. One that came in the
    /// meantime counts.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    #[cfg(feature = "registry")]
    pub(crate) async fn next_message(&self) -> bool {
        if !self.health.is_broken() {
            self.health.news().await;
        }
        !self.health.is_broken()
    }

    /// Whether the other is a clone of it.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.health, &other.health)
    }

    /// A call of this deadline has waited in vain.
    pub(crate) fn timed_out(&self, deadline: Duration) {
        self.health.timed_out(deadline);
    }

    /// Sends commands together, each `asking` or not; an answer for each.
    pub(crate) async fn send_all(&mut self, commands: Vec<(Cmd, bool)>) -> Result<Answers, RedisError> {
        self.health.on_query();
        let answers = self.exchange(commands).await;
        let failure = match &answers {
            Ok(answers) => answers.iter().find_map(|answer| answer.as_ref().err()),
            Err(error) => Some(error),
        };
        self.health.answered(failure);
        answers
    }

    async fn exchange(&mut self, commands: Vec<(Cmd, bool)>) -> Result<Answers, RedisError> {
        if let [(command, false)] = commands.as_slice() {
            let answer = self.inner.req_packed_command(command).await?;
            return Ok(vec![answer.extract_error()]);
        }
        let mut pipeline = Pipeline::with_capacity(commands.len());
        // The answer to an ASKING says nothing that the command's own does not.
        let mut wanted = Vec::with_capacity(commands.len());
        for (command, asking) in commands {
            if asking {
                pipeline.cmd("ASKING");
                wanted.push(false);
            }
            pipeline.add_command(command);
            wanted.push(true);
        }
        let answers = self.inner.req_packed_commands(&pipeline, 0, wanted.len()).await?;
        let answers = answers.into_iter().zip(wanted);
        let wanted = answers.filter_map(|(answer, wanted)| wanted.then(|| answer.extract_error()));
        Ok(wanted.collect())
    }

    /// Sends a command; `asking` with ASKING in front of it, so that a node answers which is only
    /// about to own the slot.
    pub(crate) async fn send(
        &mut self,
        command: Cmd,
        asking: bool,
        wait: &CallDeadline,
    ) -> Result<Value, RedisError> {
        let (inner, health) = (&mut self.inner, &self.health);
        health.on_query();
        let answer = pin!(async {
            if asking {
                let mut pipeline = Pipeline::with_capacity(2);
                pipeline.cmd("ASKING").add_command(command);
                let answers = inner.req_packed_commands(&pipeline, 0, 2).await;
                answers.map(|mut answers| answers.pop().unwrap_or(Value::Nil))
            } else {
                inner.req_packed_command(&command).await
            }
        });
        let answer = wait
            .for_answer(answer, || health.timed_out(wait.deadline()))
            .await;
        let answer = answer.and_then(Value::extract_error);
        health.answered(answer.as_ref().err());
        answer
    }
}

impl ManageConnection for Dialer {
    type Connection = Connection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Connection, RedisError> {
        match self {
            Self::To(endpoint) => dial::open(endpoint).await,
            Self::Primary(sentinel) => sentinel.connect().await,
            Self::Through(pool) => {
                let health = Arc::new(Health::new());
                Ok(Connection::new(pool.dedicated_connection().await?, health, None))
            }
        }
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), RedisError> {
        if connection.health.is_broken() {
            return Err(RedisError::from((ErrorKind::Io, "the connection is broken")));
        }
        Ok(())
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.health.is_broken()
    }
}
