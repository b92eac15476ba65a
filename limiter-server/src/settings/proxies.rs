//! The proxies whose `X-Forwarded-*` headers are read.

use std::net::IpAddr;

use ipnet::IpNet;
use limiter_tower::key::{self, ClientIp, TrustedProxies};

/// The configured proxies.
#[derive(Clone, Debug)]
pub struct ForwardingProxies {
    networks: Vec<IpNet>,
    client_ip: ClientIp,
}

impl ForwardingProxies {
    /// Proxies at these addresses and in these networks.
    #[must_use]
    pub fn new(networks: impl IntoIterator<Item = key::IpNet>) -> Self {
        let networks: Vec<key::IpNet> = networks.into_iter().collect();
        Self {
            client_ip: key::client_ip(TrustedProxies::networks(networks.iter().copied())).or_reject(400),
            networks: networks.into_iter().map(IpNet::from).collect(),
        }
    }

    /// Whether the headers of a peer are read.
    #[must_use]
    pub fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.networks.iter().any(|network| network.contains(&peer))
    }

    /// Finds the client of a request from a trusted peer.
    pub fn client_ip(&self) -> &ClientIp {
        &self.client_ip
    }
}
