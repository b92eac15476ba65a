//! Lists of keys: exact keys, prefixes of keys, and networks.
//!
//! A policy allows or denies the keys of a list without a decision. The list keeps exact keys in a
//! set, prefixes of keys in one set for each length, and networks in one set for each length of
//! their prefix, so a lookup takes one probe for each length. A key that is a network itself (the
//! extractors of limiter-tower form `2001:db8::/64` for a client of IPv6) matches the entries that
//! contain all of it. Tests: `key_list/tests.rs`, `tests/contract/key_lists.rs`.

mod convert;
mod end_table;
mod network;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use crate::error::ConfigError;
use crate::key::{Key, with_plain_colons};
use crate::policy::key_list::end_table::EndTable;
pub use crate::policy::key_list::network::KeyPrefixes;
pub(crate) use crate::policy::key_list::network::{Network, ReportedPrefixes};
use crate::policy::key_list::network::{NetworkError, leading_v4, leading_v6};
use crate::units::Timestamp;

/// The end of entries that do not end.
const NEVER: Timestamp = Timestamp::from_micros(u64::MAX);

/// Keys, for [`PolicyBuilder::allow_keys`](crate::PolicyBuilder::allow_keys) and
/// [`deny_keys`](crate::PolicyBuilder::deny_keys). Each entry is text:
///
/// | entry | matches |
/// |---|---|
/// | `user:7` | this key |
/// | `user:*` | every key that begins with `user:`; `*` alone matches every key |
/// | `10.0.0.0/8`, `2001:db8::/32` | a key that is an address in this network, or a network inside it |
/// | `10.1.2.3`, `::1` | a key that is this address, in any notation |
///
/// An IPv4 address that is mapped into IPv6 (`::ffff:10.1.2.3`) is the IPv4 address. The time of a
/// lookup grows with the number of different lengths of prefixes and networks, and not with the
/// number of entries.
///
/// # Keys that are networks
///
/// `key::peer_ip()` and `key::client_ip()` of limiter-tower limit an IPv6 client by the first 64
/// bits of its address, so its key is a network: `2001:db8::/64`. Such a key matches every entry
/// that contains the whole network: `2001:db8::/32` and `2001:db8::/64`, and not the single address
/// `2001:db8::7`. An entry that is longer than the prefix of the keys never matches. The limiter
/// logs a warning with these entries when it first decides by such a key, and again after each
/// change of the policy; the `verify` of a layer of limiter-tower reports them as an error. Shorten
/// the entries, or lengthen the prefix of the keys (`ipv6_prefix`).
///
/// # Bits beyond the prefix
///
/// `10.0.0.7/8` is an error: the entry is either the network `10.0.0.0/8` or the address
/// `10.0.0.7`, and the error names both. The trusted networks of `key::TrustedProxies` follow the
/// same rule.
///
/// # Colons
///
/// A colon of an entry also matches a colon in a value that [`Key::part`] or an annotation adds to
/// a key: with `key = "user:{ip}"` the entry `user:2001:db8::1` matches this address. Allow lists
/// are narrower, so that a client cannot choose a value that puts it onto the list: in an allow
/// list, a colon of a value counts only in the last value of a key. The entry `acme:*` does not
/// match a key of `{tenant}:{user}` whose tenant is `acme:x`, and `acme:vip:1` does not match the
/// tenant `acme:vip`. A network does not match two values that colons make an address, such as
/// `::ffff` and `10.0.0.1` in `{tenant}:{user}`. In a deny list, all of these match. Other text
/// between values is not recognised: `{a}.{b}` can form an address of an allow list.
///
/// ```
/// use limiter_core::KeyList;
///
/// let internal: KeyList = ["10.0.0.0/8", "2001:db8::/32", "probe:*", "ann"].try_into()?;
/// assert!(internal.contains("10.200.3.4") && internal.contains("probe:7") && internal.contains("ann"));
/// assert!(internal.contains("2001:db8:7::/64"), "a network inside the entry");
/// assert!(!internal.contains("11.0.0.1") && !internal.contains("anna"));
/// assert_eq!(internal.entries().collect::<Vec<_>>(), ["10.0.0.0/8", "2001:db8::/32", "probe:*", "ann"]);
///
/// let error = KeyList::parse(["10.0.0.7/8"]).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "entry of a key list is `10.0.0.7/8`, expected no bits beyond the prefix: `10.0.0.0/8` for the network, or \
///      `10.0.0.7` for the address"
/// );
/// # Ok::<(), limiter_core::ConfigError>(())
/// ```
///
/// # Entries that end
///
/// An entry of [`with_entry_until`](Self::with_entry_until) does not match from its end on, by the
/// limiter's clock. The policy does not change when an entry ends.
#[derive(Clone, Default)]
pub struct KeyList {
    /// As written, in their order.
    entries: Vec<WrittenEntry>,
    /// True if an entry ends.
    has_ends: bool,
    /// Escaped, as keys are.
    exact: EndTable<Box<str>>,
    /// Escaped, by their length.
    prefixes: BTreeMap<usize, EndTable<Box<str>>>,
    /// The leading bits of networks, by the length of their prefix.
    v4: BTreeMap<u8, EndTable<u32>>,
    v6: BTreeMap<u8, EndTable<u128>>,
}

/// An entry as written.
#[derive(Clone, PartialEq, Eq)]
struct WrittenEntry {
    text: Box<str>,
    end: Option<Timestamp>,
}

impl KeyList {
    /// Parses the entries of a list.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] names the invalid entry: an empty one, one with a `*` that is not
    /// its last character, a network with an invalid prefix or with bits beyond it, text before a
    /// network. For several invalid entries, [`ConfigError::Several`] has one error each.
    pub fn parse<E: AsRef<str>>(entries: impl IntoIterator<Item = E>) -> Result<Self, ConfigError> {
        let mut list = Self::default();
        let mut errors = Vec::new();
        for entry in entries {
            if let Err(error) = list.add(entry.as_ref(), None) {
                errors.push(error);
            }
        }
        match ConfigError::several(errors) {
            Some(error) => Err(error),
            None => Ok(list),
        }
    }

    /// Adds an entry that matches until `end`, by the limiter's clock: a test's clock if it has
    /// one, else the system's. Accepts a [`SystemTime`](std::time::SystemTime).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use limiter_core::{KeyList, Limiter, ManualClock, Policy};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let end = clock.now().after(Duration::from_secs(3_600));
    /// let denied = KeyList::parse(["eve"])?.with_entry_until("10.0.0.0/8", end)?;
    /// let search = Policy::token_bucket("search").capacity(20).rate(10).deny_keys(denied).build()?;
    ///
    /// let limits = Limiter::in_process().clock(&clock).build();
    /// assert!(!limits.check(&search, "10.1.2.3").await?.is_allowed());
    /// clock.set(end);
    /// assert!(limits.check(&search, "10.1.2.3").await?.is_allowed());
    /// assert!(!limits.check(&search, "eve").await?.is_allowed());
    /// # Ok::<(), limiter_core::Rejection>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// As [`parse`](Self::parse).
    pub fn with_entry_until(
        mut self,
        entry: impl AsRef<str>,
        end: impl Into<Timestamp>,
    ) -> Result<Self, ConfigError> {
        self.add(entry.as_ref(), Some(end.into()))?;
        Ok(self)
    }

    /// Returns the entries, as they were written and in their order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.iter().map(|entry| &*entry.text)
    }

    /// Returns the entries and their ends, in their order.
    pub fn entries_with_ends(&self) -> impl ExactSizeIterator<Item = (&str, Option<Timestamp>)> {
        self.entries.iter().map(|entry| (&*entry.text, entry.end))
    }

    /// Returns whether any entry ends, so that a lookup depends on the time.
    pub(crate) fn has_ends(&self) -> bool {
        self.has_ends
    }

    /// Returns whether an allow list with these entries matches a key now, by the system's clock.
    #[must_use]
    pub fn contains<'a>(&self, key: impl Into<Key<'a>>) -> bool {
        self.allows(&key.into(), std::time::SystemTime::now().into())
    }

    /// Returns whether an allow list matches a key.
    pub(crate) fn allows(&self, key: &Key<'_>, now: Timestamp) -> bool {
        let text = key.as_str();
        self.exact.contains(text, now)
            || self.has_prefix_of(text, now)
            || (self.has_network_of(text, now) && !has_values_apart(text))
            || (!self.exact.is_empty()
                && is_last_part_colon(text)
                && with_plain_colons(text).is_some_and(|plain| self.exact.contains(&*plain, now)))
    }

    /// Returns whether a deny list matches a key. A client cannot leave the list by a colon in a
    /// value.
    pub(crate) fn denies(&self, key: &Key<'_>, now: Timestamp) -> bool {
        self.allows(key, now)
            || (has_values_apart(key.as_str()) && self.has_network_of(key.as_str(), now))
            || (!(self.exact.is_empty() && self.prefixes.is_empty())
                && with_plain_colons(key.as_str()).is_some_and(|plain| {
                    self.exact.contains(&*plain, now) || self.has_prefix_of(&plain, now)
                }))
    }

    /// Returns whether some entry is longer than a network, so that it matches no key of this
    /// prefix.
    pub(crate) fn has_longer_than(&self, network: Network) -> bool {
        let longest = match network.address {
            IpAddr::V4(_) => self.v4.last_key_value().map(|(len, _)| *len),
            IpAddr::V6(_) => self.v6.last_key_value().map(|(len, _)| *len),
        };
        longest.is_some_and(|longest| longest > network.len)
    }

    /// Returns the entries of the network's family that are longer than the network.
    pub(crate) fn longer_than(&self, network: Network) -> impl Iterator<Item = &str> {
        self.entries().filter(move |entry| {
            Network::parse(entry).is_ok_and(|entry| {
                entry.address.is_ipv4() == network.address.is_ipv4() && entry.len > network.len
            })
        })
    }

    fn has_prefix_of(&self, text: &str, now: Timestamp) -> bool {
        let begins = |(len, prefixes): (&usize, &EndTable<Box<str>>)| {
            text.get(..*len)
                .is_some_and(|start| prefixes.contains(start, now))
        };
        self.prefixes.iter().any(begins)
    }

    fn has_network_of(&self, text: &str, now: Timestamp) -> bool {
        !(self.v4.is_empty() && self.v6.is_empty())
            && Network::of_key(text).is_some_and(|network| self.contains_network(network, now))
    }

    fn contains_network(&self, network: Network, now: Timestamp) -> bool {
        match network.address {
            IpAddr::V4(address) => {
                let bits = address.to_bits();
                let contains =
                    |(len, networks): (&u8, &EndTable<u32>)| networks.contains(&leading_v4(bits, *len), now);
                self.v4.range(..=network.len).any(contains)
            }
            IpAddr::V6(address) => {
                let bits = address.to_bits();
                let contains =
                    |(len, networks): (&u8, &EndTable<u128>)| networks.contains(&leading_v6(bits, *len), now);
                self.v6.range(..=network.len).any(contains)
            }
        }
    }

    pub(crate) fn add(&mut self, entry: &str, end: Option<Timestamp>) -> Result<(), ConfigError> {
        let until = end.unwrap_or(NEVER);
        let invalid = |expected: &str| ConfigError::invalid("entry of a key list", entry, expected);
        let (start, star) = match entry.strip_suffix('*') {
            Some(start) => (start, true),
            None => (entry, false),
        };
        if entry.is_empty() {
            return Err(invalid("a key"));
        }
        if start.contains('*') {
            return Err(invalid("`*` only as the last character"));
        }
        if star {
            let start: Box<str> = Key::from(start).as_str().into();
            self.prefixes.entry(start.len()).or_default().insert(start, until);
        } else {
            match Network::parse(entry) {
                Ok(network) => self.add_network(network, until),
                Err(NetworkError::NoAddress) if ends_in_network(entry) => {
                    return Err(invalid(
                        "a network without text before it: a network matches keys that are addresses or networks",
                    ));
                }
                Err(NetworkError::NoAddress) => {
                    self.exact.insert(Key::from(entry).as_str().into(), until);
                }
                Err(error) => return Err(invalid(&error.expected())),
            }
        }
        self.has_ends |= end.is_some();
        self.entries.push(WrittenEntry {
            text: entry.into(),
            end,
        });
        Ok(())
    }

    fn add_network(&mut self, Network { address, len }: Network, until: Timestamp) {
        match address {
            IpAddr::V4(address) => self.v4.entry(len).or_default().insert(address.to_bits(), until),
            IpAddr::V6(address) => self.v6.entry(len).or_default().insert(address.to_bits(), until),
        };
    }
}

/// Returns whether colons of values occur only in the last value of the key. If another part
/// follows, a client that chooses the value could pass for another one: `acme%3Avip:1` is not
/// `acme:vip%3A1`.
fn is_last_part_colon(text: &str) -> bool {
    text.split_once("%3A")
        .is_some_and(|(_, rest)| !rest.contains(':'))
}

/// Returns whether a key has colons both in its values and between them. Together, its values can
/// have the form of an address: `::ffff` and `10.0.0.1`.
fn has_values_apart(text: &str) -> bool {
    text.contains("%3A") && text.contains(':')
}

/// Returns whether a network follows a colon. Such an entry would never match: networks match whole
/// keys.
fn ends_in_network(entry: &str) -> bool {
    entry.contains('/')
        && entry.match_indices(':').any(|(colon, _)| {
            let rest = entry.get(colon + 1..).unwrap_or_default();
            matches!(Network::parse(rest), Ok(_) | Err(NetworkError::HostBits { .. }))
        })
}

/// Returns whether an entry is an address or a network.
pub(crate) fn is_network(entry: &str) -> bool {
    Network::parse(entry).is_ok()
}

impl PartialEq for KeyList {
    /// Lists are equal if they have the same entries in the same order.
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl Eq for KeyList {}

impl fmt::Debug for KeyList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries()).finish()
    }
}

#[cfg(test)]
mod tests;
