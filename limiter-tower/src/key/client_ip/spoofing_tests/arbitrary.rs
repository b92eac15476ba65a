//! Header lines that proptest chooses cannot change the key.
//!
//! Test: `key_is_client_address_for_arbitrary_headers`, for `X-Forwarded-For` and `Forwarded`, by
//! the number of hops and by networks.

use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{TrustedProxies, client_ip};
use super::{F, PROXY, X, answer, proxies, request};

/// Arbitrary header lines of a client, and a last line to which a proxy may append.
fn anything() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let wild = prop_oneof![
        3 => proptest::sample::select(b",\"\\;= ".to_vec()),
        1 => 0x20..0x7f_u8,
        1 => 0x80..=0xff_u8,
    ];
    let words = prop_oneof![
        vec(wild, 0..12),
        Just(b"for=203.0.113.9".to_vec()),
        Just(b"203.0.113.9".to_vec()),
        Just(b"for=\"".to_vec()),
        Just(b"10.0.7.2".to_vec()),
    ];
    vec(vec(words, 0..4).prop_map(|words| words.join(&b',')), 0..4)
}

/// An address as a proxy may write it.
fn written(address: IpAddr, style: u8, forwarded: bool) -> String {
    let text = match (address, style % 4) {
        (IpAddr::V4(address), 0) => address.to_string(),
        (IpAddr::V4(address), 1) => format!("{address}:4711"),
        (IpAddr::V4(address), 2) => address.to_ipv6_mapped().to_string(),
        (IpAddr::V4(address), _) => format!("[{}]:1", address.to_ipv6_mapped()),
        (IpAddr::V6(address), 0) => address.to_string(),
        (IpAddr::V6(address), 1) => format!("[{address}]:4711"),
        (IpAddr::V6(address), 2) => format!("[{address}]"),
        (IpAddr::V6(address), _) => format!("{address}%eth0"),
    };
    match style / 4 % 3 {
        _ if !forwarded => text,
        0 => format!("for=\"{text}\""),
        1 => format!("proto=https;FOR=\"{text}\" ; host=\"a,\\\"b\""),
        _ => format!("by=_x;for=\"{text}\";"),
    }
}

fn addresses() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<std::net::Ipv4Addr>().prop_map(IpAddr::V4),
        any::<std::net::Ipv6Addr>().prop_map(IpAddr::V6)
    ]
}

proptest! {
    #[test]
    fn key_is_client_address_for_arbitrary_headers(
        sent in anything(),
        client in addresses(),
        nearer in vec(any::<u8>(), 0..3),
        styles in vec(any::<u8>(), 4),
        appends in vec(any::<bool>(), 4),
        forwarded in any::<bool>(),
    ) {
        let canonical = client.to_canonical();
        prop_assume!(!canonical.to_string().starts_with("10.0.7."));
        prop_assume!(!canonical.to_string().starts_with("2001:db8:7:"));
        prop_assume!(!canonical.to_string().starts_with("172."));
        // The farthest proxy names the client, each nearer one the proxy before it.
        let proxies_addresses = nearer.iter().map(|last| IpAddr::from([10, 0, 7, *last]));
        let named: Vec<_> = std::iter::once(client).chain(proxies_addresses).collect();
        let mut lines = sent;
        for ((address, style), append) in named.iter().zip(&styles).zip(&appends) {
            let element = written(*address, *style, forwarded);
            match lines.last_mut() {
                Some(last) if *append => last.extend([b", ", element.as_bytes()].concat()),
                _ => lines.push(element.into_bytes()),
            }
        }
        let header = if forwarded { F } else { X };
        let lines: Vec<_> = lines.iter().map(|line| (header, line.as_slice())).collect();
        let forged = request(PROXY, &lines);

        let by_hops = client_ip(TrustedProxies::hops(u8::try_from(named.len()).unwrap()));
        let expected = answer(&client_ip(TrustedProxies::hops(0)), &request(Some(&client.to_string()), &[]));
        for extractor in [by_hops, proxies()] {
            let extractor = if forwarded { extractor.forwarded() } else { extractor };
            prop_assert_eq!(&answer(&extractor, &forged), &expected);
        }
    }
}
