//! Addresses and networks, as entries of a key list and as keys.
//!
//! A single address is a network whose prefix has all bits. An IPv4 address that is mapped into
//! IPv6 (`::ffff:10.1.2.3`) is the IPv4 address, and a network of such addresses is an IPv4
//! network.
//!
//! Invariant: a network has no bits beyond its prefix. Tests: `key_list/tests.rs`
//! (`network_of_each_length_contains_its_addresses`, `address_matches_in_every_key_form`).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};

/// An address without bits beyond the prefix, and the length of the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub(super) address: IpAddr,
    pub(super) len: u8,
}

/// The reason for a text that is not a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NetworkError {
    /// The text before the slash, or the whole text, is not an address.
    NoAddress,
    /// The prefix is not a number, or is longer than the address.
    Prefix,
    /// The address has bits beyond its prefix.
    HostBits {
        /// The address without these bits.
        network: Network,
        /// The address as it was written.
        host: IpAddr,
    },
}

impl NetworkError {
    /// Returns the expected form.
    pub(super) fn expected(self) -> String {
        match self {
            Self::NoAddress | Self::Prefix => {
                "an address, or a network such as 10.0.0.0/8 or 2001:db8::/32".to_owned()
            }
            Self::HostBits { network, host } => {
                format!("no bits beyond the prefix: `{network}` for the network, or `{host}` for the address")
            }
        }
    }
}

impl Network {
    /// Reads an address or a network. Rejects bits beyond the prefix.
    pub(super) fn parse(text: &str) -> Result<Self, NetworkError> {
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let written = IpAddr::from_str(address).map_err(|_| NetworkError::NoAddress)?;
        let host = written.to_canonical();
        let Some(len) = len else {
            let len = bits_of(host);
            return Ok(Self { address: host, len });
        };
        // `u8::from_str` accepts a plus sign.
        let len = (len.parse().ok()).filter(|bits| !len.starts_with('+') && *bits <= bits_of(written));
        // The first 96 bits of a mapped address only state that it is mapped.
        let len = len.and_then(|len: u8| len.checked_sub(bits_of(written) - bits_of(host)));
        let network = Self::containing(host, len.ok_or(NetworkError::Prefix)?);
        if network.address == host {
            Ok(network)
        } else {
            Err(NetworkError::HostBits { network, host })
        }
    }

    /// Parses the network in an escaped key. A value inside a key has escaped colons.
    pub(crate) fn of_key(text: &str) -> Option<Self> {
        /// The longest text of a network (`len("ffff:…:255.255.255.255/128")` is 49), and 8 spare
        /// bytes.
        const MAX_BYTES: usize = 57;
        // Nearly all keys that are not addresses return here.
        let first = *text.as_bytes().first()?;
        if !(first.is_ascii_hexdigit() || first == b':' || first == b'%') {
            return None;
        }
        if !text.contains('%') {
            return Self::parse_any(text);
        }
        let mut plain = [0_u8; MAX_BYTES];
        let mut output = plain.iter_mut();
        let mut count = 0;
        for (number, piece) in text.split("%3A").enumerate() {
            let colon = (number > 0).then_some(&b':');
            for byte in colon.into_iter().chain(piece.as_bytes()) {
                *output.next()? = *byte;
                count += 1;
            }
        }
        Self::parse_any(std::str::from_utf8(plain.get(..count)?).ok()?)
    }

    /// Returns the length of its prefix.
    pub(crate) fn prefix(self) -> u8 {
        self.len
    }

    /// As [`parse`](Self::parse), without the bits beyond the prefix.
    fn parse_any(text: &str) -> Option<Self> {
        match Self::parse(text) {
            Ok(network) | Err(NetworkError::HostBits { network, .. }) => Some(network),
            Err(NetworkError::NoAddress | NetworkError::Prefix) => None,
        }
    }

    fn containing(address: IpAddr, len: u8) -> Self {
        let address = match address {
            IpAddr::V4(address) => IpAddr::V4(leading_v4(address.to_bits(), len).into()),
            IpAddr::V6(address) => IpAddr::V6(leading_v6(address.to_bits(), len).into()),
        };
        Self { address, len }
    }
}

/// `10.0.0.0/8`, `2001:db8::/64`; a single address without its prefix.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, len } = self;
        if *len == bits_of(*address) {
            write!(f, "{address}")
        } else {
            write!(f, "{address}/{len}")
        }
    }
}

/// The lengths of the prefixes by which keys are formed from addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "there are two families of addresses")]
pub struct KeyPrefixes {
    /// Of IPv4 addresses, 1 to 32.
    pub ipv4: u8,
    /// Of IPv6 addresses, 1 to 128.
    pub ipv6: u8,
}

impl KeyPrefixes {
    /// Returns one network of each family, with these prefixes.
    pub(crate) fn networks(self) -> [Network; 2] {
        [
            Network::containing(Ipv4Addr::UNSPECIFIED.into(), self.ipv4.min(32)),
            Network::containing(Ipv6Addr::UNSPECIFIED.into(), self.ipv6.min(128)),
        ]
    }
}

/// The shortest prefix of a key, for each family, for which the entries of a policy that never
/// match were reported. A changed policy starts without.
#[derive(Debug)]
pub(crate) struct ReportedPrefixes {
    v4: AtomicU8,
    v6: AtomicU8,
}

impl Default for ReportedPrefixes {
    fn default() -> Self {
        Self {
            v4: AtomicU8::new(u8::MAX),
            v6: AtomicU8::new(u8::MAX),
        }
    }
}

impl ReportedPrefixes {
    /// Returns whether no prefix as short as this one was reported, and marks it as reported.
    pub(crate) fn is_new(&self, network: Network) -> bool {
        let shortest = match network.address {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => &self.v6,
        };
        shortest.load(Ordering::Relaxed) > network.len
            && shortest.fetch_min(network.len, Ordering::Relaxed) > network.len
    }
}

pub(super) const fn bits_of(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// Returns the first `len` bits, at most 32; a shift by 32 would overflow.
pub(super) fn leading_v4(bits: u32, len: u8) -> u32 {
    bits & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)
}

/// Returns the first `len` bits, at most 128.
pub(super) fn leading_v6(bits: u128, len: u8) -> u128 {
    bits & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}
