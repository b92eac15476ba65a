//! Lists of keys: exact ones, prefixes, and networks.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::ConfigError;
use crate::key::{Key, with_plain_colons};

/// Keys, for [`PolicyBuilder::allow_keys`](crate::PolicyBuilder::allow_keys) and
/// [`deny_keys`](crate::PolicyBuilder::deny_keys). Each entry is text:
///
/// | entry | matches |
/// |---|---|
/// | `user:7` | this key |
/// | `user:*` | every key that begins so; `*` alone every key |
/// | `10.0.0.0/8`, `2001:db8::/32` | a key that is an address in this network |
/// | `10.1.2.3`, `::1` | a key that is this address, however it is written |
///
/// An address of IPv4 that is written as one of IPv6 (`::ffff:10.1.2.3`) is the one of IPv4. A key is looked up in a time that
/// grows with the number of different lengths (of prefixes and of networks), and not with the number of entries.
///
/// A colon of an entry is any colon of the key, also one of a value that [`Key::part`] or an annotation has put into it: of
/// `key = "user:{ip}"` the entry `user:2001:db8::1` is this address. Allow-lists are narrower, so that no value brings its owner onto the
/// list: there `acme:*` does not match the key of `{tenant}:{user}` whose tenant calls himself `acme:x`, and `acme:vip:1` not that of the
/// tenant `acme:vip`, since a colon of a value counts only in the last value of a key. (Of a deny-list they do.)
///
/// ```
/// use limiter_core::KeyList;
///
/// let internal: KeyList = ["10.0.0.0/8", "probe:*", "ann"].try_into()?;
/// assert!(internal.contains("10.200.3.4") && internal.contains("probe:7") && internal.contains("ann"));
/// assert!(!internal.contains("11.0.0.1") && !internal.contains("anna"));
/// assert_eq!(internal.entries().collect::<Vec<_>>(), ["10.0.0.0/8", "probe:*", "ann"]);
///
/// let error = KeyList::parse(["10.0.0.0/40"]).unwrap_err();
/// assert!(error.to_string().contains("10.0.0.0/40"));
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
#[derive(Clone, Default)]
pub struct KeyList {
    /// As they were written, in their order.
    entries: Vec<Box<str>>,
    /// Escaped, as keys are.
    exact: HashSet<Box<str>>,
    /// Escaped, by their length.
    prefixes: BTreeMap<usize, HashSet<Box<str>>>,
    /// The leading bits of networks, by how many they are.
    v4: BTreeMap<u8, HashSet<u32>>,
    v6: BTreeMap<u8, HashSet<u128>>,
}

impl KeyList {
    /// The list of these entries.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] names the first entry that cannot be used: an empty one, one with a `*` elsewhere than at its
    /// end, a network whose length is none, or that has bits beyond its length.
    pub fn parse<E: AsRef<str>>(entries: impl IntoIterator<Item = E>) -> Result<Self, ConfigError> {
        let mut list = Self::default();
        for entry in entries {
            list.add(entry.as_ref())?;
        }
        Ok(list)
    }

    /// The entries, as they were written and in their order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.iter().map(|entry| &**entry)
    }

    /// Whether a key is on the list, as an allow-list is read.
    #[must_use]
    pub fn contains<'a>(&self, key: impl Into<Key<'a>>) -> bool {
        self.allows(&key.into())
    }

    /// Whether a key is on it, of a list of those that are allowed.
    pub(crate) fn allows(&self, key: &Key<'_>) -> bool {
        let text = key.as_str();
        self.exact.contains(text)
            || self.has_prefix_of(text)
            || self.has_address_of(text)
            || (!self.exact.is_empty()
                && is_colon_of_the_last_part(text)
                && with_plain_colons(text).is_some_and(|plain| self.exact.contains(&*plain)))
    }

    /// The same of those that are denied: nobody leaves it by where a colon stands in his name.
    pub(crate) fn denies(&self, key: &Key<'_>) -> bool {
        self.allows(key)
            || (!(self.exact.is_empty() && self.prefixes.is_empty())
                && with_plain_colons(key.as_str())
                    .is_some_and(|plain| self.exact.contains(&*plain) || self.has_prefix_of(&plain)))
    }

    fn has_prefix_of(&self, text: &str) -> bool {
        let begins = |(len, prefixes): (&usize, &HashSet<Box<str>>)| {
            text.get(..*len).is_some_and(|start| prefixes.contains(start))
        };
        self.prefixes.iter().any(begins)
    }

    fn has_address_of(&self, text: &str) -> bool {
        !(self.v4.is_empty() && self.v6.is_empty())
            && address(text).is_some_and(|address| self.has_address(address))
    }

    fn has_address(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => {
                let bits = address.to_bits();
                let within =
                    |(len, networks): (&u8, &HashSet<u32>)| networks.contains(&leading_v4(bits, *len));
                self.v4.iter().any(within)
            }
            IpAddr::V6(address) => {
                let bits = address.to_bits();
                let within =
                    |(len, networks): (&u8, &HashSet<u128>)| networks.contains(&leading_v6(bits, *len));
                self.v6.iter().any(within)
            }
        }
    }

    fn add(&mut self, entry: &str) -> Result<(), ConfigError> {
        let invalid = |expected: &str| ConfigError::invalid("entry of a list of keys", entry, expected);
        let (start, star) = match entry.strip_suffix('*') {
            Some(start) => (start, true),
            None => (entry, false),
        };
        if entry.is_empty() {
            return Err(invalid("a key"));
        }
        if start.contains('*') {
            return Err(invalid("a `*` at the end alone"));
        }
        if star {
            let start: Box<str> = Key::from(start).as_str().into();
            self.prefixes.entry(start.len()).or_default().insert(start);
        } else if let Some((address, len)) = network(entry) {
            let len = len.ok_or_else(|| invalid("a network such as 10.0.0.0/8 or 2001:db8::/32"))?;
            let has_more = match address {
                IpAddr::V4(address) => {
                    let bits = leading_v4(address.to_bits(), len);
                    self.v4.entry(len).or_default().insert(bits);
                    bits != address.to_bits()
                }
                IpAddr::V6(address) => {
                    let bits = leading_v6(address.to_bits(), len);
                    self.v6.entry(len).or_default().insert(bits);
                    bits != address.to_bits()
                }
            };
            if has_more {
                return Err(invalid("a network without bits beyond its length"));
            }
        } else if ends_in_network(entry) {
            return Err(invalid(
                "a network alone, which matches keys that are an address alone: text before it would never match",
            ));
        } else {
            self.exact.insert(Key::from(entry).as_str().into());
        }
        self.entries.push(entry.into());
        Ok(())
    }
}

/// The address of a network and its length, if it has one; nothing for what is no address.
fn network(entry: &str) -> Option<(IpAddr, Option<u8>)> {
    let Some((address, len)) = entry.split_once('/') else {
        let address = entry.parse::<IpAddr>().ok()?.to_canonical();
        return Some((address, Some(bits_of(address))));
    };
    let written = address.parse::<IpAddr>().ok()?;
    let address = written.to_canonical();
    let len = len.parse::<u8>().ok().filter(|len| *len <= bits_of(written));
    // Written as one of IPv6, its first 96 bits only say that it is none.
    let len = len.and_then(|len| len.checked_sub(bits_of(written) - bits_of(address)));
    Some((address, len))
}

/// Whether the values with colons are the last of the key. Where another part follows, who chooses such a value could be taken for
/// somebody else: `acme%3Avip:1` is not `acme:vip%3A1`.
fn is_colon_of_the_last_part(text: &str) -> bool {
    text.split_once("%3A")
        .is_some_and(|(_, rest)| !rest.contains(':'))
}

/// Whether a network stands behind a colon, as if a key were looked into.
fn ends_in_network(entry: &str) -> bool {
    entry.contains('/')
        && entry.match_indices(':').any(|(colon, _)| {
            let behind = entry.get(colon + 1..).unwrap_or_default();
            matches!(network(behind), Some((_, Some(_))))
        })
}

const fn bits_of(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// The first so many bits, at most 32; none of them where a shift by all would be.
fn leading_v4(bits: u32, len: u8) -> u32 {
    bits & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)
}

fn leading_v6(bits: u128, len: u8) -> u128 {
    bits & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

/// The address that an escaped key is. One that is a part of a key has its colons escaped.
fn address(text: &str) -> Option<IpAddr> {
    /// The longest text of an address, and 8 for good measure.
    const MAX_BYTES: usize = 53;
    // Nearly all that is none ends here.
    let first = *text.as_bytes().first()?;
    if !(first.is_ascii_hexdigit() || first == b':' || first == b'%') {
        return None;
    }
    if !text.contains('%') {
        return text.parse().ok().map(|address: IpAddr| address.to_canonical());
    }
    let mut plain = [0_u8; MAX_BYTES];
    let mut room = plain.iter_mut();
    let mut count = 0;
    for (number, piece) in text.split("%3A").enumerate() {
        let colon = (number > 0).then_some(&b':');
        for byte in colon.into_iter().chain(piece.as_bytes()) {
            *room.next()? = *byte;
            count += 1;
        }
    }
    let plain = std::str::from_utf8(plain.get(..count)?).ok()?;
    let address: IpAddr = plain.parse().ok()?;
    Some(address.to_canonical())
}

impl PartialEq for KeyList {
    /// Whether the same entries stand there in the same order.
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl Eq for KeyList {}

impl fmt::Debug for KeyList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.entries).finish()
    }
}

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
            /// The list with this address alone.
            fn from(address: $type) -> Self {
                let mut list = Self::default();
                // An address is an entry that can be used.
                let _ = list.add(&address.to_string());
                list
            }
        }
    )*};
}
key_list_from_address!(IpAddr, Ipv4Addr, Ipv6Addr);

#[cfg(test)]
mod tests;
