//! Connections that know their own health.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::{ManageConnection, Pool};
use bb8_redis::redis::aio::{ConnectionLike, MultiplexedConnection};
use bb8_redis::redis::io::tcp::TcpSettings;
use bb8_redis::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    Pipeline, ProtocolVersion, PushInfo, PushKind, RedisError, ServerErrorKind, Value,
};

use crate::error::ConfigError;

/// So many calls in a row without an answer, over so many deadlines, and the connection is taken for dead.
const CALLS_UNTIL_SILENT: u32 = 3;
const DEADLINES_UNTIL_SILENT: u32 = 2;
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
        if self.health.is_silent(deadline * DEADLINES_UNTIL_SILENT) {
            self.health.broken.store(true, Ordering::Relaxed);
        }
        !self.is_broken()
    }

    fn is_broken(&self) -> bool {
        self.health.broken.load(Ordering::Relaxed)
    }

    /// Sends a command; `asking` with ASKING in front of it, so that a node answers which is only about to own the slot.
    pub(super) async fn send(&mut self, command: Cmd, asking: bool) -> Result<Value, RedisError> {
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
        self.health.answered(&answer);
        answer
    }
}

/// What is known about a connection without asking.
#[derive(Debug)]
struct Health {
    born: Instant,
    broken: AtomicBool,
    /// Calls since the last answer …
    unanswered: AtomicU32,
    /// … and when the first of them was sent, in microseconds after `born`.
    unanswered_since: AtomicU64,
}

impl Health {
    fn new() -> Self {
        Self {
            born: Instant::now(),
            broken: AtomicBool::new(false),
            unanswered: AtomicU32::new(0),
            unanswered_since: AtomicU64::new(0),
        }
    }

    fn asked(&self) {
        if self.unanswered.fetch_add(1, Ordering::Relaxed) == 0 {
            self.unanswered_since.store(self.age_micros(), Ordering::Relaxed);
        }
    }

    fn answered(&self, answer: &Result<Value, RedisError>) {
        self.unanswered.store(0, Ordering::Relaxed);
        let Err(error) = answer else { return };
        let connection_lost = error.is_unrecoverable_error() || error.is_io_error();
        // One that is new leads to the same server again.
        if connection_lost || (is_demoted(error) && self.born.elapsed() >= LEAST_AGE) {
            self.broken.store(true, Ordering::Relaxed);
        }
    }

    /// Whether several calls in a row, over this time, got no answer. A call that was cancelled counts too, since a caller
    /// without patience would otherwise never learn that the server is gone.
    fn is_silent(&self, patience: Duration) -> bool {
        let since = Duration::from_micros(self.unanswered_since.load(Ordering::Relaxed));
        self.unanswered.load(Ordering::Relaxed) >= CALLS_UNTIL_SILENT
            && self.born.elapsed().saturating_sub(since) >= patience
    }

    fn age_micros(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_micros()).unwrap_or(u64::MAX)
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
