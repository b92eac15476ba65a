//! An address as a key: the network whose addresses a client can choose.
//!
//! A client that chooses among many addresses must not have a budget for each of them. The address
//! is truncated to a prefix, 64 bits for IPv6 by default, and an IPv4 address that is mapped into
//! IPv6 or translated by a NAT64 is converted first. The text of the network is written into a
//! buffer on the stack.
//!
//! Invariant: all addresses of a network have one text. Tests: below, and
//! `key_list_matches_clients_by_network` in `tests/http/keys.rs`.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use limiter_core::__private::KeyPrefixes;
use limiter_core::Key;

/// The number of leading bits of an address that identify a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefixes {
    /// 1 to 32.
    v4: u8,
    /// 1 to 128.
    v6: u8,
}

/// An IPv6 subscriber receives a /64 at least and can take any address of it at any time.
impl Default for Prefixes {
    fn default() -> Self {
        Self { v4: 32, v6: 64 }
    }
}

impl Prefixes {
    #[track_caller]
    pub(super) fn with_v4(self, bits: u8) -> Self {
        assert!(
            (1..=32).contains(&bits),
            "an IPv4 prefix has 1 to 32 bits, not {bits}"
        );
        Self { v4: bits, ..self }
    }

    #[track_caller]
    pub(super) fn with_v6(self, bits: u8) -> Self {
        assert!(
            (1..=128).contains(&bits),
            "an IPv6 prefix has 1 to 128 bits, not {bits}"
        );
        Self { v6: bits, ..self }
    }

    /// Returns the prefix lengths, for the limiter's verification of key lists.
    pub(crate) fn lengths(self) -> KeyPrefixes {
        KeyPrefixes {
            ipv4: self.v4,
            ipv6: self.v6,
        }
    }

    /// `192.0.2.1`, `192.0.2.0/24`, `2001:db8::/64`: one text for all addresses of a network.
    pub(super) fn key(self, address: IpAddr) -> Key<'static> {
        let (network, bits, all) = match untranslated(address) {
            IpAddr::V4(address) => (IpAddr::V4(within_v4(address, self.v4)), self.v4, 32),
            IpAddr::V6(address) => (IpAddr::V6(within_v6(address, self.v6)), self.v6, 128),
        };
        // The longest text: eight groups of four digits, seven colons, and the prefix.
        let mut text = [0; 48];
        let mut free = text.as_mut_slice();
        // A longer text would be truncated; no network is longer.
        let _ = write!(free, "{network}");
        if bits < all {
            let _ = write!(free, "/{bits}");
        }
        let length = 48 - free.len();
        Key::from(text.get(..length).unwrap_or(&text)).into_owned()
    }
}

/// Returns the IPv4 address that is mapped into IPv6, or that a NAT64 has translated (RFC 6052):
/// all IPv4 clients of a service behind a NAT64 have addresses of one /96.
fn untranslated(address: IpAddr) -> IpAddr {
    const NAT64: u128 = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0).to_bits();
    match address.to_canonical() {
        IpAddr::V6(address) if address.to_bits() & !u128::from(u32::MAX) == NAT64 => {
            let [.., a, b, c, d] = address.octets();
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        other => other,
    }
}

fn within_v4(address: Ipv4Addr, bits: u8) -> Ipv4Addr {
    let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
    Ipv4Addr::from_bits(address.to_bits() & mask)
}

fn within_v6(address: Ipv6Addr, bits: u8) -> Ipv6Addr {
    let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
    Ipv6Addr::from_bits(address.to_bits() & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_truncated_to_prefix_and_canonical() {
        let default = Prefixes::default();
        for (prefixes, address, key) in [
            (default, "192.0.2.1", "192.0.2.1"),
            (default, "::ffff:192.0.2.1", "192.0.2.1"),
            (default, "2001:db8::1", "2001:db8::/64"),
            (default, "2001:0DB8:0:0:ffff:ffff:ffff:ffff", "2001:db8::/64"),
            (default, "2001:db8:0:1::1", "2001:db8:0:1::/64"),
            (default.with_v6(56), "2001:db8:0:1ff::1", "2001:db8:0:100::/56"),
            (default.with_v6(1), "2001:db8::1", "::/1"),
            (default.with_v6(128), "2001:db8::1", "2001:db8::1"),
            (
                default.with_v6(127),
                "1111:2222:3333:4444:5555:6666:7777:8889",
                "1111:2222:3333:4444:5555:6666:7777:8888/127",
            ),
            (default.with_v4(24), "192.0.2.255", "192.0.2.0/24"),
            (default.with_v4(24), "::ffff:192.0.2.255", "192.0.2.0/24"),
            (default.with_v4(1), "192.0.2.255", "128.0.0.0/1"),
            (default, "64:ff9b::192.0.2.1", "192.0.2.1"),
            (default.with_v4(24), "64:ff9b::192.0.2.255", "192.0.2.0/24"),
            (default, "64:ff9b:0:1::192.0.2.1", "64:ff9b:0:1::/64"),
            (default, "64:ff9b:1::192.0.2.1", "64:ff9b:1::/64"),
        ] {
            let address = address.parse();
            assert_eq!(address.map(|address| prefixes.key(address)), Ok(Key::from(key)));
        }
    }

    #[test]
    #[should_panic(expected = "an IPv6 prefix has 1 to 128 bits, not 0")]
    fn prefix_of_zero_bits_is_rejected() {
        let _ = Prefixes::default().with_v6(0);
    }

    #[test]
    #[should_panic(expected = "an IPv4 prefix has 1 to 32 bits, not 33")]
    fn prefix_longer_than_address_is_rejected() {
        let _ = Prefixes::default().with_v4(33);
    }
}
