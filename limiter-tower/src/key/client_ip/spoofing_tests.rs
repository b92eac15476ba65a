//! Spoofed headers: a client can neither choose its key nor use the key of another client.
//!
//! Tests: below, `spoofing_tests/arbitrary.rs` and `spoofing_tests/forwarded.rs`, for the modules
//! `key/client_ip.rs` and `key/forwarded.rs`.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test ends that way")]

mod arbitrary;
mod forwarded;

use std::net::{IpAddr, SocketAddr};

use http::{HeaderValue, Request};
use limiter_core::Key;

use super::super::{ClientIp, Extraction, KeyExtractor, TrustedProxies, client_ip};

/// A request with this peer and these header lines.
fn request(peer: Option<&str>, lines: &[(&str, &[u8])]) -> Request<()> {
    let mut request = Request::new(());
    for (name, line) in lines {
        let name = http::HeaderName::try_from(*name).unwrap();
        let line = HeaderValue::from_bytes(line).unwrap();
        request.headers_mut().append(name, line);
    }
    if let Some(peer) = peer {
        let peer: IpAddr = peer.parse().unwrap();
        request.extensions_mut().insert(SocketAddr::new(peer, 49_152));
    }
    request
}

/// The key, as text, or the status of a rejection.
fn answer(extractor: &ClientIp, request: &Request<()>) -> Result<Key<'static>, u16> {
    match extractor.extract(request) {
        Extraction::Key(key) => Ok(key.into_owned()),
        Extraction::Reject(rejection) => Err(rejection.status().as_u16()),
        other => panic!("{other:?}"),
    }
}

fn proxies() -> ClientIp {
    let networks = ["10.0.7.0/24", "2001:db8:7::/48", "::ffff:172.16.0.0/108"];
    client_ip(TrustedProxies::networks(
        networks.map(|network| network.parse().unwrap()),
    ))
}

/// The extractor that rejects unknown clients, so that a table shows where one is unknown.
fn strict(extractor: ClientIp) -> ClientIp {
    extractor.or_reject(400)
}

const X: &str = "x-forwarded-for";
const F: &str = "forwarded";
/// A network that names itself, and that every test's client would like to be.
const VICTIM: &str = "203.0.113.9";

/// Rows: peer, lines, and the key or the status.
type Row<'a> = (Option<&'a str>, &'a [(&'a str, &'a [u8])], Result<&'a str, u16>);

#[track_caller]
fn assert_keys(extractor: &ClientIp, rows: &[Row<'_>]) {
    for (peer, lines, expected) in rows {
        assert_eq!(
            answer(extractor, &request(*peer, lines)),
            expected.map(|key| Key::from(key).into_owned()),
            "from {peer:?}: {:?}",
            lines
                .iter()
                .map(|(name, line)| (name, String::from_utf8_lossy(line)))
                .collect::<Vec<_>>()
        );
    }
}

const PROXY: Option<&str> = Some("10.0.7.1");

#[test]
fn last_element_is_client_with_one_hop() {
    assert_keys(
        &strict(client_ip(TrustedProxies::hops(1))),
        &[
            // Honest.
            (PROXY, &[(X, b"192.0.2.1")], Ok("192.0.2.1")),
            (None, &[(X, b"192.0.2.1")], Ok("192.0.2.1")),
            (PROXY, &[(X, b"\t192.0.2.1  ")], Ok("192.0.2.1")),
            (PROXY, &[(X, b"2001:db8::1")], Ok("2001:db8::/64")),
            (PROXY, &[(X, b"192.0.2.1:4711")], Ok("192.0.2.1")),
            (PROXY, &[(X, b"[2001:db8::1]:4711")], Ok("2001:db8::/64")),
            (PROXY, &[(X, b"[2001:db8::1]")], Ok("2001:db8::/64")),
            (PROXY, &[(X, b"::ffff:192.0.2.1")], Ok("192.0.2.1")),
            (PROXY, &[(X, b"::FFFF:C000:0201")], Ok("192.0.2.1")),
            (PROXY, &[(X, b"[::ffff:192.0.2.1]:1")], Ok("192.0.2.1")),
            (PROXY, &[(X, b"fe80::1%eth0")], Ok("fe80::/64")),
            (PROXY, &[(X, b"[fe80::1%25eth0]:80")], Ok("fe80::/64")),
            (PROXY, &[(X, b"[fe80::1%2]:80")], Ok("fe80::/64")),
            // Spoofed: the elements to the left are the client's.
            (PROXY, &[(X, b"203.0.113.9, 192.0.2.1")], Ok("192.0.2.1")),
            (PROXY, &[(X, b"203.0.113.9,192.0.2.1")], Ok("192.0.2.1")),
            (PROXY, &[(X, b",,, ,192.0.2.1")], Ok("192.0.2.1")),
            (PROXY, &[(X, b"\"203.0.113.9, 192.0.2.1")], Ok("192.0.2.1")),
            (PROXY, &[(X, b"\xff\xfe, 192.0.2.1")], Ok("192.0.2.1")),
            (PROXY, &[(X, b"203.0.113.9"), (X, b"192.0.2.1")], Ok("192.0.2.1")),
            (
                PROXY,
                &[(X, b"a"), (X, b""), (X, b"203.0.113.9, 192.0.2.1")],
                Ok("192.0.2.1"),
            ),
            (
                PROXY,
                &[(X, b"192.0.2.1"), (F, b"for=203.0.113.9")],
                Ok("192.0.2.1"),
            ),
            (
                PROXY,
                &[(F, b"for=203.0.113.9"), (X, b"192.0.2.1")],
                Ok("192.0.2.1"),
            ),
            (
                PROXY,
                &[("x-real-ip", b"203.0.113.9"), (X, b"192.0.2.1")],
                Ok("192.0.2.1"),
            ),
            // No header, the other header, an empty one.
            (PROXY, &[], Err(400)),
            (PROXY, &[(F, b"for=203.0.113.9")], Err(400)),
            (PROXY, &[(X, b"")], Err(400)),
            // A proxy that names no client: an element of the client is never used.
            (PROXY, &[(X, b"203.0.113.9, unknown")], Err(400)),
            (PROXY, &[(X, b"203.0.113.9, _hidden")], Err(400)),
            (PROXY, &[(X, b"203.0.113.9,")], Err(400)),
            (PROXY, &[(X, b"203.0.113.9"), (X, b" ")], Err(400)),
            (PROXY, &[(X, b"203.0.113.9, unix:")], Err(400)),
            (PROXY, &[(X, b"203.0.113.9, 192.0.2.1\xa0")], Err(400)),
            (PROXY, &[(X, b"203.0.113.9, \xd9\xa1.0.0.1")], Err(400)),
            // Malformed addresses.
            (PROXY, &[(X, b"192.0.2")], Err(400)),
            (PROXY, &[(X, b"192.0.2.256")], Err(400)),
            (PROXY, &[(X, b"192.0.2.01")], Err(400)),
            (PROXY, &[(X, b"0xC0.0.2.1")], Err(400)),
            (PROXY, &[(X, b"3221225985")], Err(400)),
            (PROXY, &[(X, b"192.0.2.1 203.0.113.9")], Err(400)),
            (PROXY, &[(X, b"192.0.2.1;203.0.113.9")], Err(400)),
            (PROXY, &[(X, b"192.0.2.1:")], Err(400)),
            (PROXY, &[(X, b"192.0.2.1:port")], Err(400)),
            (PROXY, &[(X, b"192.0.2.1:123456")], Err(400)),
            (PROXY, &[(X, b"192.0.2.1:80:80")], Err(400)),
            (PROXY, &[(X, b"[192.0.2.1]")], Err(400)),
            (PROXY, &[(X, b"192.0.2.1%eth0")], Err(400)),
            (PROXY, &[(X, b"[2001:db8::1")], Err(400)),
            (PROXY, &[(X, b"2001:db8::1]")], Err(400)),
            (PROXY, &[(X, b"[2001:db8::1]80")], Err(400)),
            (PROXY, &[(X, b"[2001:db8::1]:")], Err(400)),
            (PROXY, &[(X, b"2001:db8::1%")], Err(400)),
            (PROXY, &[(X, b"2001:db8:::1")], Err(400)),
            (PROXY, &[(X, b"\"192.0.2.1\"")], Err(400)),
            (PROXY, &[(X, b"for=192.0.2.1")], Err(400)),
            (PROXY, &[(X, b"example.com")], Err(400)),
        ],
    );
}

#[test]
fn element_at_hop_count_is_client() {
    let two = strict(client_ip(TrustedProxies::hops(2)));
    assert_keys(
        &two,
        &[
            (PROXY, &[(X, b"192.0.2.1, 10.0.7.2")], Ok("192.0.2.1")),
            (
                PROXY,
                &[(X, b"203.0.113.9, 192.0.2.1, 10.0.7.2")],
                Ok("192.0.2.1"),
            ),
            (
                PROXY,
                &[(X, b"203.0.113.9, 192.0.2.1"), (X, b"10.0.7.2")],
                Ok("192.0.2.1"),
            ),
            (
                PROXY,
                &[(X, b"203.0.113.9"), (X, b"192.0.2.1, 10.0.7.2")],
                Ok("192.0.2.1"),
            ),
            // The element of the nearer proxy need not be an address: only its position counts.
            (PROXY, &[(X, b"203.0.113.9, 192.0.2.1, unknown")], Ok("192.0.2.1")),
            (PROXY, &[(X, b"203.0.113.9, 192.0.2.1,")], Ok("192.0.2.1")),
            // Fewer than there should be: the request came around one, or there are fewer.
            (PROXY, &[(X, b"203.0.113.9")], Err(400)),
            (PROXY, &[(X, b"192.0.2.1:1")], Err(400)),
            (PROXY, &[], Err(400)),
            (PROXY, &[(X, b"203.0.113.9, , 10.0.7.2")], Err(400)),
        ],
    );
    let none = client_ip(TrustedProxies::hops(0));
    assert_keys(
        &none,
        &[
            (Some("192.0.2.1"), &[(X, b"203.0.113.9")], Ok("192.0.2.1")),
            (Some("::ffff:192.0.2.1"), &[], Ok("192.0.2.1")),
            (Some("2001:db8::7"), &[], Ok("2001:db8::/64")),
            (None, &[(X, b"203.0.113.9")], Err(500)),
        ],
    );
    let all = strict(client_ip(TrustedProxies::hops(u8::MAX)));
    let many = [VICTIM; 255].join(",");
    let one_less = [VICTIM; 254].join(",");
    assert_keys(
        &all,
        &[
            (PROXY, &[(X, many.as_bytes())], Ok(VICTIM)),
            (PROXY, &[(X, one_less.as_bytes())], Err(400)),
        ],
    );
}

#[test]
fn first_address_outside_networks_is_the_client() {
    let many = |count| ["10.0.7.9"; 70].get(..count).unwrap().join(",");
    assert_keys(
        &strict(proxies()),
        &[
            // The peer is no proxy: it is the client.
            (Some("192.0.2.1"), &[(X, b"203.0.113.9")], Ok("192.0.2.1")),
            (
                Some("192.0.2.1"),
                &[(X, b"203.0.113.9, 10.0.7.1")],
                Ok("192.0.2.1"),
            ),
            (Some("192.0.2.1"), &[(X, b"unknown")], Ok("192.0.2.1")),
            (Some("10.0.8.1"), &[(X, b"203.0.113.9")], Ok("10.0.8.1")),
            (
                Some("2001:db8:8::1"),
                &[(X, b"203.0.113.9")],
                Ok("2001:db8:8::/64"),
            ),
            // One proxy, and two.
            (PROXY, &[(X, b"192.0.2.1")], Ok("192.0.2.1")),
            (Some("::ffff:10.0.7.1"), &[(X, b"192.0.2.1")], Ok("192.0.2.1")),
            (Some("172.16.0.1"), &[(X, b"192.0.2.1")], Ok("192.0.2.1")),
            (Some("2001:db8:7::1"), &[(X, b"192.0.2.1")], Ok("192.0.2.1")),
            (PROXY, &[(X, b"192.0.2.1, 10.0.7.2")], Ok("192.0.2.1")),
            (
                PROXY,
                &[(X, b"192.0.2.1, ::ffff:10.0.7.2, [2001:db8:7::2]:80")],
                Ok("192.0.2.1"),
            ),
            // Forged.
            (PROXY, &[(X, b"203.0.113.9, 192.0.2.1")], Ok("192.0.2.1")),
            (
                PROXY,
                &[(X, b"203.0.113.9, 10.0.7.3, 192.0.2.1")],
                Ok("192.0.2.1"),
            ),
            (
                PROXY,
                &[(X, b"203.0.113.9, 192.0.2.1, 10.0.7.2")],
                Ok("192.0.2.1"),
            ),
            (
                PROXY,
                &[(X, b"203.0.113.9"), (X, b"192.0.2.1"), (X, b"10.0.7.2")],
                Ok("192.0.2.1"),
            ),
            (
                PROXY,
                &[(X, b"\xff"), (X, b"192.0.2.1"), (F, b"for=203.0.113.9")],
                Ok("192.0.2.1"),
            ),
            // Only proxies.
            (PROXY, &[], Ok("10.0.7.1")),
            (PROXY, &[(F, b"for=203.0.113.9")], Ok("10.0.7.1")),
            (PROXY, &[(X, b"10.0.7.3, 10.0.7.2")], Ok("10.0.7.3")),
            // A trusted proxy that names no client.
            (PROXY, &[(X, b"203.0.113.9, unknown")], Err(400)),
            (PROXY, &[(X, b"203.0.113.9, _x, 10.0.7.2")], Err(400)),
            (PROXY, &[(X, b"203.0.113.9, , 10.0.7.2")], Err(400)),
            (PROXY, &[(X, b"")], Err(400)),
            // No peer.
            (None, &[(X, b"203.0.113.9")], Err(400)),
            // A walk ends.
            (PROXY, &[(X, many(64).as_bytes())], Ok("10.0.7.9")),
            (PROXY, &[(X, many(65).as_bytes())], Err(400)),
        ],
    );
    assert_keys(
        &client_ip(TrustedProxies::networks([])),
        &[(PROXY, &[(X, b"203.0.113.9")], Ok("10.0.7.1"))],
    );
}

#[test]
fn header_and_rejection_are_configurable() {
    let real_ip = client_ip(TrustedProxies::hops(1)).from_header("X-Real-IP");
    assert_keys(
        &real_ip,
        &[(
            PROXY,
            &[("x-real-ip", b"192.0.2.1"), (X, b"203.0.113.9")],
            Ok("192.0.2.1"),
        )],
    );
    assert_keys(
        &client_ip(TrustedProxies::hops(1)).or_peer_ip(),
        &[
            (PROXY, &[(X, b"203.0.113.9, unknown")], Ok("10.0.7.1")),
            (PROXY, &[], Ok("10.0.7.1")),
            (None, &[], Err(400)),
        ],
    );
    assert_keys(
        &client_ip(TrustedProxies::hops(1)).or_reject(403),
        &[(PROXY, &[(X, b"unknown")], Err(403)), (None, &[], Err(403))],
    );
    let skipping = client_ip(TrustedProxies::hops(1)).or_skip();
    assert_eq!(skipping.extract(&request(PROXY, &[])), Extraction::Skip);
    assert_keys(
        &client_ip(TrustedProxies::hops(1)).ipv6_prefix(48).ipv4_prefix(16),
        &[
            (PROXY, &[(X, b"2001:db8:1:2::3")], Ok("2001:db8:1::/48")),
            (PROXY, &[(X, b"192.0.2.1")], Ok("192.0.0.0/16")),
        ],
    );
}

#[test]
fn unknown_client_is_limited_by_the_peer_by_default() {
    let elements: [&[u8]; 7] = [
        b"unknown",
        b"_hidden",
        b"",
        b" ",
        b"for=unknown",
        b"for=_hidden",
        b"for=\"\"",
    ];
    for element in elements {
        for victim in [&b""[..], b"203.0.113.9, ", b"for=203.0.113.9, "] {
            let line = [victim, element].concat();
            let rows: &[(&str, &[u8])] = &[(X, &line), (F, &line)];
            for extractor in [client_ip(TrustedProxies::hops(1)), proxies()] {
                for extractor in [extractor.clone(), extractor.clone().or_peer_ip()] {
                    let row = (PROXY, rows, Ok("10.0.7.1"));
                    assert_keys(&extractor.clone().forwarded(), &[row]);
                    assert_keys(&extractor, &[row]);
                }
                assert_keys(&strict(extractor.clone()), &[(PROXY, rows, Err(400))]);
                assert_keys(&strict(extractor.forwarded()), &[(PROXY, rows, Err(400))]);
            }
        }
    }
    // The request bypassed the proxy.
    assert_keys(
        &client_ip(TrustedProxies::hops(1)),
        &[(Some("192.0.2.1"), &[], Ok("192.0.2.1")), (None, &[], Err(400))],
    );
    assert_keys(&client_ip(TrustedProxies::hops(0)), &[(None, &[], Err(500))]);
    assert_keys(&proxies(), &[(None, &[(X, b"203.0.113.9")], Err(500))]);
}
