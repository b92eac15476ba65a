//! Listeners: TCP and unix sockets with limits on connections and time.
//!
//! [`Listener::accept`] returns connections that count towards the limit of their listener and end
//! when the peer makes no progress for too long. [`http::serve`] serves HTTP/1 and HTTP/2 on them.
//! Tests: `tests/listeners.rs`, `tests/attacks.rs`.

pub(crate) mod call_span;
pub mod http;
mod requests;
mod stream;
mod tls;
mod turn_waker;
mod unsent;

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::access::Client;
use crate::listener::stream::Socket;
pub use crate::listener::stream::TimedStream;
use crate::listener::tls::ServerTls;
use crate::settings::{ListenAddress, ListenerLimits, TlsSettings};

/// The largest number of connections that are accepted after the end.
pub(crate) const MAX_LAST_CONNECTIONS: usize = 1_024;
/// The pause after a failed accept, which fails again at once when files are exhausted.
const PAUSE: Duration = Duration::from_millis(50);
/// The time without a byte after which the system probes the peer of a TCP connection.
#[cfg(target_os = "linux")]
const KEEPALIVE: Duration = Duration::from_secs(60);
/// The time after the end of the server in which handshakes of TLS can finish.
const LAST_HANDSHAKES: Duration = Duration::from_secs(1);
/// The owner and the group may connect to a unix socket.
const SOCKET_MODE: u32 = 0o660;

/// A bound listener.
#[derive(Debug)]
pub struct Listener {
    protocol: &'static str,
    inner: Inner,
    address: ListenAddress,
    limits: ListenerLimits,
    connections: Arc<Semaphore>,
    /// The answer to a connection above the limit.
    refusal: &'static [u8],
    tls: Option<ServerTls>,
    is_full: AtomicBool,
    /// The last attempt to accept a connection failed.
    is_failing: AtomicBool,
}

#[derive(Debug)]
enum Inner {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection that was accepted, before its TLS handshake.
#[derive(Debug)]
pub struct PendingConnection {
    socket: Socket,
    tls: Option<ServerTls>,
    limits: ListenerLimits,
    permit: OwnedSemaphorePermit,
}

impl PendingConnection {
    /// Completes the handshake, if the listener uses TLS. A client that does not continue it ends
    /// with the read timeout, or soon after `end` is true.
    ///
    /// # Errors
    ///
    /// The reason why the handshake failed.
    pub async fn establish(self, mut end: watch::Receiver<bool>) -> io::Result<ClientConnection> {
        let peer = self.socket.peer();
        let (socket, client) = match (self.socket, self.tls) {
            (Socket::Tcp(stream), Some(tls)) => {
                let ended = async {
                    // An error means that the sender is gone, which is an end as well.
                    let _ = end.wait_for(|end| *end).await;
                    tokio::time::sleep(LAST_HANDSHAKES).await;
                };
                let handshake = tokio::select! {
                    biased;
                    handshake = tokio::time::timeout(self.limits.read_timeout, tls.accept(stream)) => handshake,
                    () = ended => return Err(io::ErrorKind::TimedOut.into()),
                };
                let (stream, client) = handshake.map_err(|_| io::ErrorKind::TimedOut)??;
                (Socket::Tls(Box::new(stream)), client)
            }
            (socket, _) => (socket, Client::Anonymous),
        };
        Ok(ClientConnection {
            stream: TimedStream::new(socket, &self.limits),
            peer,
            client,
            permit: self.permit,
        })
    }
}

/// A connection of a client.
#[derive(Debug)]
pub struct ClientConnection {
    /// The bytes of the connection.
    pub stream: TimedStream,
    /// The address of the peer; absent on unix sockets.
    pub peer: Option<SocketAddr>,
    /// The client, as far as the connection identifies it.
    pub client: Client,
    /// The place of the connection in the limit of the listener, which ends with this value.
    pub permit: OwnedSemaphorePermit,
}

impl Listener {
    /// Binds an address. Port 0 selects a free port. A unix socket that no process listens on is
    /// replaced.
    ///
    /// # Errors
    ///
    /// The reason, with the address.
    pub async fn bind(
        protocol: &'static str,
        address: &ListenAddress,
        limits: &ListenerLimits,
        tls: Option<&TlsSettings>,
    ) -> Result<Self, String> {
        let failed = |error| format!("cannot listen on {address} for {protocol}: {error}");
        let (inner, address) = match address {
            ListenAddress::Tcp(tcp) => {
                let inner = TcpListener::bind(tcp).await.map_err(failed)?;
                let bound = inner.local_addr().map_err(failed)?;
                (Inner::Tcp(inner), ListenAddress::Tcp(bound))
            }
            ListenAddress::Unix(path) => {
                let inner = bind_unix(path).await.map_err(failed)?;
                (Inner::Unix(inner), address.clone())
            }
        };
        // Connections of a unix socket do not leave the machine.
        let tls = tls.filter(|_| matches!(address, ListenAddress::Tcp(_)));
        Self::new(protocol, (inner, address), limits, tls)
    }

    /// Takes over a bound socket, in the runtime that accepts its connections.
    ///
    /// # Errors
    ///
    /// The reason, with the protocol.
    pub fn from_std(
        protocol: &'static str,
        listener: std::net::TcpListener,
        limits: &ListenerLimits,
        tls: Option<&TlsSettings>,
    ) -> Result<Self, String> {
        let failed = |error: io::Error| format!("the {protocol} listener failed: {error}");
        listener.set_nonblocking(true).map_err(failed)?;
        let inner = TcpListener::from_std(listener).map_err(failed)?;
        let address = ListenAddress::Tcp(inner.local_addr().map_err(failed)?);
        Self::new(protocol, (Inner::Tcp(inner), address), limits, tls)
    }

    fn new(
        protocol: &'static str,
        (inner, address): (Inner, ListenAddress),
        limits: &ListenerLimits,
        tls: Option<&TlsSettings>,
    ) -> Result<Self, String> {
        let tls = tls.map(|tls| ServerTls::start(tls, protocol)).transpose()?;
        Ok(Self {
            protocol,
            tls,
            inner,
            address,
            connections: Arc::new(Semaphore::new(limits.max_connections.min(Semaphore::MAX_PERMITS))),
            limits: limits.clone(),
            refusal: match protocol {
                "http" | "admin" => {
                    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                }
                "resp" => b"-ERR max number of clients reached\r\n",
                _ => b"",
            },
            is_full: AtomicBool::new(false),
            is_failing: AtomicBool::new(false),
        })
    }

    /// Returns the bound address, in which port 0 is replaced by the selected port.
    #[must_use]
    pub const fn address(&self) -> &ListenAddress {
        &self.address
    }

    /// Returns the protocol that the listener serves.
    #[must_use]
    pub const fn protocol(&self) -> &'static str {
        self.protocol
    }

    /// Returns the limits of the listener.
    #[must_use]
    pub const fn limits(&self) -> &ListenerLimits {
        &self.limits
    }

    /// Waits for the next connection within the limit. Connections above the limit are closed and
    /// counted.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn accept(&self) -> PendingConnection {
        loop {
            let socket = match self.accept_socket().await {
                Ok(socket) => {
                    self.is_failing.store(false, Ordering::Relaxed);
                    socket
                }
                Err(error) => {
                    // A process without free file descriptors fails until one is closed.
                    if !self.is_failing.swap(true, Ordering::Relaxed) {
                        tracing::warn!(protocol = self.protocol, %error, "cannot accept connections; trying again");
                    }
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let Ok(permit) = Arc::clone(&self.connections).try_acquire_owned() else {
                metrics::counter!("limiter_server_refused_connections_total", "protocol" => self.protocol)
                    .increment(1);
                // A client that expects TLS does not read plain text.
                if self.tls.is_none() {
                    socket.try_write(self.refusal);
                }
                if !self.is_full.swap(true, Ordering::Relaxed) {
                    let max = self.limits.max_connections;
                    tracing::warn!(
                        protocol = self.protocol,
                        max,
                        "connection limit reached; closing new connections"
                    );
                }
                continue;
            };
            if self.is_full.swap(false, Ordering::Relaxed) {
                tracing::info!(protocol = self.protocol, "accepting connections again");
            }
            return PendingConnection {
                socket,
                tls: self.tls.clone(),
                limits: self.limits.clone(),
                permit,
            };
        }
    }

    /// Accepts a connection that has arrived already; `None` without one. A closed listener resets
    /// the connections that it has not accepted.
    pub(crate) async fn accept_arrived(&self) -> Option<PendingConnection> {
        tokio::select! {
            biased;
            connection = self.accept() => Some(connection),
            () = std::future::ready(()) => None,
        }
    }

    async fn accept_socket(&self) -> io::Result<Socket> {
        match &self.inner {
            Inner::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Answers are small and must not wait for further data.
                let _ = stream.set_nodelay(true);
                #[cfg(target_os = "linux")]
                probe_silent_peer(&stream);
                Ok(Socket::Tcp(stream))
            }
            Inner::Unix(listener) => Ok(Socket::Unix(listener.accept().await?.0)),
        }
    }
}

/// Removes the file of a unix socket.
impl Drop for Listener {
    fn drop(&mut self) {
        if let ListenAddress::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Makes the system end the connection of a peer that has vanished: a Redis client may be silent
/// for any time, and its connection would keep its place in the limit otherwise.
#[cfg(target_os = "linux")]
fn probe_silent_peer(stream: &tokio::net::TcpStream) {
    use rustix::net::sockopt;
    // Without probes, the connection works as well.
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE / 4);
    let _ = sockopt::set_tcp_keepcnt(stream, 4);
}

async fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if let Ok(file) = std::fs::symlink_metadata(path) {
        if !file.file_type().is_socket() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the path is not a socket",
            ));
        }
        if tokio::net::UnixStream::connect(path).await.is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
    Ok(listener)
}
