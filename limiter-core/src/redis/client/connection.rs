//! A connection with a health state.
//!
//! A server that hangs, or a network that drops packets, closes no connection: calls would time out
//! until the operating system gives up, after minutes. The health state is therefore derived from
//! the results of the calls, without extra commands. Each call registers before it is sent. A
//! reply resets the state; missing replies to several calls, or a timeout on a quiet connection,
//! mark the connection as broken, and the pool dials another one.
//!
//! Invariants: a broken connection never becomes usable again. Clones share one state. A timeout of
//! a deadline below 20 ms is no evidence of a dead server, unless calls time out for two seconds
//! without a reply.
//!
//! Tests: `tests/connections.rs`, `tests/faults.rs`.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bb8_redis::redis::aio::{ConnectionLike, MultiplexedConnection};
use bb8_redis::redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::task::AbortHandle;

use crate::support::real_time::CallDeadline;
use crate::support::sync::{Mutex, MutexGuard};

/// A connection without a reply to this number of calls in quick succession, over at least this
/// number of deadlines and this time, counts as dead.
const CALLS_UNTIL_SILENT: u32 = 3;
const DEADLINES_UNTIL_SILENT: u32 = 2;
const MIN_SILENCE: Duration = Duration::from_millis(100);
/// A connection also counts as dead after this number of timed-out calls, or after one timed-out
/// call on a connection without a reply for `QUIET`. Shorter deadlines than `MIN_DEADLINE` count
/// only after calls have timed out for `TIMING_OUT` without a reply.
const TIMEOUTS_UNTIL_BROKEN: u32 = 2;
const QUIET: Duration = Duration::from_secs(1);
const MIN_DEADLINE: Duration = Duration::from_millis(20);
const TIMING_OUT: Duration = Duration::from_secs(2);
/// A younger connection is kept although its server was demoted, since a new one may lead to the
/// same server.
const MIN_AGE: Duration = Duration::from_millis(200);
/// As `MIN_AGE`, for a server that loads its data: it takes seconds to minutes, and a login delays
/// it.
const MIN_AGE_WHILE_LOADING: Duration = Duration::from_secs(1);

/// One reply for each command.
type CommandReplies = Vec<Result<Value, RedisError>>;

/// Presence of the command `ASKING` before a command: a node requires it while it imports the slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Asking {
    #[default]
    Omitted,
    Required,
}

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
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.health, &other.health)
    }

    /// Records that a call with this deadline timed out.
    pub(crate) fn timed_out(&self, deadline: Duration) {
        self.health.timed_out(deadline);
    }

    /// Sends commands in one pipeline and returns one reply for each.
    pub(crate) async fn send_all(
        &mut self,
        commands: Vec<(Cmd, Asking)>,
    ) -> Result<CommandReplies, RedisError> {
        self.health.on_query();
        let answers = self.exchange(commands).await;
        let failure = match &answers {
            Ok(answers) => answers.iter().find_map(|answer| answer.as_ref().err()),
            Err(error) => Some(error),
        };
        self.health.on_reply(failure);
        answers
    }

    async fn exchange(&mut self, commands: Vec<(Cmd, Asking)>) -> Result<CommandReplies, RedisError> {
        if let [(command, Asking::Omitted)] = commands.as_slice() {
            let answer = self.inner.req_packed_command(command).await?;
            return Ok(vec![answer.extract_error()]);
        }
        let mut pipeline = Pipeline::with_capacity(commands.len());
        // The reply to ASKING carries no information beyond the reply to the command.
        let mut is_command = Vec::with_capacity(commands.len());
        for (command, asking) in commands {
            if asking == Asking::Required {
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

    /// Sends a command.
    pub(crate) async fn send(
        &mut self,
        command: Cmd,
        asking: Asking,
        wait: &CallDeadline,
    ) -> Result<Value, RedisError> {
        let (inner, health) = (&mut self.inner, &self.health);
        health.on_query();
        let answer = pin!(async {
            if asking == Asking::Required {
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
        health.on_reply(answer.as_ref().err());
        answer
    }
}

/// Health state of one connection.
#[derive(Debug)]
pub(crate) struct Health {
    born: Instant,
    broken: AtomicBool,
    silence: Mutex<Silence>,
    /// Notified when a message arrived or the connection broke.
    #[cfg(feature = "registry")]
    message_or_end: tokio::sync::Notify,
}

/// Calls and timeouts since the last reply.
#[derive(Debug)]
struct Silence {
    last_reply_at: Instant,
    timeouts: u32,
    first_timeout: Option<Instant>,
    /// Calls in quick succession.
    calls: u32,
    /// Times of the first and of the last of these calls.
    first: Instant,
    last: Instant,
}

impl Health {
    pub(crate) fn new() -> Self {
        let born = Instant::now();
        let silence = Silence {
            last_reply_at: born,
            timeouts: 0,
            first_timeout: None,
            calls: 0,
            first: born,
            last: born,
        };
        Self {
            born,
            broken: AtomicBool::new(false),
            silence: Mutex::new(silence),
            #[cfg(feature = "registry")]
            message_or_end: tokio::sync::Notify::new(),
        }
    }

    /// Returns whether a call with this deadline should use the connection.
    pub(crate) fn is_good(&self, deadline: Duration) -> bool {
        if self.is_silent(MIN_SILENCE.max(deadline * DEADLINES_UNTIL_SILENT)) {
            self.mark_broken();
        }
        !self.is_broken()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Marks the connection as unusable.
    pub(crate) fn mark_broken(&self) {
        self.broken.store(true, Ordering::Relaxed);
        #[cfg(feature = "registry")]
        self.message_or_end.notify_one();
    }

    /// Records a message on a subscribed channel.
    #[cfg(feature = "registry")]
    pub(crate) fn on_message(&self) {
        self.message_or_end.notify_one();
    }

    /// Waits until a message arrives or the connection breaks. A message since the previous wait
    /// counts. Supports one waiter at a time.
    #[cfg(feature = "registry")]
    pub(crate) async fn message_or_end(&self) {
        self.message_or_end.notified().await;
    }

    /// Records that a call is about to be sent.
    pub(crate) fn on_query(&self) {
        let (mut silence, now) = (self.silence(), Instant::now());
        // Older calls were cancelled, and their replies dropped unseen.
        if silence.calls == 0 || now.duration_since(silence.last) > MIN_SILENCE {
            (silence.calls, silence.first) = (0, now);
        }
        silence.calls += 1;
        silence.last = now;
    }

    /// Records a reply, including an error reply.
    pub(crate) fn on_reply(&self, error: Option<&RedisError>) {
        let mut silence = self.silence();
        (silence.last_reply_at, silence.timeouts, silence.calls) = (Instant::now(), 0, 0);
        silence.first_timeout = None;
        drop(silence);
        let Some(error) = error else { return };
        let connection_lost = error.is_unrecoverable_error() || error.is_io_error();
        // A new connection may lead to the same demoted server again.
        if connection_lost || (is_demoted(error) && self.born.elapsed() >= min_age(error)) {
            self.mark_broken();
        }
    }

    /// Records a call that exceeded its deadline. On a connection that was quiet before, one such
    /// call suffices.
    pub(crate) fn timed_out(&self, deadline: Duration) {
        let mut silence = self.silence();
        let first_timeout = *silence.first_timeout.get_or_insert_with(Instant::now);
        // A deadline shorter than a slow network's round trip proves little: the late replies are
        // not seen.
        if deadline < MIN_DEADLINE && first_timeout.elapsed() < TIMING_OUT {
            return;
        }
        silence.timeouts += 1;
        if silence.timeouts >= TIMEOUTS_UNTIL_BROKEN || silence.last_reply_at.elapsed() >= QUIET {
            self.mark_broken();
        }
    }

    /// Returns whether several calls in quick succession got no reply for this time. Cancelled
    /// calls count too: otherwise callers with short deadlines would never detect a dead server.
    fn is_silent(&self, min_silence: Duration) -> bool {
        let silence = self.silence();
        silence.calls >= CALLS_UNTIL_SILENT && silence.first.elapsed() >= min_silence
    }

    fn silence(&self) -> MutexGuard<'_, Silence> {
        self.silence.lock()
    }
}

/// Returns whether a new connection may lead to a better server: after a failover behind one
/// address, it leads to the new primary. Servers before 7.0 wrap the error of a script's command
/// into a script error.
fn is_demoted(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(
            ServerErrorKind::ReadOnly | ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown
        )
    ) || error.detail().is_some_and(|detail| detail.contains("-READONLY"))
}

/// Returns the age from which a connection to a demoted server is replaced.
fn min_age(error: &RedisError) -> Duration {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::BusyLoading) => MIN_AGE_WHILE_LOADING,
        _ => MIN_AGE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_deadlines_break_connection_after_two_seconds_of_timeouts() {
        let (health, short) = (Health::new(), MIN_DEADLINE / 2);
        // The connection was idle.
        health.silence().last_reply_at -= 60 * QUIET;
        for _ in 0..10 {
            health.on_query();
            health.timed_out(short);
        }
        assert!(!health.is_broken(), "a slow network");
        let silent_since = |health: &Health, age: Duration| {
            let mut silence = health.silence();
            silence.last_reply_at -= age;
            silence.first_timeout = Some(silence.last_reply_at);
        };
        silent_since(&health, 2 * QUIET);
        health.on_reply(None);
        health.timed_out(short);
        assert!(!health.is_broken(), "a reply has ended the silence");
        silent_since(&health, 2 * QUIET);
        health.timed_out(short);
        assert!(health.is_broken());
    }

    /// A server that loads its data answers each call at once with this error.
    #[test]
    fn loading_server_is_dialled_again_after_a_second() {
        let error = |kind| RedisError::from((ErrorKind::Server(kind), "rejected"));
        let is_kept = |kind, age| {
            let mut health = Health::new();
            health.born -= age;
            health.on_reply(Some(&error(kind)));
            !health.is_broken()
        };
        assert!(is_kept(ServerErrorKind::BusyLoading, Duration::from_millis(900)));
        assert!(!is_kept(ServerErrorKind::BusyLoading, Duration::from_secs(1)));
        assert!(!is_kept(ServerErrorKind::ReadOnly, MIN_AGE));
    }
}
