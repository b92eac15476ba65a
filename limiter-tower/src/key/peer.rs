//! The peer's address as the key.
//!
//! Clients without credentials are distinguished by their address. [`Connection`] reads it from the
//! extensions that the server sets, and [`Prefixes`] truncates it to a network. A forwarded request
//! is counted and logged, because behind a proxy all clients have the proxy's address.
//!
//! Invariant: no header of the request changes the key. Tests: `tests/http/keys.rs` with axum's
//! server, `tests/grpc/keys.rs` with tonic's, `key/client_ip/spoofing_tests.rs` for forged headers.

use std::net::IpAddr;

use http::{Extensions, HeaderMap, HeaderName, Request, header};
use limiter_core::__private::{ReportThrottle, forwarded_unread};

use super::address::Prefixes;
use super::extraction::{Extraction, KeyRejection, Missing};
use super::extractor::KeyExtractor;
use super::peer_addr::{Connection, unknown_peer};

/// Limits by the address of the connected peer. For servers that clients reach directly. Behind a
/// proxy, all requests have the proxy's address, and [`client_ip`](super::client_ip())
/// distinguishes the clients.
///
/// The address is read from axum's `ConnectInfo<SocketAddr>` (feature `axum`; serve the router with
/// `into_make_service_with_connect_info::<SocketAddr>()`), from tonic's `TcpConnectInfo` (feature
/// `tonic`; its server always sets it, also with TLS), from a `SocketAddr` in the request's
/// extensions, or with the function that is set by [`peer_from`](PeerIp::peer_from). A request
/// without an address is rejected with 500 (INTERNAL), and the logged error states the fix, unless
/// [`or_reject`](PeerIp::or_reject) or [`or_skip`](PeerIp::or_skip) is set.
///
/// Only the first 64 bits of an IPv6 address are used, because a client can choose the others; an
/// IPv4 address that is mapped into IPv6, or translated by a NAT64 (`64:ff9b::/96`), is converted.
/// The key is the address, or its network: `192.0.2.1`, `2001:db8::/64`.
///
/// Forwarding headers are not used. A request with `X-Forwarded-For` or `Forwarded` is counted in
/// `limiter_forwarded_unread_total` (feature `metrics` of `limiter-core`), and a warning is logged
/// at most once in ten seconds: there may be a proxy whose clients share one budget.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # use std::convert::Infallible;
/// # use std::net::{IpAddr, SocketAddr};
/// # use http::{Request, Response};
/// # use limiter_core::{Limiter, ManualClock, Policy};
/// # use limiter_tower::{RateLimitLayer, key};
/// # use tower::{Layer, ServiceExt, service_fn};
/// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
/// let policy = Policy::sliding_window("api").limit(1).window("1m").build()?;
/// let service = RateLimitLayer::new(&limits, policy).key(key::peer_ip()).layer(service_fn(
///     async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())),
/// ));
///
/// let from = async |peer: &str| {
///     let mut request = Request::new(());
///     request.extensions_mut().insert(SocketAddr::new(peer.parse().unwrap(), 49_152));
///     service.clone().oneshot(request).await.unwrap().status()
/// };
/// assert_eq!(from("192.0.2.1").await, 200);
/// assert_eq!(from("192.0.2.2").await, 200);
/// assert_eq!(from("2001:db8::1").await, 200);
/// assert_eq!(from("2001:db8::2").await, 429, "in the same /64");
/// # Ok::<(), limiter_core::ConfigError>(())
/// # }).unwrap();
/// ```
pub fn peer_ip() -> PeerIp {
    PeerIp {
        connection: Connection::default(),
        prefixes: Prefixes::default(),
        missing: Missing::default(),
    }
}

/// Reads the key from the connection. Created by [`peer_ip`].
#[derive(Clone, Debug)]
#[must_use = "pass the extractor to `RateLimitLayer::key`"]
pub struct PeerIp {
    connection: Connection,
    prefixes: Prefixes,
    missing: Missing,
}

impl PeerIp {
    pub(super) fn prefixes(&self) -> Prefixes {
        self.prefixes
    }

    /// Sets the number of leading bits of an IPv6 address that form the key. Default: 64. Many
    /// providers assign a /56 or a /48 to one customer, which then has a budget for each /64 in it.
    ///
    /// # Panics
    ///
    /// Panics if `bits` is 0 or more than 128.
    #[track_caller]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self {
            prefixes: self.prefixes.with_v6(bits),
            ..self
        }
    }

    /// Sets the number of leading bits of an IPv4 address that form the key. Default: 32, the whole
    /// address.
    ///
    /// # Panics
    ///
    /// Panics if `bits` is 0 or more than 32.
    #[track_caller]
    pub fn ipv4_prefix(self, bits: u8) -> Self {
        Self {
            prefixes: self.prefixes.with_v4(bits),
            ..self
        }
    }

    /// Sets the source of the peer's address, for servers that provide it in a custom type.
    /// Default: the extensions that are listed at [`peer_ip`].
    ///
    /// ```
    /// # use limiter_tower::key;
    /// #[derive(Clone)]
    /// struct Accepted {
    ///     from: std::net::SocketAddr,
    /// }
    ///
    /// let by_peer = key::peer_ip().peer_from(|extensions| Some(extensions.get::<Accepted>()?.from.ip()));
    /// ```
    pub fn peer_from(self, find: fn(&Extensions) -> Option<IpAddr>) -> Self {
        Self {
            connection: Connection::peer_from(find),
            ..self
        }
    }

    /// Rejects a request without an address with this status or response. Default: 500.
    pub fn or_reject(self, rejection: impl Into<KeyRejection>) -> Self {
        Self {
            missing: Missing::Refuse(rejection.into()),
            ..self
        }
    }

    /// Lets a request without an address pass, neither limited nor counted, for example a request
    /// over a Unix socket. Default: it is rejected.
    pub fn or_skip(self) -> Self {
        Self {
            missing: Missing::Skip,
            ..self
        }
    }
}

impl<B> KeyExtractor<B> for PeerIp {
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        if is_forwarded(request.headers()) {
            unread();
        }
        match self.connection.peer(request.extensions()) {
            Some(peer) => Extraction::Key(self.prefixes.key(peer)),
            None => self.missing.extraction(unknown_peer),
        }
    }
}

pub(super) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

fn is_forwarded(headers: &HeaderMap) -> bool {
    headers.contains_key(X_FORWARDED_FOR) || headers.contains_key(header::FORWARDED)
}

#[cold]
fn unread() {
    forwarded_unread();
    static LOGGED: ReportThrottle = ReportThrottle::new();
    if LOGGED.is_due() {
        tracing::warn!(
            "forwarded request limited by the address of its peer; behind a proxy use key::client_ip"
        );
    }
}
