//! The RESP listener: `CL.THROTTLE` for the Redis clients of every language.
//!
//! A connection reads commands into a buffer, runs up to [`MAX_CONCURRENT`] of them at once and
//! writes the replies in their order. Decisions start in order too, so commands of one pipeline
//! charge a key one after the other. Invalid arguments answer `-ERR` and keep the connection open.
//! Invalid framing closes it, because the start of the next command is unknown then. Buffers, the
//! number of connections and the time of an incomplete command are bounded. Tests: `tests/resp.rs`
//! and the fuzz target `resp_command`.

mod command;
mod in_order;
mod reply;
mod session;
mod shown;
mod throttle;
mod throttle_command;

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::gateway::Gateway;
pub use crate::gateway::resp::command::{ParsedCommand, ProtocolError, parse_command};
use crate::gateway::resp::reply::Reply;
use crate::gateway::resp::session::Session;
pub(crate) use crate::gateway::resp::throttle::ThrottlePolicies;
use crate::listener::{Listener, MAX_LAST_CONNECTIONS, PendingConnection, TimedStream};

/// The largest number of decisions that one connection has in flight.
const MAX_CONCURRENT: usize = 64;
/// The most bytes of a connection that are read after the end: more than the buffers of the system.
const MAX_LAST_BYTES: usize = 16 * 1_024 * 1_024;
/// The time in which a connection is read after the end, so that no client delays the end.
const LAST_READS: Duration = Duration::from_secs(1);
/// The size of one read.
const READ_BYTES: usize = 8 * 1_024;

/// Serves RESP until `end` is true, then finishes the commands that were received.
///
/// # Errors
///
/// None; a connection that fails ends alone.
pub async fn serve(
    gateway: Gateway,
    listener: Listener,
    mut end: watch::Receiver<bool>,
) -> Result<(), String> {
    let mut connections = JoinSet::new();
    let each_end = end.clone();
    let serve = |connection| serve_connection(gateway.clone(), connection, each_end.clone());
    loop {
        tokio::select! {
            // An error means that the sender is gone, which is an end as well.
            _ = end.wait_for(|end| *end) => break,
            Some(_) = connections.join_next() => {}
            connection = listener.accept() => {
                connections.spawn(serve(connection));
            }
        }
    }
    // Clients that have connected are served; others are refused from here on.
    for _ in 0..MAX_LAST_CONNECTIONS {
        let Some(connection) = listener.accept_arrived().await else {
            break;
        };
        connections.spawn(serve(connection));
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
    Ok(())
}

async fn serve_connection(gateway: Gateway, connection: PendingConnection, end: watch::Receiver<bool>) {
    let ended = match connection.establish(end.clone()).await {
        Ok(established) => {
            let _permit = established.permit;
            let limits = gateway.limits();
            // Clients keep idle connections in pools and do not expect their end.
            let idle_timeout = limits.resp_idle_timeout.unwrap_or(Duration::MAX);
            let stream = established.stream.with_idle_timeout(idle_timeout);
            let (max_command_bytes, transfer_timeout) = (limits.max_command_bytes, limits.read_timeout);
            let connection = Connection {
                stream,
                session: Session::new(gateway, established.client),
                received: Vec::new(),
                incomplete_since: None,
                max_command_bytes,
                transfer_timeout,
            };
            connection.run(end).await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a RESP connection ended");
    }
}

/// One client.
struct Connection {
    stream: TimedStream,
    session: Session,
    /// Bytes that were received and not yet run.
    received: Vec<u8>,
    /// The time at which the first byte of an incomplete command arrived.
    incomplete_since: Option<Instant>,
    max_command_bytes: usize,
    /// The longest time from the first byte of a command to its last, and of a write.
    transfer_timeout: Duration,
}

impl Connection {
    async fn run(mut self, mut end: watch::Receiver<bool>) -> io::Result<()> {
        let (mut last_bytes, mut last_until) = (MAX_LAST_BYTES, None);
        loop {
            let (replies, closes) = self.run_received().await;
            if !replies.is_empty() {
                self.write(&replies).await?;
                // Further commands can be in the buffer.
                if !closes {
                    continue;
                }
            }
            let is_over = |until| Instant::now() >= until;
            if closes || last_bytes == 0 || last_until.is_some_and(is_over) {
                return self.shutdown().await;
            }
            // Commands that have arrived by then are run before the end: the system resets a
            // connection with unread bytes, and the client would lose replies, too.
            let read = tokio::select! {
                biased;
                read = self.read() => Some(read?),
                _ = end.wait_for(|end| *end) => None,
            };
            match read {
                None => return self.shutdown().await,
                Some(0) => return Ok(()),
                Some(bytes) if *end.borrow() => {
                    last_bytes = last_bytes.saturating_sub(bytes);
                    last_until.get_or_insert_with(|| Instant::now() + LAST_READS);
                }
                Some(_) => {}
            }
        }
    }

    /// Writes replies to the socket. TLS accepts more bytes than the socket, and sends the rest
    /// only when it is flushed.
    async fn write(&mut self, replies: &[u8]) -> io::Result<()> {
        let write = async {
            self.stream.write_all(replies).await?;
            self.stream.flush().await
        };
        let written = timeout(self.transfer_timeout, write).await;
        written.map_err(|_| timed_out("unread_response"))?
    }

    /// Closes the connection. The last record of TLS waits for the reader, too.
    async fn shutdown(&mut self) -> io::Result<()> {
        let ended = timeout(self.transfer_timeout, self.stream.shutdown()).await;
        ended.map_err(|_| io::ErrorKind::TimedOut)?
    }

    /// Reads more bytes; zero at the end of the stream.
    async fn read(&mut self) -> io::Result<usize> {
        self.received.reserve(READ_BYTES);
        if self.received.is_empty() {
            // An idle connection keeps no buffer of the size of its largest command.
            self.received.shrink_to(READ_BYTES);
            self.incomplete_since = None;
            return self.stream.read_buf(&mut self.received).await;
        }
        let since = *self.incomplete_since.get_or_insert_with(Instant::now);
        let read = self.stream.read_buf(&mut self.received);
        timeout_at(since + self.transfer_timeout, read)
            .await
            .map_err(|_| timed_out("read_timeout"))?
    }

    /// Runs complete commands: their replies, and whether the connection closes.
    async fn run_received(&mut self) -> (Vec<u8>, bool) {
        let mut pending = in_order::InOrder::default();
        let mut consumed = 0;
        let mut closes = false;
        while pending.len() < MAX_CONCURRENT && !closes {
            let rest = self.received.get(consumed..).unwrap_or_default();
            match parse_command(rest, self.max_command_bytes) {
                Ok(ParsedCommand::Incomplete) => break,
                Ok(ParsedCommand::Complete { arguments, bytes }) => {
                    consumed += bytes;
                    self.incomplete_since = None;
                    if !arguments.is_empty() {
                        let outcome = self.session.run(&arguments);
                        closes = outcome.closes;
                        pending.push(outcome.protocol, outcome.reply);
                    }
                }
                Err(error) => {
                    let reply = Reply::error(format!("ERR Protocol error: {error}"));
                    pending.push(self.session.protocol(), session::PendingReply::Ready(reply));
                    closes = true;
                }
            }
        }
        self.received.drain(..consumed);
        let mut replies = Vec::new();
        for (protocol, reply) in pending.wait().await {
            reply.write(protocol, &mut replies);
        }
        (replies, closes)
    }
}

/// Counts a connection that ends because its client does not send or read in time.
fn timed_out(reason: &'static str) -> io::Error {
    metrics::counter!("limiter_server_closed_connections_total", "reason" => reason).increment(1);
    io::ErrorKind::TimedOut.into()
}
