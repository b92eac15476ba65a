//! The address of the client behind proxies as the key.
//!
//! A client can write any address into a forwarding header, so an element that a client wrote must
//! not become the key. The extractor passes the elements of the configured header, the nearest
//! first, to `TrustedProxies`, which returns the address that the farthest trusted proxy reports. A
//! request without a usable address has the key of its peer, unless another fallback is set.
//!
//! Invariant: with correctly configured trust, a client can neither choose its key nor use the key
//! of another client. Tests: `spoofing_tests.rs`, and `tests/contract/hostile.rs` for hostile
//! lists.

use std::fmt::Display;
use std::net::IpAddr;

use http::{Extensions, HeaderName, Request, StatusCode, header};
use limiter_core::__private::KeyedLogThrottle;

use super::address::Prefixes;
use super::extraction::{Extraction, KeyRejection};
use super::extractor::KeyExtractor;
use super::forwarded::{Syntax, nearest_first};
use super::header::named;
use super::peer::X_FORWARDED_FOR;
use super::peer_addr::{Connection, unknown_peer};
use super::trusted_proxies::{TrustedProxies, UnknownClient};

/// Limits by the address of the client, as trusted proxies name it in a header: `X-Forwarded-For`,
/// unless [`forwarded`](ClientIp::forwarded) or [`from_header`](ClientIp::from_header) chooses
/// another.
///
/// Each proxy appends the address of its peer to the list, so the list is read from its end, and
/// only as far as the trusted proxies reach: [`TrustedProxies::hops`](super::TrustedProxies::hops)
/// counts proxies, [`networks`](super::TrustedProxies::networks) lists their networks. The elements
/// that the client wrote are never read, so no client can choose its own key or the key of another
/// client.
///
/// | request | result |
/// |---|---|
/// | elements to the left of those of trusted proxies | ignored |
/// | the header that is not configured | ignored; a service behind two kinds of proxies needs two layers |
/// | several lines of the header | one list, in their order |
/// | fewer elements than [`TrustedProxies::hops`](super::TrustedProxies::hops) | unknown client: the request bypassed a proxy, or there are fewer proxies |
/// | no header, with [`TrustedProxies::networks`](super::TrustedProxies::networks) | the peer is the client |
/// | a peer outside of the networks | the peer is the client, its header is not read |
/// | all addresses are those of proxies | the farthest is the client; with more than 64, the client is unknown |
/// | no peer's address, where it is needed | rejected with 500, as by [`peer`](super::peer_ip()) |
/// | an element where a trusted proxy should have named an address: empty, `unknown`, `_hidden`, a name, not ASCII, malformed | unknown client: elements further left are never used, because no trusted proxy wrote them |
/// | `for` missing or repeated in an element of `Forwarded` | the same |
/// | a port, a number or an obfuscated one; brackets; a zone (`fe80::1%eth0`); quotes in `Forwarded` | read, and omitted from the key |
/// | an IPv4 address that is mapped into IPv6 (`::ffff:192.0.2.1`) | the IPv4 address |
/// | a client that a NAT64 has translated (`64:ff9b::192.0.2.1`) | the key of the IPv4 address |
///
/// # Unknown clients
///
/// A legal proxy may hide the client (`for=unknown`, `for=_hidden`, an empty element), so a request
/// of an unknown client is limited by the address of the peer that sent the header. All unknown
/// clients behind one proxy then share one budget. [`or_reject`](ClientIp::or_reject) rejects these
/// requests, [`or_skip`](ClientIp::or_skip) does not limit them, and
/// [`or_peer_ip`](ClientIp::or_peer_ip) states the default. By default the layer also logs a
/// warning, at most once in ten seconds for each reason, header and trust; and it rejects the
/// request with 400 (INVALID_ARGUMENT) if the server does not provide the peer's address.
///
/// Only the first 64 bits of an IPv6 address are used, because a client can choose the others. The
/// key is the address, or its network: `192.0.2.1`, `2001:db8::/64`.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # use std::convert::Infallible;
/// # use std::net::SocketAddr;
/// # use http::{Request, Response};
/// # use limiter_core::{Limiter, ManualClock, Policy};
/// # use limiter_tower::{RateLimitLayer, key};
/// # use tower::{Layer, ServiceExt, service_fn};
/// let limits = Limiter::in_process().clock(&ManualClock::new()).build();
/// let policy = Policy::sliding_window("api").limit(1).window("1m").build()?;
/// // One proxy. If it does not name the client, the peer's address is the key. This is the default;
/// // `.or_reject(400)` rejects such requests instead.
/// let by_client = key::client_ip(key::TrustedProxies::hops(1)).or_peer_ip();
/// let layer = RateLimitLayer::new(&limits, policy).key(by_client);
/// let service = layer.layer(service_fn(
///     async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())),
/// ));
///
/// let forwarded = async |list: &str| {
///     let mut request = Request::builder().header("x-forwarded-for", list).body(()).unwrap();
///     request.extensions_mut().insert(SocketAddr::from(([10, 0, 7, 1], 49_152)));
///     service.clone().oneshot(request).await.unwrap().status()
/// };
/// assert_eq!(forwarded("192.0.2.1").await, 200);
/// assert_eq!(forwarded("192.0.2.2").await, 200);
/// assert_eq!(forwarded("203.0.113.9, 192.0.2.1").await, 429, "the client cannot choose its key");
/// assert_eq!(forwarded("192.0.2.3, unknown").await, 200, "limited as 10.0.7.1, the proxy");
/// assert_eq!(forwarded("192.0.2.4, unknown").await, 429);
/// # Ok::<(), limiter_core::ConfigError>(())
/// # }).unwrap();
/// ```
pub fn client_ip(trust: TrustedProxies) -> ClientIp {
    ClientIp {
        trust,
        header: X_FORWARDED_FOR,
        syntax: Syntax::List,
        connection: Connection::default(),
        prefixes: Prefixes::default(),
        unknown: Fallback::PeerWithWarning,
    }
}

/// Extracts the client's address from the headers of trusted proxies. Created by [`client_ip`].
#[derive(Clone, Debug)]
#[must_use = "pass the extractor to `RateLimitLayer::key`"]
pub struct ClientIp {
    trust: TrustedProxies,
    header: HeaderName,
    syntax: Syntax,
    connection: Connection,
    prefixes: Prefixes,
    unknown: Fallback,
}

/// Handling of requests whose client is unknown.
#[derive(Clone, Debug)]
enum Fallback {
    /// The default: as `Peer`, with a warning, because the trust may be misconfigured.
    PeerWithWarning,
    Peer,
    Refuse(KeyRejection),
    Skip,
}

impl ClientIp {
    pub(super) fn prefixes(&self) -> Prefixes {
        self.prefixes
    }

    /// Reads `Forwarded` of [RFC 7239](https://www.rfc-editor.org/rfc/rfc7239). Default:
    /// `X-Forwarded-For`.
    ///
    /// ```
    /// # use http::Request;
    /// # use limiter_core::Key;
    /// # use limiter_tower::key::{self, Extraction, KeyExtractor};
    /// let by_client = key::client_ip(key::TrustedProxies::hops(1)).forwarded();
    /// let list = r#"for=unknown, for="[2001:db8::17]:4711";proto=https"#;
    /// let request = Request::builder().header("forwarded", list).body(()).unwrap();
    /// assert_eq!(by_client.extract(&request), Extraction::Key(Key::from("2001:db8::/64")));
    /// ```
    pub fn forwarded(self) -> Self {
        Self {
            header: header::FORWARDED,
            syntax: Syntax::Forwarded,
            ..self
        }
    }

    /// Reads another header with a list of addresses in the format of `X-Forwarded-For`, or with
    /// one address: with [`hops(1)`](super::TrustedProxies::hops), a header that the nearest proxy
    /// always overwrites, such as `X-Real-IP` or `CF-Connecting-IP`. Default: `X-Forwarded-For`.
    ///
    /// # Panics
    ///
    /// Panics if `name` is not a valid header name.
    #[track_caller]
    pub fn from_header(self, name: impl TryInto<HeaderName, Error: Display>) -> Self {
        Self {
            header: named(name),
            syntax: Syntax::List,
            ..self
        }
    }

    /// Sets the IPv6 prefix, as [`PeerIp::ipv6_prefix`](super::PeerIp::ipv6_prefix). Default: 64.
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

    /// Sets the IPv4 prefix, as [`PeerIp::ipv4_prefix`](super::PeerIp::ipv4_prefix). Default: 32,
    /// the whole address.
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

    /// Sets the source of the peer's address, as [`PeerIp::peer_from`](super::PeerIp::peer_from).
    pub fn peer_from(self, find: fn(&Extensions) -> Option<IpAddr>) -> Self {
        Self {
            connection: Connection::peer_from(find),
            ..self
        }
    }

    /// Rejects a request of an unknown client with this status or response. Default:
    /// [`or_peer_ip`](Self::or_peer_ip), with a warning in the log.
    pub fn or_reject(self, rejection: impl Into<KeyRejection>) -> Self {
        Self {
            unknown: Fallback::Refuse(rejection.into()),
            ..self
        }
    }

    /// Lets a request of an unknown client pass, unlimited and uncounted. Default:
    /// [`or_peer_ip`](Self::or_peer_ip), with a warning in the log.
    pub fn or_skip(self) -> Self {
        Self {
            unknown: Fallback::Skip,
            ..self
        }
    }

    /// Limits a request of an unknown client by the address of the peer that sent the header: all
    /// unknown clients behind one proxy share one budget. No element of the header is used. This is
    /// the default, here without the warning in the log.
    pub fn or_peer_ip(self) -> Self {
        Self {
            unknown: Fallback::Peer,
            ..self
        }
    }
}

impl<B> KeyExtractor<B> for ClientIp {
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        let peer = || self.connection.peer(request.extensions());
        let lines = request.headers().get_all(&self.header).iter();
        let named = nearest_first(self.syntax, lines.map(|line| line.as_bytes()));
        match self.trust.client(peer, named) {
            Ok(client) => Extraction::Key(self.prefixes.key(client)),
            Err(unknown) => self.unknown(unknown, peer),
        }
    }
}

impl ClientIp {
    #[cold]
    fn unknown(&self, unknown: UnknownClient, peer: impl FnOnce() -> Option<IpAddr>) -> Extraction<'static> {
        match &self.unknown {
            Fallback::Refuse(rejection) => return Extraction::Reject(rejection.clone()),
            Fallback::Skip => return Extraction::Skip,
            Fallback::PeerWithWarning if unknown != UnknownClient::Peer => self.warn(unknown),
            Fallback::PeerWithWarning | Fallback::Peer => {}
        }
        match (peer(), unknown) {
            (Some(peer), _) => Extraction::Key(self.prefixes.key(peer)),
            (None, UnknownClient::Peer) => Extraction::Reject(unknown_peer()),
            (None, _) => Extraction::Reject(KeyRejection::new(
                StatusCode::BAD_REQUEST,
                "the proxies sent no client address",
            )),
        }
    }

    fn warn(&self, unknown: UnknownClient) {
        static LOGGED: KeyedLogThrottle = KeyedLogThrottle::new();
        if LOGGED.is_due(&(&self.header, &self.trust, unknown)) {
            tracing::warn!(
                header = %self.header,
                trust = ?self.trust,
                reason = %unknown,
                "client address missing, limiting by the peer: request bypassed a proxy, trusted proxies are wrong, or a proxy hides clients (then set or_peer_ip or or_reject)"
            );
        }
    }
}

#[cfg(test)]
mod spoofing_tests;
