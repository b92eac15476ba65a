//! Which proxies are believed, and so whose address a client's is. Pure.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::ip_net::IpNet;

/// Which proxies are believed: made by [`hops`](Self::hops) or [`networks`](Self::networks), for
/// [`client_ip`](super::client_ip()).
#[derive(Clone, Debug, Hash)]
#[must_use = "it is to be given to `key::client_ip`"]
pub struct TrustedProxies(Kind);

#[derive(Clone, Debug, Hash)]
enum Kind {
    Hops(u8),
    Networks(Arc<[IpNet]>),
}

impl TrustedProxies {
    /// Believes so many proxies, all of which every request passes: 1 for a load balancer in front
    /// of the server, 2 for a content network in front of that.
    ///
    /// The client is whom the farthest of them names: the element at this place, counted from the
    /// right. With 0 it is the peer, and the header is not read.
    ///
    /// The server must be reached through these proxies only: who gets around one of them names
    /// itself what it likes. Where the proxies' addresses are known, [`networks`](Self::networks)
    /// also asks who the peer is.
    pub fn hops(proxies: u8) -> Self {
        Self(Kind::Hops(proxies))
    }

    /// Believes the proxies at these addresses, or in these networks.
    ///
    /// The client is the first address that is not one of theirs, read from the peer and then from
    /// the right. A peer that is no proxy is the client itself, whatever its headers say. Where all
    /// are proxies, the farthest is the client: it asks on its own account, as load balancers do
    /// that look after health.
    ///
    /// Name the proxies, and no network in which there are clients as well: they would be taken for
    /// proxies, and so could name themselves what they like.
    ///
    /// ```
    /// use limiter_tower::key;
    ///
    /// let one = key::client_ip(key::TrustedProxies::networks(["127.0.0.1".parse()?]));
    /// let networks = key::client_ip(key::TrustedProxies::networks(["10.0.7.0/24".parse()?, "2001:db8:7::/48".parse()?]));
    ///
    /// let configured = "10.0.7.1, 10.0.8.0/24"; // of the environment, say
    /// let proxies: Vec<key::IpNet> = configured.split(',').map(|proxy| proxy.trim().parse()).collect::<Result<_, _>>()?;
    /// let by_client = key::client_ip(key::TrustedProxies::networks(proxies));
    /// # Ok::<(), limiter_core::ConfigError>(())
    /// ```
    ///
    /// An [`IpAddr`], or the `IpNet` of the crate `ipnet`, becomes one by `into()`.
    pub fn networks(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self(Kind::Networks(networks.into_iter().collect()))
    }
}

/// Why nobody knows who the client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum UnknownClient {
    /// The server does not tell who has connected.
    Peer,
    /// Fewer proxies have named somebody than the request should have passed.
    TooFew,
    /// The proxy whose word counts has named nobody.
    Unnamed,
    /// More proxies than anybody has.
    TooMany,
}

/// A request passes no more proxies than this.
const MOST_PROXIES: usize = 64;

impl TrustedProxies {
    /// The client's address, by the peer's, and those that the proxies name, the nearest first.
    pub(crate) fn client(
        &self,
        peer: impl FnOnce() -> Option<IpAddr>,
        mut named: impl Iterator<Item = Option<IpAddr>>,
    ) -> Result<IpAddr, UnknownClient> {
        match &self.0 {
            Kind::Hops(proxies) => match proxies.checked_sub(1) {
                None => peer().ok_or(UnknownClient::Peer),
                Some(nearer) => {
                    let farthest = named.nth(usize::from(nearer)).ok_or(UnknownClient::TooFew)?;
                    farthest.ok_or(UnknownClient::Unnamed)
                }
            },
            Kind::Networks(networks) => {
                let is_proxy = |address: &IpAddr| networks.iter().any(|network| network.contains(address));
                let mut client = peer().ok_or(UnknownClient::Peer)?;
                for _ in 0..=MOST_PROXIES {
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
            Self::Peer => "the server does not tell the peer's address",
            Self::TooFew => "the header names fewer addresses than there should be proxies",
            Self::Unnamed => "a trusted proxy names no address",
            Self::TooMany => "the header names more proxies than are followed",
        })
    }
}
