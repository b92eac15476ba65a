//! Selects the client's address from the addresses that proxies report. Pure.
//!
//! A client can write any address into `X-Forwarded-For` or `Forwarded`, so only addresses written
//! by trusted proxies count. The list is read from its end, either for a fixed number of proxies or
//! while the addresses belong to trusted networks. Invariant: an address that no trusted proxy
//! wrote is never returned. Tests: `client_ip/spoofing_tests.rs`.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::ip_net::IpNet;

/// The trusted proxies, created by [`hops`](Self::hops) or [`networks`](Self::networks), for
/// [`client_ip`](super::client_ip()).
#[derive(Clone, Debug, Hash)]
#[must_use = "pass it to `key::client_ip`"]
pub struct TrustedProxies(ProxyRule);

#[derive(Clone, Debug, Hash)]
enum ProxyRule {
    Hops(u8),
    Networks(Arc<[IpNet]>),
}

impl TrustedProxies {
    /// Trusts a fixed number of proxies that every request passes: 1 for a load balancer in front
    /// of the server, 2 for a content delivery network in front of the load balancer.
    ///
    /// The client is the element at this position, counted from the right. With 0 the client is the
    /// peer, and the header is not read.
    ///
    /// The server must be reachable only through these proxies. A client that bypasses a proxy can
    /// choose its address. If the addresses of the proxies are available, use
    /// [`networks`](Self::networks), which also checks the peer.
    pub fn hops(proxies: u8) -> Self {
        Self(ProxyRule::Hops(proxies))
    }

    /// Trusts the proxies at these addresses or in these networks.
    ///
    /// The client is the first address that does not belong to them, read from the peer and then
    /// from the right. A peer outside of the networks is the client, and its headers are not read.
    /// If all addresses belong to proxies, the client is the farthest proxy, such as a load
    /// balancer that sends health checks.
    ///
    /// The networks must not contain clients: a client inside a trusted network could choose its
    /// address.
    ///
    /// ```
    /// use limiter_tower::key;
    ///
    /// let one = key::client_ip(key::TrustedProxies::networks(["127.0.0.1".parse()?]));
    /// let networks = key::client_ip(key::TrustedProxies::networks(["10.0.7.0/24".parse()?, "2001:db8:7::/48".parse()?]));
    ///
    /// let configured = "10.0.7.1, 10.0.8.0/24"; // for example from the environment
    /// let proxies: Vec<key::IpNet> = configured.split(',').map(|proxy| proxy.trim().parse()).collect::<Result<_, _>>()?;
    /// let by_client = key::client_ip(key::TrustedProxies::networks(proxies));
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    ///
    /// [`IpAddr`] and the `IpNet` of the crate `ipnet` implement `Into<IpNet>`.
    pub fn networks(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self(ProxyRule::Networks(networks.into_iter().collect()))
    }
}

/// The reason for an unknown client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum UnknownClient {
    /// The server does not provide the peer's address.
    Peer,
    /// The list has fewer elements than trusted proxies.
    TooShort,
    /// A trusted proxy wrote no address.
    Unnamed,
    /// The list has more than [`MAX_PROXIES`] trusted proxies.
    TooMany,
}

/// The maximum number of proxies of a request.
const MAX_PROXIES: usize = 64;

impl TrustedProxies {
    /// Returns the client's address. `named` yields the addresses in the header, the nearest first.
    pub(crate) fn client(
        &self,
        peer: impl FnOnce() -> Option<IpAddr>,
        mut named: impl Iterator<Item = Option<IpAddr>>,
    ) -> Result<IpAddr, UnknownClient> {
        match &self.0 {
            ProxyRule::Hops(proxies) => match proxies.checked_sub(1) {
                None => peer().ok_or(UnknownClient::Peer),
                Some(nearer) => {
                    let farthest = named.nth(usize::from(nearer)).ok_or(UnknownClient::TooShort)?;
                    farthest.ok_or(UnknownClient::Unnamed)
                }
            },
            ProxyRule::Networks(networks) => {
                let is_proxy = |address: &IpAddr| networks.iter().any(|network| network.contains(address));
                let mut client = peer().ok_or(UnknownClient::Peer)?;
                for _ in 0..=MAX_PROXIES {
                    if !is_proxy(&client) {
                        return Ok(client);
                    }
                    client = match named.next() {
                        Some(next) => next.ok_or(UnknownClient::Unnamed)?,
                        None => return Ok(client),
                    };
                }
                Err(UnknownClient::TooMany)
            }
        }
    }
}

impl fmt::Display for UnknownClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Peer => "the server does not provide the peer address",
            Self::TooShort => "the header has fewer addresses than trusted proxies",
            Self::Unnamed => "a trusted proxy sent no address",
            Self::TooMany => "the header has too many proxies",
        })
    }
}
