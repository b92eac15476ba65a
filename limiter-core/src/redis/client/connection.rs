//! A connection with a health state.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bb8_redis::redis::aio::{ConnectionLike, MultiplexedConnection};
use bb8_redis::redis::{Cmd, Pipeline, RedisError, Value};
use tokio::task::AbortHandle;

use crate::redis::call_deadline::CallDeadline;
use crate::redis::client::health::Health;

/// One reply for each command.
type CommandReplies = Vec<Result<Value, RedisError>>;

/// One multiplexed connection. Clones share it and send concurrently.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    inner: MultiplexedConnection,
    health: Arc<Health>,
    _driver: Option<Arc<Driver>>,
}

/// The task that drives a connection. Dropping the last clone of the connection aborts it;
/// otherwise it would wait for missing replies of a dead server.
#[derive(Debug)]
pub(crate) struct Driver(AbortHandle);

impl Driver {
    pub(crate) fn new(task: AbortHandle) -> Self {
        Self(task)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Connection {
    pub(crate) fn new(inner: MultiplexedConnection, health: Arc<Health>, driver: Option<Driver>) -> Self {
        Self {
            inner,
            health,
            _driver: driver.map(Arc::new),
        }
    }

    /// Returns whether a call with this deadline should use the connection.
    pub(crate) fn is_healthy(&self, deadline: Duration) -> bool {
        self.health.is_good(deadline)
    }

    /// Returns the health state; it lives as long as the connection.
    pub(crate) fn health(&self) -> Weak<Health> {
        Arc::downgrade(&self.health)
    }

    /// Sends a maintenance command, which does not affect the health state.
    pub(crate) async fn query(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        self.inner
            .req_packed_command(command)
            .await
            .and_then(Value::extract_error)
    }

    /// Subscribes to a channel. The connection must speak RESP3 and must not be used for anything
    /// else.
    #[cfg(feature = "registry")]
    pub(crate) async fn subscribe(&mut self, channel: &str) -> Result<(), RedisError> {
        self.inner.subscribe(channel).await
    }

    /// Waits for the next message on any channel, or for the end of the connection. Returns whether
    /// the connection is still usable. A message that arrived before the call counts.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    #[cfg(feature = "registry")]
    pub(crate) async fn next_message(&self) -> bool {
        if !self.health.is_broken() {
            self.health.message_or_end().await;
        }
        !self.health.is_broken()
    }

    /// Returns whether the connection is unusable for all calls.
    pub(crate) fn is_broken(&self) -> bool {
        self.health.is_broken()
    }

    /// Returns whether `other` is a clone of this connection.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.health, &other.health)
    }

    /// Records that a call with this deadline timed out.
    pub(crate) fn timed_out(&self, deadline: Duration) {
        self.health.timed_out(deadline);
    }

    /// Sends commands in one pipeline and returns one reply for each. The flag of a command
    /// requests `ASKING` before it.
    pub(crate) async fn send_all(
        &mut self,
        commands: Vec<(Cmd, bool)>,
    ) -> Result<CommandReplies, RedisError> {
        self.health.on_query();
        let answers = self.exchange(commands).await;
        let failure = match &answers {
            Ok(answers) => answers.iter().find_map(|answer| answer.as_ref().err()),
            Err(error) => Some(error),
        };
        self.health.answered(failure);
        answers
    }

    async fn exchange(&mut self, commands: Vec<(Cmd, bool)>) -> Result<CommandReplies, RedisError> {
        if let [(command, false)] = commands.as_slice() {
            let answer = self.inner.req_packed_command(command).await?;
            return Ok(vec![answer.extract_error()]);
        }
        let mut pipeline = Pipeline::with_capacity(commands.len());
        // The reply to ASKING carries no information beyond the reply to the command.
        let mut is_command = Vec::with_capacity(commands.len());
        for (command, asking) in commands {
            if asking {
                pipeline.cmd("ASKING");
                is_command.push(false);
            }
            pipeline.add_command(command);
            is_command.push(true);
        }
        let answers = self
            .inner
            .req_packed_commands(&pipeline, 0, is_command.len())
            .await?;
        let answers = answers.into_iter().zip(is_command);
        let is_command =
            answers.filter_map(|(answer, is_command)| is_command.then(|| answer.extract_error()));
        Ok(is_command.collect())
    }

    /// Sends a command. `asking` sends ASKING first, which a node requires while it imports the
    /// slot.
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
