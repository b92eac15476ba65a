//! Connections that know their own health.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::{ManageConnection, Pool};
use bb8_redis::redis::aio::{ConnectionLike, MultiplexedConnection};
use bb8_redis::redis::io::tcp::TcpSettings;
use bb8_redis::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    Pipeline, ProtocolVersion, PushInfo, PushKind, RedisError, ServerErrorKind, Value,
};

use super::script::Call;
use crate::error::ConfigError;

/// So many calls in quick succession without an answer, over so many deadlines and this long at least, and the connection
/// is taken for dead …
const CALLS_UNTIL_SILENT: u32 = 3;
const DEADLINES_UNTIL_SILENT: u32 = 2;
const LEAST_PATIENCE: Duration = Duration::from_millis(100);
/// … and so is one on which so many calls ran into their deadlines, or one after this time without an answer. Shorter
/// deadlines than this do not count.
const TIMEOUTS_UNTIL_BROKEN: u32 = 2;
const QUIET: Duration = Duration::from_secs(1);
const LEAST_TELLING: Duration = Duration::from_millis(20);
/// A connection younger than this is not given up for one to a better server.
const LEAST_AGE: Duration = Duration::from_millis(200);
const DIAL_TIMEOUT: Duration = Duration::from_millis(500);
/// Calls that can be on their way to the writer of one connection.
const PIPELINE_BUFFER: usize = 1024;

/// Opens connections.
#[derive(Clone)]
pub(super) enum Dialer {
    To(Client),
    Through(Pool<RedisConnectionManager>),
}

impl Dialer {
    /// Dials the server at `url`.
    pub(super) fn to(url: &str) -> Result<Self, ConfigError> {
        Self::at(connection_info(url)?).map_err(|error| invalid_url(url, &error))
    }

    /// Dials a server by its settings.
    pub(super) fn at(info: ConnectionInfo) -> Result<Self, RedisError> {
        Client::open(info).map(Self::To)
    }

    /// Dials as the manager of a pool does.
    pub(super) fn through(pool: Pool<RedisConnectionManager>) -> Self {
        Self::Through(pool)
    }
}

/// Where it leads to; never the credentials.
impl fmt::Display for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::To(client) => write!(f, "{}", client.get_connection_info().addr()),
            Self::Through(_) => f.write_str("the address of a pool's manager"),
        }
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dialer({self})")
    }
}

/// What a URL says, with the settings that a limiter needs: no delay in TCP, and RESP3, which tells at once when the
/// server hangs up.
pub(super) fn connection_info(url: &str) -> Result<ConnectionInfo, ConfigError> {
    let info = url
        .into_connection_info()
        .map_err(|error| invalid_url(url, &error))?;
    if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) && !info.addr().is_supported() {
        return Err(ConfigError::invalid(
            "redis URL",
            without_credentials(url),
            "redis://, as TLS is not supported",
        ));
    }
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info
        .set_tcp_settings(TcpSettings::default().set_nodelay(true))
        .set_redis_settings(settings))
}

fn invalid_url(url: &str, error: &RedisError) -> ConfigError {
    let expected = format!("a URL such as redis://host:6379/0 ({error})");
    ConfigError::invalid("redis URL", without_credentials(url), expected)
}

fn without_credentials(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 <= at => {
            format!(
                "{}…{}",
                url.get(..scheme + 3).unwrap_or_default(),
                url.get(at..).unwrap_or_default()
            )
        }
        (_, Some(at)) => format!("…{}", url.get(at..).unwrap_or_default()),
        _ => url.to_owned(),
    }
}

/// One connection, shared by whoever has a clone: calls on it do not wait for each other.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    inner: MultiplexedConnection,
    health: Arc<Health>,
}

impl Connection {
    /// Whether a call of this deadline should use it.
    pub(super) fn is_healthy(&mut self, deadline: Duration) -> bool {
        let patience = LEAST_PATIENCE.max(deadline * DEADLINES_UNTIL_SILENT);
        if self.health.is_silent(patience) {
            self.health.broken.store(true, Ordering::Relaxed);
        }
        !self.is_broken()
    }

    fn is_broken(&self) -> bool {
        self.health.broken.load(Ordering::Relaxed)
    }

    /// Sends a command; `asking` with ASKING in front of it, so that a node answers which is only about to own the slot.
    pub(super) async fn send(
        &mut self,
        command: Cmd,
        asking: bool,
        call: &Call,
    ) -> Result<Value, RedisError> {
        let mut watch = Watch {
            health: Arc::clone(&self.health),
            call,
            answered: false,
        };
        self.health.asked();
        let answer = if asking {
            let mut pipeline = Pipeline::with_capacity(2);
            pipeline.cmd("ASKING").add_command(command);
            let answers = self.inner.req_packed_commands(&pipeline, 0, 2).await;
            answers.map(|mut answers| answers.pop().unwrap_or(Value::Nil))
        } else {
            self.inner.req_packed_command(&command).await
        }
        .and_then(Value::extract_error);
        watch.answered = true;
        self.health.answered(&answer);
        answer
    }
}

/// Tells a call that ran into its deadline from one that was cancelled.
struct Watch<'a> {
    health: Arc<Health>,
    call: &'a Call,
    answered: bool,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        // A deadline that is shorter than a slow network tells nothing about the connection.
        if !self.answered && self.call.deadline() >= LEAST_TELLING && self.call.is_overdue() {
            self.health.timed_out();
        }
    }
}

/// What is known about a connection without asking.
#[derive(Debug)]
struct Health {
    born: Instant,
    broken: AtomicBool,
    silence: Mutex<Silence>,
}

/// Since the last answer.
#[derive(Debug)]
struct Silence {
    answered_at: Instant,
    timeouts: u32,
    /// Calls in quick succession …
    calls: u32,
    /// … the first of them, and the last.
    first: Instant,
    last: Instant,
}

impl Health {
    fn new() -> Self {
        let born = Instant::now();
        let silence = Silence {
            answered_at: born,
            timeouts: 0,
            calls: 0,
            first: born,
            last: born,
        };
        Self {
            born,
            broken: AtomicBool::new(false),
            silence: Mutex::new(silence),
        }
    }

    fn asked(&self) {
        let (mut silence, now) = (self.silence(), Instant::now());
        // Calls of long ago were cancelled, and their answers dropped unseen.
        if silence.calls == 0 || now.duration_since(silence.last) > LEAST_PATIENCE {
            (silence.calls, silence.first) = (0, now);
        }
        silence.calls += 1;
        silence.last = now;
    }

    fn answered(&self, answer: &Result<Value, RedisError>) {
        let mut silence = self.silence();
        (silence.answered_at, silence.timeouts, silence.calls) = (Instant::now(), 0, 0);
        drop(silence);
        let Err(error) = answer else { return };
        let connection_lost = error.is_unrecoverable_error() || error.is_io_error();
        // One that is new leads to the same server again.
        if connection_lost || (is_demoted(error) && self.born.elapsed() >= LEAST_AGE) {
            self.broken.store(true, Ordering::Relaxed);
        }
    }

    /// A call ran into its deadline. On a connection that was quiet before, that is enough.
    fn timed_out(&self) {
        let mut silence = self.silence();
        silence.timeouts += 1;
        if silence.timeouts >= TIMEOUTS_UNTIL_BROKEN || silence.answered_at.elapsed() >= QUIET {
            self.broken.store(true, Ordering::Relaxed);
        }
    }

    /// Whether several calls in quick succession, over this time, got no answer. Cancelled ones count too, since callers
    /// without patience would otherwise never learn that the server is gone.
    fn is_silent(&self, patience: Duration) -> bool {
        let silence = self.silence();
        silence.calls >= CALLS_UNTIL_SILENT && silence.first.elapsed() >= patience
    }

    fn silence(&self) -> MutexGuard<'_, Silence> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a new connection may lead to a better server: after a failover behind one address it leads to the new primary.
/// Servers before 7.0 wrap the error of a script's command into one of the script.
fn is_demoted(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::BusyLoading)
    ) || error.detail().is_some_and(|detail| detail.contains("-READONLY"))
}

impl ManageConnection for Dialer {
    type Connection = Connection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Connection, RedisError> {
        let health = Arc::new(Health::new());
        let inner = match self {
            Self::To(client) => {
                let watched = Arc::clone(&health);
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(DIAL_TIMEOUT))
                    // Each call has a deadline of its own.
                    .set_response_timeout(None)
                    .set_pipeline_buffer_size(PIPELINE_BUFFER)
                    .set_push_sender(move |push: PushInfo| -> Result<(), std::convert::Infallible> {
                        if push.kind == PushKind::Disconnection {
                            watched.broken.store(true, Ordering::Relaxed);
                        }
                        Ok(())
                    });
                client
                    .get_multiplexed_async_connection_with_config(&config)
                    .await?
            }
            Self::Through(pool) => pool.dedicated_connection().await?,
        };
        Ok(Connection { inner, health })
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), RedisError> {
        if connection.is_broken() {
            return Err(RedisError::from((ErrorKind::Io, "the connection is broken")));
        }
        Ok(())
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.is_broken()
    }
}
