//! The proxies whose `X-Forwarded-*` headers are read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::http::{HeaderMap, Request};
use ipnet::{IpNet, Ipv6Net};
use limiter_core::Key;
use limiter_tower::key::{self, ClientIp, Extraction, KeyExtractor as _, TrustedProxies};

/// The header in which proxies name the address of their client.
pub(crate) const FORWARDED_FOR: &str = "x-forwarded-for";

/// The configured proxies.
#[derive(Clone, Debug)]
pub struct ForwardingProxies {
    networks: Vec<IpNet>,
    client_ip: ClientIp,
    client_ip_or_peer: ClientIp,
}

impl ForwardingProxies {
    /// Proxies at these addresses and in these networks.
    #[must_use]
    pub fn new(networks: impl IntoIterator<Item = key::IpNet>) -> Self {
        let networks: Vec<key::IpNet> = networks.into_iter().collect();
        let client_ip = || key::client_ip(TrustedProxies::networks(networks.iter().copied()));
        Self {
            client_ip: client_ip().or_reject(400),
            client_ip_or_peer: client_ip().or_peer_ip(),
            networks: networks.into_iter().map(IpNet::from).collect(),
        }
    }

    /// Returns whether the headers of a peer are read.
    #[must_use]
    pub fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.networks.iter().any(|network| network.contains(&peer))
    }

    /// Returns the address of the client that sent these headers, as a key: the address that a
    /// trusted proxy names, or else that of the peer. IPv6: the first 64 bits.
    #[must_use]
    pub fn client_of(&self, headers: &HeaderMap, peer: SocketAddr) -> Key<'static> {
        let mut request = Request::new(());
        for line in headers.get_all(FORWARDED_FOR) {
            request.headers_mut().append(FORWARDED_FOR, line.clone());
        }
        request.extensions_mut().insert(peer);
        match self.client_ip_or_peer.extract(&request) {
            Extraction::Key(key) => key.into_owned(),
            // The peer is known, so the extraction returns a key.
            _ => Key::from(peer.ip().to_string()),
        }
    }

    /// Returns the address that [`client_ip`](Self::client_ip) finds in these headers, as a text.
    /// IPv6: the network of the first 64 bits.
    pub(crate) fn client_text(&self, headers: &HeaderMap) -> Option<String> {
        let lines = headers.get_all(FORWARDED_FOR).iter().rev();
        let entries = lines.flat_map(|line| line.to_str().unwrap_or_default().rsplit(','));
        let mut addresses = entries.map(|entry| entry.trim().parse::<IpAddr>().ok());
        let client = addresses.find(|address| address.is_none_or(|address| !self.trusts(address)));
        Some(match client??.to_canonical() {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => match translated(address) {
                Some(address) => address.to_string(),
                None => Ipv6Net::new(address, 64).ok()?.trunc().to_string(),
            },
        })
    }

    /// Finds the client of a request from a trusted peer.
    pub fn client_ip(&self) -> &ClientIp {
        &self.client_ip
    }
}

/// Returns the IPv4 address that a NAT64 has translated (RFC 6052): the extractor has it as key.
fn translated(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let (network, address) = (address.to_bits() >> 32, address.octets());
    let [.., a, b, c, d] = address;
    (network == 0x0064_ff9b << 64).then(|| Ipv4Addr::new(a, b, c, d))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn client(peer: &str, forwarded: &[&'static str]) -> String {
        let proxies = ForwardingProxies::new(["10.0.7.0/24".parse().unwrap()]);
        let mut headers = HeaderMap::new();
        for line in forwarded {
            headers.append(FORWARDED_FOR, HeaderValue::from_static(line));
        }
        let peer = SocketAddr::new(peer.parse().unwrap(), 1);
        format!("{:?}", proxies.client_of(&headers, peer))
    }

    #[test]
    fn only_trusted_proxies_name_the_client() {
        let (ann, peer) = (client("192.0.2.1", &[]), client("10.0.7.9", &[]));
        assert!(ann.contains("192.0.2.1"), "{ann}");
        assert_eq!(client("10.0.7.9", &["192.0.2.1"]), ann);
        assert_eq!(client("10.0.7.9", &["203.0.113.5, 192.0.2.1"]), ann);
        assert_eq!(client("10.0.7.9", &["203.0.113.5", "192.0.2.1"]), ann);
        assert_eq!(client("192.0.2.1", &["203.0.113.5"]), ann);
        assert_eq!(client("10.0.7.9", &["unknown"]), peer);
        assert_eq!(
            client("10.0.7.9", &["2001:db8::1"]),
            client("10.0.7.9", &["2001:db8::2"])
        );
    }

    #[test]
    fn text_of_a_client_denotes_its_key() {
        let proxies = ForwardingProxies::new(["10.0.7.0/24".parse().unwrap()]);
        let peer = SocketAddr::new("10.0.7.9".parse().unwrap(), 1);
        for (forwarded, text) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("64:ff9b::192.0.2.1", "192.0.2.1"),
            ("64:ff9b:1::192.0.2.1", "64:ff9b:1::/64"),
            ("2001:db8::1", "2001:db8::/64"),
        ] {
            let mut headers = HeaderMap::new();
            headers.append(FORWARDED_FOR, HeaderValue::from_static(forwarded));
            let found = proxies.client_text(&headers);
            assert_eq!(found.as_deref(), Some(text), "{forwarded}");
            let key = proxies.client_of(&headers, peer);
            assert_eq!(key, Key::from(text), "{forwarded}");
        }
    }
}
