//! Keys of limits, and the only place that forms names of Redis keys.
//!
//! A name is `namespace|algorithm|policy|{key}`, or `namespace|algorithm|policy|{group}|key`. The
//! part in braces is the hash tag by which a cluster selects the slot. User-supplied parts are
//! escaped, so that none of them can contain `|`, a brace or a control character; a part that
//! exceeds the maximum length is replaced by `~` and a hash. Two different identities therefore
//! never share a name (except for a 128-bit collision of SHA-256).
//!
//! Tests: `key/tests.rs`, `tests/contract/keys.rs`, `tests/frozen/redis.rs`
//! (`keys_and_several_limits_are_frozen`), and the fuzz target `name`.

mod buffer;
mod escape;
#[cfg(feature = "redis")]
mod name;

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use crate::key::buffer::KeyBuffer;
use crate::key::buffer::push_displayed;
use crate::key::escape::{bounded, escape, escaped, push_escaped};
#[cfg(feature = "redis")]
pub(crate) use crate::key::name::Namespace;

/// Maximum length of an escaped part; a longer one is hashed.
const MAX_PART_BYTES: usize = 200;

/// Handling of colons, which commonly separate the parts of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Colon {
    Plain,
    Escaped,
}

/// The owner of the permits of a call: a user, a tenant, an address, …
///
/// Any text converts into a key. [`part`](Self::part) adds a value that cannot be confused with the
/// surrounding text, which `format!` does not guarantee:
///
/// ```
/// use limiter_core::Key;
///
/// let a = Key::from("user:").part("x:y").text(":").part("z");
/// let b = Key::from("user:").part("x").text(":").part("y:z");
/// assert_ne!(a, b);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    /// Escaped.
    text: Cow<'a, str>,
    /// Escaped.
    group: Option<Cow<'a, str>>,
}

impl<'a> Key<'a> {
    /// Returns the single key of a limit that all callers share.
    #[must_use]
    pub const fn global() -> Self {
        Self {
            text: Cow::Borrowed(""),
            group: None,
        }
    }

    /// Adds literal text to the key.
    #[must_use]
    pub fn text(self, text: &str) -> Key<'static> {
        let mut key = self.into_growable();
        push_escaped(key.text.to_mut(), text, Colon::Plain);
        key
    }

    /// Adds a value that stays distinct from the surrounding text: its colons are escaped.
    #[must_use]
    pub fn part(self, value: impl Display) -> Key<'static> {
        let mut key = self.into_growable();
        push_displayed(key.text.to_mut(), value, Colon::Escaped);
        key
    }

    /// Adds a whole key, with its group, as a value that stays distinct from the surrounding text.
    /// The result is in the group of its first part that has one.
    ///
    /// ```
    /// use limiter_core::Key;
    ///
    /// let (user, path) = (Key::from("user:7"), Key::from("/search"));
    /// let both = Key::global().key(&user).text(":").key(&path);
    /// assert_ne!(both, Key::from("user:7:/search"));
    /// ```
    #[must_use]
    pub fn key(self, other: &Key<'_>) -> Key<'static> {
        let mut key = self.into_growable();
        let text = key.text.to_mut();
        if let Some(group) = &other.group {
            push_escaped(text, group, Colon::Escaped);
            // A text that was escaped twice contains no other escapes than those of `%` and `:`.
            push_escaped(text, "|", Colon::Escaped);
            if key.group.is_none() {
                key.group = Some(Cow::Owned(group.clone().into_owned()));
            }
        }
        push_escaped(text, &other.text, Colon::Escaped);
        key
    }

    /// Puts the key into a group: keys of one group, of any policy, can be decided together, and
    /// share one slot of a cluster. The same key in different groups denotes different limits.
    #[must_use]
    pub fn in_group(self, group: impl Into<Key<'a>>) -> Self {
        Self {
            group: Some(group.into().text),
            ..self
        }
    }

    /// Converts to a key without borrows.
    #[must_use]
    pub fn into_owned(self) -> Key<'static> {
        Key {
            text: Cow::Owned(self.text.into_owned()),
            group: self.group.map(|group| Cow::Owned(group.into_owned())),
        }
    }

    /// Converts to a key without borrows, with capacity for the parts that most keys have.
    fn into_growable(self) -> Key<'static> {
        const CAPACITY: usize = 40;
        let text = match self.text {
            Cow::Owned(text) => text,
            Cow::Borrowed(text) => {
                let mut owned = String::with_capacity(text.len() + CAPACITY);
                owned.push_str(text);
                owned
            }
        };
        Key {
            text: Cow::Owned(text),
            group: self.group.map(|group| Cow::Owned(group.into_owned())),
        }
    }

    #[inline]
    pub(crate) fn is_bounded(&self) -> bool {
        let is_short = |text: &str| text.len() <= MAX_PART_BYTES;
        is_short(&self.text) && self.group.as_deref().is_none_or(is_short)
    }

    /// Replaces texts that are too long for a name by their hashes.
    pub(crate) fn bounded(self) -> Self {
        if self.is_bounded() {
            return self;
        }
        Self {
            text: bounded(self.text),
            group: self.group.map(bounded),
        }
    }

    /// Creates a key of text that is escaped already.
    #[inline]
    const fn from_escaped_text(text: &'a str) -> Self {
        Self {
            text: Cow::Borrowed(text),
            group: None,
        }
    }

    /// Parses a key in the escaped form of a name; `None` for other text.
    #[cfg(feature = "registry")]
    pub(crate) fn from_escaped(text: &str) -> Option<Key<'static>> {
        escape::is_escaped(text).then(|| Key {
            text: Cow::Owned(text.to_owned()),
            group: None,
        })
    }

    /// Returns the keys that denote this limit under a policy with this group; the key with an
    /// explicit group is last.
    pub(crate) fn names_in(&self, policy_group: Option<&str>) -> [Option<Key<'static>>; 2] {
        let named = |group: Option<&str>| {
            Some(Key {
                text: Cow::Owned(self.text.clone().into_owned()),
                group: group.map(|group| Cow::Owned(group.to_owned())),
            })
        };
        match policy_group {
            Some(group) if self.group(policy_group) == Some(group) => [named(None), named(Some(group))],
            _ => [None, Some(self.clone().into_owned())],
        }
    }

    /// Returns the key with plain colons in its values; `None` if no value has a colon.
    pub(crate) fn with_plain_colons(&self) -> Option<Key<'_>> {
        let text = with_plain_colons(&self.text);
        let group = self.group.as_deref().and_then(with_plain_colons);
        (text.is_some() || group.is_some()).then(|| Key {
            text: text.map_or(Cow::Borrowed(&*self.text), Cow::Owned),
            group: group
                .map(Cow::Owned)
                .or_else(|| self.group.as_deref().map(Cow::Borrowed)),
        })
    }

    /// Unescapes a part of a key, if it is text.
    #[cfg(feature = "registry")]
    pub(crate) fn unescaped(text: &str) -> Option<String> {
        escape::unescape(text)
    }

    /// Returns the escaped text.
    #[inline]
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the group of a limit of this key: the key's own, otherwise the policy's.
    #[inline]
    pub(crate) fn group<'b>(&'b self, policy_group: Option<&'b str>) -> Option<&'b str> {
        self.group.as_deref().or(policy_group)
    }

    /// Returns the text that determines the slot: the group, otherwise the key.
    pub(crate) fn tag<'b>(&'b self, policy_group: Option<&'b str>) -> &'b str {
        self.group(policy_group).unwrap_or(&self.text)
    }
}

impl<'a> From<&'a [u8]> for Key<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            text: escape(bytes, Colon::Plain),
            group: None,
        }
    }
}

impl<'a> From<&'a str> for Key<'a> {
    #[inline]
    fn from(text: &'a str) -> Self {
        Self {
            text: escape_text(text, Colon::Plain),
            group: None,
        }
    }
}

impl<'a> From<&&'a str> for Key<'a> {
    fn from(text: &&'a str) -> Self {
        (*text).into()
    }
}

impl<'a> From<&'a String> for Key<'a> {
    fn from(text: &'a String) -> Self {
        text.as_str().into()
    }
}

impl From<String> for Key<'_> {
    fn from(text: String) -> Self {
        Key::from(text.as_bytes()).into_owned()
    }
}

impl<'a> From<&'a Key<'_>> for Key<'a> {
    #[inline]
    fn from(key: &'a Key<'_>) -> Self {
        Self {
            text: Cow::Borrowed(&key.text),
            group: key.group.as_deref().map(Cow::Borrowed),
        }
    }
}

macro_rules! key_from_displayed {
    ($($type:ty),*) => {$(
        impl From<$type> for Key<'_> {
            fn from(value: $type) -> Self {
                let mut key = Key::global().into_growable();
                // Numbers and addresses contain no escaped characters and fit into the capacity.
                // Writing to a `String` cannot fail.
                let _ = write!(key.text.to_mut(), "{value}");
                key
            }
        }
    )*};
}
key_from_displayed!(u16, u32, u64, u128, usize, i32, i64, IpAddr, Ipv4Addr, Ipv6Addr);
key_from_displayed!(
    &u16, &u32, &u64, &u128, &usize, &i32, &i64, &IpAddr, &Ipv4Addr, &Ipv6Addr
);

/// Returns an escaped text with all colons plain; `None` if no value has a colon.
pub(crate) fn with_plain_colons(escaped: &str) -> Option<String> {
    const COLON: &str = "%3A";
    // After an escaped percent sign, the next characters are no escape: `%253A` contains no escaped
    // colon.
    escaped.contains(COLON).then(|| escaped.replace(COLON, ":"))
}

/// Returns an escaped text, hashed if it is too long for a name.
#[cfg(feature = "redis")]
pub(crate) fn bounded_text(escaped: &str) -> Cow<'_, str> {
    bounded(Cow::Borrowed(escaped))
}

/// Escapes any text as one part of a name, and hashes it if it is too long.
pub(crate) fn escape_part(text: &str) -> String {
    bounded(escape(text.as_bytes(), Colon::Plain)).into_owned()
}

/// Escapes text. Borrows if all bytes are plain. As [`escape`], without UTF-8 validation.
#[inline]
fn escape_text(text: &str, colon: Colon) -> Cow<'_, str> {
    if are_plain(text.as_bytes(), colon) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(escaped(text.as_bytes(), colon))
    }
}

/// True if all bytes are plain: visible ASCII below `{`, without `%`, and without a colon if colons
/// are escaped.
///
/// Eight bytes at a time (H. S. Warren, "Hacker's Delight", 6-1), in a quarter of the time of a
/// table lookup per byte.
#[inline]
fn are_plain(bytes: &[u8], colon: Colon) -> bool {
    let words = bytes.chunks_exact(8);
    let rest = words.remainder();
    let plain = words.fold(HIGH, |plain, word| {
        // A chunk has eight bytes, so the default is never used.
        let word = word.try_into().unwrap_or_default();
        plain & plain_bits(u64::from_le_bytes(word), colon)
    });
    // Checking some bytes twice costs nothing.
    let last = match bytes.last_chunk() {
        Some(last) => u64::from_le_bytes(*last),
        None => rest
            .iter()
            .fold(LETTERS, |word, byte| word << 8 | u64::from(*byte)),
    };
    plain & plain_bits(last, colon) == HIGH
}

/// Sets the highest bit of each plain byte of a word.
#[inline]
const fn plain_bits(word: u64, colon: Colon) -> u64 {
    // For a byte below 128, each sum sets the highest bit or not, without a carry; other bytes are
    // not plain.
    let visible = word.wrapping_add(ABOVE_SPACE);
    let above_range = word.wrapping_add(ABOVE_Z);
    let other_than_percent = (word ^ PERCENT).wrapping_add(LOW);
    let other_than_colon = match colon {
        Colon::Plain => HIGH,
        Colon::Escaped => (word ^ COLON).wrapping_add(LOW),
    };
    visible & !above_range & other_than_percent & other_than_colon & !word & HIGH
}

// Constants, since the function is not inlined everywhere.
const HIGH: u64 = each(0x80);
const LOW: u64 = each(0x7f);
const LETTERS: u64 = each(b'a');
const ABOVE_SPACE: u64 = each(0x80 - b'!');
const ABOVE_Z: u64 = each(0x80 - b'{');
const PERCENT: u64 = each(b'%');
const COLON: u64 = each(b':');

/// Returns a word of eight equal bytes.
const fn each(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

#[cfg(all(test, feature = "redis"))]
mod tests;
