//! The peer's address as the key.

use std::net::IpAddr;

use http::{Extensions, HeaderMap, HeaderName, Request, header};
use limiter_core::__private::{ReportThrottle, forwarded_unread};

use super::address::Prefixes;
use super::extraction::{Extraction, KeyRejection, Missing};
use super::extractor::KeyExtractor;
use super::peer_addr::{Connection, unknown_peer};

/// Limits by the address at the other end of the connection. For servers that clients reach
/// directly; behind a proxy, all have the proxy's address, and [`client_ip`](super::client_ip())
/// tells them apart.
///
/// The address is taken from axum's `ConnectInfo<SocketAddr>` (feature `axum`; the router is to be
/// served with `into_make_service_with_connect_info::<SocketAddr>()`), from tonic's
/// `TcpConnectInfo` (feature `tonic`; its server sets it by itself, with TLS too), or from a
/// `SocketAddr` in the request's extensions; or from where [`peer_from`](PeerIp::peer_from) says. A
/// request without one is refused with 500 (INTERNAL), and an error in the log says how to mend
/// that, unless [`or_reject`](PeerIp::or_reject) or [`or_skip`](PeerIp::or_skip) says otherwise.
///
/// Of an IPv6 address the first 64 bits count, since a client may choose the others; an IPv4
/// address that is mapped into IPv6 is the IPv4 address. The key is the address, or its network:
/// `192.0.2.1`, `2001:db8::/64`.
///
/// Headers are not believed. A request with `X-Forwarded-For` or `Forwarded` is counted in
/// `limiter_forwarded_unread_total` (feature `metrics` of `limiter-core`) and warned of in the log,
/// at most once in ten seconds: maybe there is a proxy, and its clients share one budget.
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

/// Finds the key in the connection. Made by [`peer_ip`].
#[derive(Clone, Debug)]
#[must_use = "an extractor is to be given to `RateLimitLayer::key`"]
pub struct PeerIp {
    connection: Connection,
    prefixes: Prefixes,
    missing: Missing,
}

impl PeerIp {
    pub(super) fn prefixes(&self) -> Prefixes {
        self.prefixes
    }

    /// How many leading bits of an IPv6 address make the key. Default: 64. Providers give many
    /// customers a /56 or a /48, from which one of them has as many budgets as there are /64s in
    /// it.
    ///
    /// # Panics
    ///
    /// When there are none, or more than 128.
    #[track_caller]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self {
            prefixes: self.prefixes.with_v6(bits),
            ..self
        }
    }

    /// How many leading bits of an IPv4 address make the key. Default: 32, all.
    ///
    /// # Panics
    ///
    /// When there are none, or more than 32.
    #[track_caller]
    pub fn ipv4_prefix(self, bits: u8) -> Self {
        Self {
            prefixes: self.prefixes.with_v4(bits),
            ..self
        }
    }

    /// Where the peer's address is: for servers that tell it in a type of their own. Default: the
    /// extensions that are named at [`peer_ip`].
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

    /// ResponseConfig a request without an address with this status or refusal. Default: 500.
    pub fn or_reject(self, refusal: impl Into<KeyRejection>) -> Self {
        Self {
            missing: Missing::Refuse(refusal.into()),
            ..self
        }
    }

    /// Lets a request without an address pass, unlimited and uncounted, as those that come over a
    /// Unix socket. Default: it is refused.
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
            None => self.missing.answer(unknown_peer),
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
