//! Spoofed `Forwarded` headers (RFC 7239).
//!
//! Test: `forwarded_is_read_from_its_end_as_in_rfc_7239`, with the examples of the RFC, elements of
//! a client on the left, and malformed elements.

use super::{F, PROXY, X, assert_keys, proxies, strict};
use crate::key::TrustedProxies;
use crate::key::client_ip;

#[test]
fn forwarded_is_read_from_its_end_as_in_rfc_7239() {
    assert_keys(
        &strict(client_ip(TrustedProxies::hops(1)).forwarded()),
        &[
            // RFC 7239, 4.
            (PROXY, &[(F, b"for=\"_gazonk\"")], Err(400)),
            (
                PROXY,
                &[(F, b"For=\"[2001:db8:cafe::17]:4711\"")],
                Ok("2001:db8:cafe::/64"),
            ),
            (
                PROXY,
                &[(F, b"for=192.0.2.60;proto=http;by=203.0.113.43")],
                Ok("192.0.2.60"),
            ),
            (
                PROXY,
                &[(F, b"for=192.0.2.43, for=198.51.100.17")],
                Ok("198.51.100.17"),
            ),
            (PROXY, &[(F, b"for=\"192.0.2.43:47011\"")], Ok("192.0.2.43")),
            (PROXY, &[(F, b"for=\"192.0.2.43:_port\"")], Ok("192.0.2.43")),
            (PROXY, &[(F, b"for=unknown")], Err(400)),
            // Other positions in the element, empty pairs, blanks, no quotes.
            (
                PROXY,
                &[(F, b"by=203.0.113.43;;proto=http; FOR=192.0.2.1 ;")],
                Ok("192.0.2.1"),
            ),
            (
                PROXY,
                &[(F, b"for=[2001:db8::1]:4711;host=a.b:80")],
                Ok("2001:db8::/64"),
            ),
            (
                PROXY,
                &[(F, b"host=\"a,b;for=203.0.113.9\\\",c\";for=192.0.2.1")],
                Ok("192.0.2.1"),
            ),
            (
                PROXY,
                &[(F, b"for=192.0.2.1;host=\"a, for=203.0.113.9\"")],
                Ok("192.0.2.1"),
            ),
            (PROXY, &[(F, b"for=\"::ffff:192.0.2.1\"")], Ok("192.0.2.1")),
            // Spoofed on the left: unclosed quotes, escapes, further lines.
            (PROXY, &[(F, b"for=203.0.113.9, for=192.0.2.1")], Ok("192.0.2.1")),
            (PROXY, &[(F, b"for=\", for=192.0.2.1")], Ok("192.0.2.1")),
            (
                PROXY,
                &[(F, b"for=\", for=\"[2001:db8::1]:80\"")],
                Ok("2001:db8::/64"),
            ),
            (
                PROXY,
                &[(F, b"for=203.0.113.9;by=\"\\, for=\"192.0.2.1\"")],
                Ok("192.0.2.1"),
            ),
            (
                PROXY,
                &[(F, b"for=\"203.0.113.9"), (F, b"for=\"192.0.2.1\"")],
                Ok("192.0.2.1"),
            ),
            (PROXY, &[(F, b"\xff\"\\"), (F, b"for=192.0.2.1")], Ok("192.0.2.1")),
            (
                PROXY,
                &[(X, b"203.0.113.9"), (F, b"for=192.0.2.1")],
                Ok("192.0.2.1"),
            ),
            // Elements that no proxy writes: an element of the client is never used.
            (PROXY, &[(F, b"for=203.0.113.9, ")], Err(400)),
            (PROXY, &[(F, b"for=203.0.113.9, proto=https")], Err(400)),
            (PROXY, &[(F, b"for=192.0.2.1;for=203.0.113.9")], Err(400)),
            (PROXY, &[(F, b"for=192.0.2.1;host=x;for=203.0.113.9")], Err(400)),
            (PROXY, &[(F, b"for=192.0.2.1;host=\"x")], Err(400)),
            (PROXY, &[(F, b"for=192.0.2.1;host=x y")], Err(400)),
            (PROXY, &[(F, b"for=192.0.2.1;host")], Err(400)),
            (PROXY, &[(F, b"for=192.0.2.1 proto=http")], Err(400)),
            (PROXY, &[(F, b"for=\"192.0.2.1\"x")], Err(400)),
            (PROXY, &[(F, b"for=\"192.0.2\\.1\"")], Err(400)),
            (PROXY, &[(F, b"for=")], Err(400)),
            (PROXY, &[(F, b"for=\"\"")], Err(400)),
            (PROXY, &[(F, b"for =192.0.2.1")], Err(400)),
            (PROXY, &[(F, b"=192.0.2.1;for=192.0.2.1")], Err(400)),
            (PROXY, &[(F, b"192.0.2.1")], Err(400)),
            (PROXY, &[(X, b"203.0.113.9")], Err(400)),
            (PROXY, &[], Err(400)),
        ],
    );
    assert_keys(
        &strict(proxies().forwarded()),
        &[
            (
                PROXY,
                &[(F, b"for=203.0.113.9, for=192.0.2.1, for=\"10.0.7.2:80\"")],
                Ok("192.0.2.1"),
            ),
            (PROXY, &[(F, b"for=203.0.113.9, for=_x, for=10.0.7.2")], Err(400)),
            (Some("192.0.2.1"), &[(F, b"for=203.0.113.9")], Ok("192.0.2.1")),
        ],
    );
}
