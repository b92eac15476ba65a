//! Conversions into a [`KeyList`]: lists of texts are parsed, one address is a list.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::ConfigError;
use crate::policy::key_list::KeyList;

macro_rules! key_list_from {
    ($([$($generic:tt)*] $type:ty),*) => {$(
        impl<$($generic)*> TryFrom<$type> for KeyList {
            type Error = ConfigError;

            fn try_from(entries: $type) -> Result<Self, ConfigError> {
                Self::parse(entries)
            }
        }
    )*};
}
key_list_from!(
    [const N: usize] [&str; N], [const N: usize] [String; N],
    [] Vec<&str>, [] Vec<String>, [] &[&str], [] &[String], [] &Vec<String>
);

macro_rules! key_list_from_address {
    ($($type:ty),*) => {$(
        impl From<$type> for KeyList {
            /// Returns a list with one address.
            fn from(address: $type) -> Self {
                let mut list = Self::default();
                // The text of an address is a valid entry.
                let _ = list.add(&address.to_string(), None);
                list
            }
        }
    )*};
}
key_list_from_address!(IpAddr, Ipv4Addr, Ipv6Addr);
