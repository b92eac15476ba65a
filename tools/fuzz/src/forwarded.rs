//! Forwarding headers: no client input changes the entries that trusted proxies append.

use std::net::IpAddr;

use arbitrary::Arbitrary;
use limiter_tower::fuzzing::Lines;
use limiter_tower::key::TrustedProxies;

/// A client's request, and the elements of the proxies, the farthest first, which names the client.
#[derive(Arbitrary, Debug)]
pub struct Request {
    is_rfc_7239: bool,
    sent: Vec<Vec<u8>>,
    client: Named,
    nearer: Vec<Named>,
    peer: IpAddr,
}

/// An element that a proxy writes.
#[derive(Arbitrary, Debug)]
struct Named {
    address: IpAddr,
    style: u8,
    /// True to append to the last line, false to add a line.
    appends: bool,
}

/// Holds for any request.
pub fn check(request: &Request) {
    let is_rfc_7239 = request.is_rfc_7239;
    let read = |lines: &[Vec<u8>]| Lines { is_rfc_7239, lines }.addresses().collect::<Vec<_>>();

    let before = read(&request.sent);
    let commas = request
        .sent
        .iter()
        .flatten()
        .filter(|byte| **byte == b',')
        .count();
    assert!(before.len() <= commas + request.sent.len());
    for address in before.iter().flatten() {
        assert_eq!(*address, address.to_canonical());
    }

    let proxies = || std::iter::once(&request.client).chain(&request.nearer);
    let mut lines = request.sent.clone();
    for proxy in proxies() {
        let element = proxy.element(is_rfc_7239);
        match lines.last_mut() {
            Some(last) if proxy.appends => last.extend([b", ", element.as_bytes()].concat()),
            _ => lines.push(element.into_bytes()),
        }
    }
    let mut expected: Vec<_> = proxies()
        .map(|proxy| Some(proxy.address.to_canonical()))
        .collect();
    expected.reverse();
    let depth = expected.len();
    expected.extend(before);
    assert_eq!(read(&lines), expected);

    let client = |trust, peer| {
        Lines {
            is_rfc_7239,
            lines: &lines,
        }
        .client(&trust, peer)
    };
    if let Ok(depth) = u8::try_from(depth) {
        let found = client(TrustedProxies::hops(depth), None);
        assert_eq!(found, Some(request.client.address.to_canonical()));
    }
    let peer = request.peer.to_canonical();
    let nearer: Vec<_> = request
        .nearer
        .iter()
        .map(|proxy| proxy.address.to_canonical())
        .collect();
    let networks = nearer.iter().chain([&peer]).map(|address| (*address).into());
    let found = client(TrustedProxies::networks(networks), Some(peer));
    let stranger = request.client.address.to_canonical();
    if nearer.len() < 64 && stranger != peer && !nearer.contains(&stranger) {
        assert_eq!(found, Some(stranger));
    }
    assert_eq!(client(TrustedProxies::networks([]), Some(peer)), Some(peer));
}

impl Named {
    fn element(&self, is_rfc_7239: bool) -> String {
        let text = match (self.address, self.style % 4) {
            (IpAddr::V4(address), 1) => format!("{address}:4711"),
            (IpAddr::V4(address), 2) => address.to_ipv6_mapped().to_string(),
            (IpAddr::V4(address), 3) => format!("[{}]:1", address.to_ipv6_mapped()),
            (IpAddr::V6(address), 1) => format!("[{address}]:_port"),
            (IpAddr::V6(address), 2) => format!("[{address}]"),
            (IpAddr::V6(address), 3) => format!("{address}%eth0"),
            (address, _) => address.to_string(),
        };
        match self.style / 4 % 4 {
            _ if !is_rfc_7239 => text,
            0 => format!("for=\"{text}\""),
            1 => format!("proto=https;FOR=\"{text}\" ; host=\"a,\\\"b\\\\\""),
            2 => format!("by=_x;for={text};"),
            _ => format!("host=\"for=192.0.2.1\";For=\"{text}\""),
        }
    }
}
