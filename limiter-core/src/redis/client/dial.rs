//! Opens a connection to a server: name resolution, socket, TLS if configured, and login.
//!
//! A packet that is lost in an outage is not answered after it. A dial therefore starts further
//! attempts in parallel at intervals, and the first connection ends it. An attempt connects to all
//! addresses of the host in parallel.
//!
//! Invariants: all steps of a dial share one deadline (`DIAL_TIMEOUT`), and a failed attempt
//! cancels no pending one. Tests: below, `tests/connections.rs`, `tests/sockets.rs`,
//! `tests/tls.rs`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bb8_redis::redis::aio::MultiplexedConnection;
use bb8_redis::redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use bb8_redis::redis::{AsyncConnectionConfig, ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use crate::redis::client::connection::Health;
use crate::redis::client::connection::{Connection, Driver};
use crate::redis::client::dns;
use crate::redis::client::endpoint::{Endpoint, HostPort};
use crate::support::jitter::with_jitter;
use crate::support::real_time::timeout_at;

/// Bound of a whole dial: name resolution, socket, TLS and login.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval after which another attempt starts in parallel with the pending ones.
const NEXT_ATTEMPT_AFTER: Duration = Duration::from_millis(150);
/// Capacity of the queue of calls to the writer of one connection.
const PIPELINE_BUFFER: usize = 1024;
/// Idle time before TCP keepalive probes. Probes prevent firewalls from dropping idle connections
/// and detect a dead peer on an idle connection.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);
#[cfg(not(any(target_os = "openbsd", target_os = "solaris")))]
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Bound for unacknowledged probes and data before the kernel closes the socket.
#[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// Opens a connection: starts attempts at intervals and returns the first that succeeds. A packet
/// that was lost during a network outage is never answered; without parallel attempts, the dial
/// would wait for its timeout although the server is reachable again. Fails when no attempt is
/// left.
pub(crate) async fn open(endpoint: &Endpoint) -> Result<Connection, RedisError> {
    let deadline = Instant::now() + DIAL_TIMEOUT;
    let addresses: Arc<[SocketAddr]> = match endpoint.address() {
        Some(address) => {
            let found = dns::resolve(&address.0, address.1);
            with_deadline(deadline, "the name of the host was not resolved", found)
                .await?
                .into()
        }
        None => Arc::default(),
    };
    let mut attempts = JoinSet::new();
    let mut failure = None;
    loop {
        let (endpoint, addresses) = (endpoint.clone(), Arc::clone(&addresses));
        attempts.spawn(async move { attempt(&endpoint, &addresses, deadline).await });
        let next = Instant::now() + with_jitter(NEXT_ATTEMPT_AFTER);
        while let Ok(ended) = timeout_at(next, attempts.join_next()).await {
            let failed = match ended {
                Some(Ok(Ok(connection))) => return Ok(connection),
                Some(Ok(Err(error))) => error,
                Some(Err(aborted)) => io::Error::other(aborted).into(),
                None => return Err(failure.unwrap_or_else(|| io::Error::other("no attempt was made").into())),
            };
            failure.get_or_insert(failed);
        }
    }
}

async fn attempt(
    endpoint: &Endpoint,
    addresses: &[SocketAddr],
    deadline: Instant,
) -> Result<Connection, RedisError> {
    let host = match &endpoint.host_port {
        #[cfg(unix)]
        HostPort::Unix(path) => {
            let stream =
                with_deadline(deadline, "the socket did not answer", UnixStream::connect(path)).await?;
            return log_in(stream, endpoint, deadline).await;
        }
        HostPort::Tcp(address) => address.0.as_str(),
    };
    let stream = with_deadline(deadline, "the host did not answer", reach(addresses)).await?;
    match &endpoint.tls {
        None => log_in(stream, endpoint, deadline).await.map_err(with_hint_of_tls),
        Some(tls) => {
            let timeout_message =
                "the TLS handshake timed out: check that the port of the server accepts TLS";
            let stream = with_deadline(deadline, timeout_message, tls.clone().over(stream, host)).await?;
            log_in(stream, endpoint, deadline).await
        }
    }
}

/// Adds a hint at TLS to a login error. A server that expects TLS closes the connection during a
/// login in plain text, without a reply that a Redis client could parse.
fn with_hint_of_tls(error: RedisError) -> RedisError {
    let hung_up = error.is_connection_dropped() || error.kind() == ErrorKind::Parse;
    if !hung_up {
        return error;
    }
    let detail = format!(
        "the server hung up during the login in plain text; if this port expects TLS, write rediss:// in place of \
         redis:// ({error})"
    );
    io::Error::new(io::ErrorKind::ConnectionAborted, detail).into()
}

/// Bounds one step of a dial and returns `timeout_message` on timeout.
async fn with_deadline<T, E: Into<RedisError>>(
    deadline: Instant,
    timeout_message: &str,
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, RedisError> {
    match timeout_at(deadline, step).await {
        Ok(done) => done.map_err(Into::into),
        Err(_) => {
            let timeout_message = format!("{timeout_message} within {} ms", DIAL_TIMEOUT.as_millis());
            Err(io::Error::new(io::ErrorKind::TimedOut, timeout_message).into())
        }
    }
}

/// Connects to all addresses of a host in parallel and returns the first connection.
async fn reach(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut tried: JoinSet<_> = addresses.iter().copied().map(connect).collect();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    while let Some(ended) = tried.join_next().await {
        match ended {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failure = error,
            Err(_) => {}
        }
    }
    Err(failure)
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    // A call is one small packet and must not wait for the acknowledgement of the previous one.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER);
    #[cfg(not(any(target_os = "openbsd", target_os = "solaris")))]
    let keepalive = keepalive.with_interval(KEEPALIVE_INTERVAL);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    Ok(stream)
}

async fn log_in<S>(stream: S, endpoint: &Endpoint, deadline: Instant) -> Result<Connection, RedisError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let health = Arc::new(Health::new());
    let mut config = AsyncConnectionConfig::new()
        // Each call has its own deadline.
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE_BUFFER);
    if endpoint.login.protocol() == ProtocolVersion::RESP3 {
        let watched = Arc::clone(&health);
        config = config.set_push_sender(move |push: PushInfo| -> Result<(), std::convert::Infallible> {
            match push.kind {
                PushKind::Disconnection => watched.mark_broken(),
                #[cfg(feature = "registry")]
                PushKind::Message => watched.on_message(),
                _ => {}
            }
            Ok(())
        });
    }
    let logging_in = MultiplexedConnection::new_with_config(&endpoint.login, stream, config);
    let (inner, driver) = with_deadline(deadline, "the server did not answer the login", logging_in).await?;
    let driver = Driver::new(tokio::spawn(driver).abort_handle());
    Ok(Connection::new(inner, health, Some(driver)))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use limiter_testing::RedisServer;

    use crate::redis::client::dial::*;
    use crate::redis::client::tls::Certificates;

    /// Checks the options of the socket in the kernel.
    #[tokio::test]
    async fn socket_disables_nagle_and_enables_keepalive() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let stream = reach(&[listener.local_addr().unwrap()]).await.unwrap();
        assert!(stream.nodelay().unwrap());
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        #[cfg(target_os = "linux")]
        {
            assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_AFTER);
            assert_eq!(socket.tcp_keepalive_interval().unwrap(), KEEPALIVE_INTERVAL);
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(UNACKNOWLEDGED));
        }
    }

    #[tokio::test]
    async fn host_without_address_or_listener_is_an_error() {
        assert_eq!(reach(&[]).await.unwrap_err().kind(), io::ErrorKind::NotFound);
        let unused = SocketAddr::from(([127, 0, 0, 1], 1));
        assert_eq!(
            reach(&[unused]).await.unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        let endpoint = |url: &str| Endpoint::parse(&url.into(), &Certificates::default()).unwrap();
        assert!(open(&endpoint("redis://no-such-host.invalid:1/")).await.is_err());
    }

    /// The first attempt gets a late reply; all later attempts are closed by the server.
    #[tokio::test]
    async fn failed_attempt_does_not_cancel_pending_attempt() {
        let server = RedisServer::start();
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let [behind, at] = [server.port(), listener.local_addr().unwrap().port()];
        let url = server.url().replace(&behind.to_string(), &at.to_string());
        thread::spawn(move || {
            let (mut first, _) = listener.accept().unwrap();
            drop(listener.accept().unwrap());
            drop(listener);
            thread::sleep(Duration::from_millis(100));
            let mut to = std::net::TcpStream::connect(("127.0.0.1", behind)).unwrap();
            let (mut answers, mut from) = (to.try_clone().unwrap(), first.try_clone().unwrap());
            thread::spawn(move || io::copy(&mut answers, &mut first));
            io::copy(&mut from, &mut to)
        });
        let endpoint = Endpoint::parse(&url.into(), &Certificates::default()).unwrap();
        open(&endpoint).await.unwrap();
    }
}
