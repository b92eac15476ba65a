//! The identity of a limit's state; the only place where the name of a Redis key is formed.
//!
//! A name is `namespace|algorithm|policy|{key}`, or `namespace|algorithm|policy|{group}|key`. What
//! stands in the braces is the tag by which a cluster chooses the slot. User-supplied parts are
//! escaped, so that none of them can contain `|`, a brace or a control character; a part that would
//! become too long is replaced by `~` and a hash. Two different identities therefore never share a
//! name (but for a collision of 128 bits of SHA-256).

mod escape;
#[cfg(feature = "redis")]
mod name;

use std::borrow::Cow;
use std::fmt;
use std::fmt::{Display, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::key::escape::{Colon, MAX_PART_BYTES, bounded, escape, escape_text, push_escaped};
#[cfg(feature = "redis")]
pub(crate) use crate::key::name::Namespace;

/// Whose permits a call takes: a user, a tenant, an address, …
///
/// Anything textual converts into one. [`part`](Self::part) adds a value that cannot be confused
/// with the text around it, which `format!` cannot promise:
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
    /// The one key of a limit that everybody shares.
    #[must_use]
    pub const fn global() -> Self {
        Self {
            text: Cow::Borrowed(""),
            group: None,
        }
    }

    /// Adds text as it stands, as the literal part of a key.
    #[must_use]
    pub fn text(self, text: &str) -> Key<'static> {
        let mut key = self.growing();
        push_escaped(key.text.to_mut(), text.as_bytes(), Colon::Plain);
        key
    }

    /// Adds a value that stays apart from what stands before and after it: its colons are escaped.
    #[must_use]
    pub fn part(self, value: impl Display) -> Key<'static> {
        let mut key = self.growing();
        #[expect(clippy::expect_used, reason = "as `to_string`: half a value is no key")]
        write!(Part(key.text.to_mut()), "{value}").expect("a `Display` that shows its value");
        key
    }

    /// Adds a whole key, with its group, as a value that stays apart from what stands before and
    /// after it. The key is then in the first group that one of its parts is in.
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
        let mut key = self.growing();
        let text = key.text.to_mut();
        if let Some(group) = &other.group {
            push_escaped(text, group.as_bytes(), Colon::Escaped);
            // What is escaped twice has no other escapes than those of `%` and `:`.
            push_escaped(text, b"|", Colon::Escaped);
            if key.group.is_none() {
                key.group = Some(Cow::Owned(group.clone().into_owned()));
            }
        }
        push_escaped(text, other.text.as_bytes(), Colon::Escaped);
        key
    }

    /// Puts the key into a group: keys of one group, of whatever policy, can be decided together,
    /// and lie in one slot of a cluster. Two keys in different groups are different keys.
    #[must_use]
    pub fn in_group(self, group: impl Into<Key<'a>>) -> Self {
        Self {
            group: Some(group.into().text),
            ..self
        }
    }

    /// The key with nothing borrowed.
    #[must_use]
    pub fn into_owned(self) -> Key<'static> {
        Key {
            text: Cow::Owned(self.text.into_owned()),
            group: self.group.map(|group| Cow::Owned(group.into_owned())),
        }
    }

    /// The key with nothing borrowed, and with room for the parts that most keys have.
    fn growing(self) -> Key<'static> {
        const ROOM: usize = 40;
        let text = match self.text {
            Cow::Owned(text) => text,
            Cow::Borrowed(text) => {
                let mut owned = String::with_capacity(text.len() + ROOM);
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

    /// The key with hashes in place of what is too long for a name.
    pub(crate) fn bounded(self) -> Self {
        if self.is_bounded() {
            return self;
        }
        Self {
            text: bounded(self.text),
            group: self.group.map(bounded),
        }
    }

    /// The key that stands so in a name; `None` for text that does not.
    #[cfg(feature = "registry")]
    pub(crate) fn from_escaped(text: &str) -> Option<Key<'static>> {
        escape::is_escaped(text).then(|| Key {
            text: Cow::Owned(text.to_owned()),
            group: None,
        })
    }

    /// The keys that name the same limit as this one under a policy with this group, the one that
    /// says the group standing last.
    pub(crate) fn names_in(&self, policys: Option<&str>) -> [Option<Key<'static>>; 2] {
        let named = |group: Option<&str>| {
            Some(Key {
                text: Cow::Owned(self.text.clone().into_owned()),
                group: group.map(|group| Cow::Owned(group.to_owned())),
            })
        };
        match policys {
            Some(group) if self.group(policys) == Some(group) => [named(None), named(Some(group))],
            _ => [None, Some(self.clone().into_owned())],
        }
    }

    /// The key in which colons of values are plain; `None` where there is none of these.
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

    /// The text of a part of a key, if it is text.
    #[cfg(feature = "registry")]
    pub(crate) fn unescaped(text: &str) -> Option<String> {
        escape::unescape(text)
    }

    /// The escaped text.
    #[inline]
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The group of a limit on this key: the key's own, else the policy's.
    #[inline]
    pub(crate) fn group<'b>(&'b self, policys: Option<&'b str>) -> Option<&'b str> {
        self.group.as_deref().or(policys)
    }

    /// What decides the slot: the group, else the key.
    pub(crate) fn tag<'b>(&'b self, policys: Option<&'b str>) -> &'b str {
        self.group(policys).unwrap_or(&self.text)
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
                let mut key = Key::global().growing();
                // Nothing in a number or an address is escaped, and none is longer than the room
                // that is made here. Writing to a `String` cannot fail.
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

/// An escaped text whose colons are all plain, those of values among them; `None` where no value
/// has one.
pub(crate) fn with_plain_colons(escaped: &str) -> Option<String> {
    const COLON: &str = "%3A";
    // Where a percent sign itself was escaped, what follows it is no part of an escape: `%253A` has
    // none of a colon.
    escaped.contains(COLON).then(|| escaped.replace(COLON, ":"))
}

/// Text of any kind as one part of a name: escaped, and hashed when it is too long.
pub(crate) fn escape_part(text: &str) -> String {
    bounded(escape(text.as_bytes(), Colon::Plain)).into_owned()
}

/// Escapes a part of a key as it is displayed.
struct Part<'a>(&'a mut String);

impl fmt::Write for Part<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        push_escaped(self.0, text.as_bytes(), Colon::Escaped);
        Ok(())
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use crate::key::*;

    fn name(namespace: &str, policy: &str, group: Option<&str>, key: &Key<'_>) -> String {
        let key = &Key::from(key).bounded();
        let group = group.map(escape_part);
        Namespace::new("", namespace).redis_key("tb", &escape_part(policy), key.group(group.as_deref()), key)
    }

    #[test]
    fn a_name_is_readable_and_its_tag_is_the_key_or_the_group() {
        assert_eq!(
            name("prod:checkout", "search", None, &"user:7".into()),
            "prod:checkout|tb|search|{user:7}"
        );
        assert_eq!(
            name("prod", "search", None, &Key::from("user:7").in_group("tenant:3")),
            "prod|tb|search|{tenant:3}|user:7"
        );
        assert_eq!(
            name("prod", "search", Some("all"), &Key::global()),
            "prod|tb|search|{all}|"
        );
        assert_eq!(name("prod", "search", None, &Key::global()), "prod|tb|search|{%}");
    }

    #[test]
    fn hostile_parts_never_collide() {
        let hostile = [
            "",
            "a",
            "a|b",
            "a}",
            "{a",
            "{a}",
            "a:b",
            "a%3Ab",
            "a\r\nb",
            "a\0b",
            "~a",
            "%",
            "é",
            "a b",
            "{}",
            "|{a}|",
            &"x".repeat(10_000),
            &"x".repeat(10_001),
            &format!("{}%", "x".repeat(10_000)),
        ];
        let mut names = std::collections::HashSet::new();
        let mut count = 0;
        for namespace in hostile {
            for policy in hostile {
                for key in hostile {
                    for key in [Key::from(key), Key::from("k").in_group(key)] {
                        let name = name(namespace, policy, None, &key);
                        assert!(name.len() < 4 * (MAX_PART_BYTES + 10), "{name}");
                        assert!(name.bytes().all(|byte| byte.is_ascii_graphic()), "{name}");
                        assert!(names.insert(name), "{namespace:?} {policy:?} {key:?}");
                        count += 1;
                    }
                }
            }
        }
        assert_eq!(names.len(), count);
    }

    #[test]
    fn parts_stay_apart() {
        let joined = |a: &str, b: &str| Key::from("user:").part(a).text(":").part(b);
        assert_ne!(joined("x:y", "z"), joined("x", "y:z"));
        assert_eq!(joined("x", "y").as_str(), "user:x:y");
        assert_eq!(joined("x", "y"), Key::from("user:x:y"));
        assert_ne!(Key::global().part("a:b"), Key::from("a:b"));
        let nested = |a: &str, b: &str| Key::global().key(&a.into()).text(":").key(&b.into());
        assert_ne!(nested("x:y", "z"), nested("x", "y:z"));
        assert_ne!(nested("x:y", "z"), nested("x%3Ay", "z"));
        assert_eq!(nested("x", "y"), Key::from("x:y"));
        let grouped = Key::global().key(&Key::from("x").in_group("g:h"));
        assert_eq!(
            (grouped.as_str(), grouped.group(None)),
            ("g%3Ah%7Cx", Some("g:h"))
        );
        let long = "x".repeat(MAX_PART_BYTES);
        assert_eq!(
            Key::from(&long).text(&long).text("y").bounded(),
            Key::from(format!("{long}{long}y")).bounded()
        );
    }
}
