//! Connections that know their own health.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

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

/// So many calls in a row without an answer, and the connection is taken for dead.
const TIMEOUTS_UNTIL_BROKEN: u32 = 3;
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
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

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Never the credentials.
            Self::To(client) => write!(f, "Dialer({})", client.get_connection_info().addr()),
            Self::Through(_) => f.write_str("Dialer(a pool's manager)"),
        }
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
        _ => url.to_owned(),
    }
}

/// One connection, shared by whoever has a clone: calls on it do not wait for each other.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    inner: MultiplexedConnection,
    health: Arc<Health>,
}

#[derive(Debug, Default)]
struct Health {
    broken: AtomicBool,
    timeouts_in_a_row: AtomicU32,
}

impl Connection {
    pub(super) fn is_broken(&self) -> bool {
        self.health.broken.load(Ordering::Relaxed)
    }

    /// Sends a command that belongs to a call.
    pub(super) async fn send(&mut self, command: &Cmd, call: &Call) -> Result<Value, RedisError> {
        let mut watch = Watch {
            health: Arc::clone(&self.health),
            call,
            answered: false,
        };
        let answer = self
            .inner
            .req_packed_command(command)
            .await
            .and_then(Value::extract_error);
        watch.note(&answer);
        answer
    }

    /// Sends a command with ASKING in front of it, so that a node answers which is only about to own the slot.
    pub(super) async fn send_asking(&mut self, command: Cmd, call: &Call) -> Result<Value, RedisError> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("ASKING").add_command(command);
        let mut watch = Watch {
            health: Arc::clone(&self.health),
            call,
            answered: false,
        };
        let answers = self.inner.req_packed_commands(&pipeline, 0, 2).await;
        let answer = answers.and_then(|mut answers| answers.pop().unwrap_or(Value::Nil).extract_error());
        watch.note(&answer);
        answer
    }

    /// Sends a command of our own, such as SCRIPT LOAD.
    pub(super) async fn command(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        let answer = self
            .inner
            .req_packed_command(command)
            .await
            .and_then(Value::extract_error);
        self.health.note(&answer);
        answer
    }
}

impl Health {
    fn note(&self, answer: &Result<Value, RedisError>) {
        self.timeouts_in_a_row.store(0, Ordering::Relaxed);
        if let Err(error) = answer
            && breaks_connection(error)
        {
            self.broken.store(true, Ordering::Relaxed);
        }
    }

    fn timed_out(&self) {
        if self.timeouts_in_a_row.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS_UNTIL_BROKEN {
            self.broken.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether a new connection would do better: after a failover behind one address, the new one leads to the new primary.
fn breaks_connection(error: &RedisError) -> bool {
    error.is_unrecoverable_error()
        || error.is_io_error()
        || matches!(
            error.kind(),
            ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::BusyLoading)
        )
}

/// Counts a call that is dropped after its deadline as a timeout of the connection. One that is dropped earlier was
/// cancelled, which says nothing about the connection.
struct Watch<'a> {
    health: Arc<Health>,
    call: &'a Call,
    answered: bool,
}

impl Watch<'_> {
    fn note(&mut self, answer: &Result<Value, RedisError>) {
        self.answered = true;
        self.health.note(answer);
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.answered && self.call.is_overdue() {
            self.health.timed_out();
        }
    }
}

impl ManageConnection for Dialer {
    type Connection = Connection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Connection, RedisError> {
        let health = Arc::new(Health::default());
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
