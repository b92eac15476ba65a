//! Addresses and networks of proxies, as programs configure them.
//!
//! A network that is larger than intended would trust addresses of clients. Text with bits beyond
//! the prefix is therefore an error that shows both possible meanings. Mapped addresses and
//! networks become IPv4, because compared addresses are converted too.
//!
//! Invariant: both notations of an IPv4 address have one result. Tests: below, in particular
//! `text_with_host_bits_is_rejected_as_in_key_lists`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::Ipv4Net;
use limiter_core::ConfigError;

/// An IP address or network: `127.0.0.1`, `10.0.7.0/24`, `2001:db8:7::/48`. Created from text, from
/// an [`IpAddr`], or from the `IpNet` of the crate `ipnet`.
///
/// ```
/// use limiter_tower::key::IpNet;
/// use std::net::Ipv4Addr;
///
/// let one: IpNet = "127.0.0.1".parse()?;
/// assert_eq!(one, IpNet::from(Ipv4Addr::LOCALHOST));
/// assert_eq!(one, "127.0.0.1/32".parse()?);
///
/// let error = "10.0.7.0/33".parse::<IpNet>().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "IP network is `10.0.7.0/33`, expected an address such as `10.0.7.1`, or a network such as `10.0.7.0/24`"
/// );
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
///
/// IPv4 addresses and networks that are mapped into IPv6 are converted to IPv4.
///
/// Text with bits beyond the prefix, such as `10.0.7.9/8`, is an error, as in a
/// [`KeyList`](limiter_core::KeyList): it is ambiguous whether the address or the prefix is wrong,
/// and a trusted network that is larger than intended is a security hole. An `ipnet::IpNet` may
/// have such bits, since it can also represent the address of an interface; they are dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IpNet(ipnet::IpNet);

impl IpNet {
    /// Returns whether the network contains the address, which must not be mapped into IPv6.
    pub(super) fn contains(&self, address: &IpAddr) -> bool {
        self.0.contains(address)
    }
}

impl From<ipnet::IpNet> for IpNet {
    /// Returns the network of this address and prefix. Networks of mapped addresses become IPv4
    /// networks, because compared addresses are converted too.
    fn from(network: ipnet::IpNet) -> Self {
        const MAPPED_BITS: u8 = 96;
        let network = network.trunc();
        let (IpAddr::V4(address), Some(bits)) = (
            network.addr().to_canonical(),
            network.prefix_len().checked_sub(MAPPED_BITS),
        ) else {
            return Self(network);
        };
        Self(Ipv4Net::new(address, bits).map_or(network, ipnet::IpNet::V4))
    }
}

impl From<IpNet> for ipnet::IpNet {
    fn from(network: IpNet) -> Self {
        network.0
    }
}

/// This address alone.
impl From<IpAddr> for IpNet {
    fn from(address: IpAddr) -> Self {
        ipnet::IpNet::from(address).into()
    }
}

/// This address alone.
impl From<Ipv4Addr> for IpNet {
    fn from(address: Ipv4Addr) -> Self {
        IpAddr::V4(address).into()
    }
}

/// This address alone.
impl From<Ipv6Addr> for IpNet {
    fn from(address: Ipv6Addr) -> Self {
        IpAddr::V6(address).into()
    }
}

impl FromStr for IpNet {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let invalid = |expected: String| ConfigError::Invalid {
            field: "IP network",
            value: text.to_owned(),
            expected,
        };
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(address.into());
        }
        let written: ipnet::IpNet = text.parse().map_err(|_| {
            invalid("an address such as `10.0.7.1`, or a network such as `10.0.7.0/24`".to_owned())
        })?;
        if written.addr() != written.trunc().addr() {
            let (network, host) = (Self::from(written), Self::from(written.addr()));
            return Err(invalid(format!(
                "no bits beyond the prefix: `{network}` for the network, or `{}` for the address",
                host.0.addr()
            )));
        }
        Ok(written.into())
    }
}

impl fmt::Display for IpNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for IpNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use limiter_core::KeyList;

    use super::*;

    #[test]
    fn single_address_is_a_network_of_one() {
        for (text, within, beside) in [
            ("127.0.0.1", "127.0.0.1", "127.0.0.2"),
            ("::ffff:192.0.2.1", "192.0.2.1", "192.0.2.2"),
            ("2001:db8::1", "2001:db8::1", "2001:db8::2"),
            ("10.0.7.0/24", "10.0.7.1", "10.0.8.1"),
            ("::ffff:172.16.0.0/108", "172.31.0.1", "172.32.0.1"),
        ] {
            let contains = |address: &str| {
                let network = text.parse::<IpNet>();
                network.map(|network| address.parse().map(|address| network.contains(&address)))
            };
            assert_eq!(contains(within), Ok(Ok(true)), "{text}");
            assert_eq!(contains(beside), Ok(Ok(false)), "{text}");
        }
    }

    #[test]
    fn text_with_host_bits_is_rejected_as_in_key_lists() {
        for (text, network, address) in [
            ("10.0.0.7/8", "10.0.0.0/8", "10.0.0.7"),
            ("2001:db8::7/64", "2001:db8::/64", "2001:db8::7"),
            ("::ffff:10.0.0.7/104", "10.0.0.0/8", "10.0.0.7"),
        ] {
            let error = text.parse::<IpNet>().unwrap_err().to_string();
            let in_list = KeyList::parse([text]).unwrap_err().to_string();
            let expected = format!(
                "expected no bits beyond the prefix: `{network}` for the network, or `{address}` for the address"
            );
            assert!(error.ends_with(&expected), "{error}");
            assert!(in_list.ends_with(&expected), "{in_list}");
            let typed: ipnet::IpNet = text.parse().unwrap();
            assert_eq!(IpNet::from(typed), network.parse().unwrap());
        }
    }

    #[test]
    fn error_quotes_invalid_network_text() {
        for text in [
            "",
            "proxy.local",
            "10.0.7",
            "10.0.7.0/33",
            "10.0.7.1:80",
            "[::1]",
            "fe80::1%eth0",
        ] {
            let error = text.parse::<IpNet>();
            assert!(
                matches!(&error, Err(ConfigError::Invalid { value, .. }) if value == text),
                "{error:?}"
            );
        }
    }
}
