//! Escaping of key bytes, so that they can be parts of a name.
//!
//! Values of users and attackers become parts of Redis keys, which are joined with `|`, `{`, `}`
//! and, within a key, colons. Each byte that could be read as such a separator, and each byte that
//! is not visible ASCII, is written as `%XX`; a text above the maximum length is replaced by a
//! hash.
//!
//! Invariant: different parts have different escaped texts, apart from collisions of the hash.
//! Tests: `key/tests.rs`, `tests/contract/keys.rs`.

use std::borrow::Cow;
use std::fmt;
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::key::{Colon, MAX_PART_BYTES, are_plain, escape_text};

/// Replaces every byte that is not plain by `%` and two hexadecimal digits. Borrows if all bytes
/// are plain.
pub(super) fn escape(bytes: &[u8], colon: Colon) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => escape_text(text, colon),
        Err(_) => Cow::Owned(escaped(bytes, colon)),
    }
}

#[cold]
pub(super) fn escaped(bytes: &[u8], colon: Colon) -> String {
    let mut escaped = String::with_capacity(bytes.len() * 3);
    push_escaped_bytes(&mut escaped, bytes, colon);
    escaped
}

/// Appends text with every byte replaced that is not plain. `escaped` must not fail.
#[inline]
pub(super) fn push_escaped(escaped: &mut impl fmt::Write, text: &str, colon: Colon) {
    if are_plain(text.as_bytes(), colon) {
        let _ = escaped.write_str(text);
    } else {
        push_escaped_bytes(escaped, text.as_bytes(), colon);
    }
}

#[cold]
fn push_escaped_bytes(escaped: &mut impl fmt::Write, bytes: &[u8], colon: Colon) {
    for byte in bytes {
        let _ = if are_plain(&[*byte], colon) {
            escaped.write_char(char::from(*byte))
        } else {
            write!(escaped, "%{byte:02X}")
        };
    }
}

/// True if [`escape`] could have produced this text.
#[cfg(feature = "registry")]
pub(super) fn is_escaped(text: &str) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let is_valid = match byte {
            b'%' => match (bytes.next().and_then(digit), bytes.next().and_then(digit)) {
                (Some(high), Some(low)) => !are_plain(&[high << 4 | low], Colon::Escaped),
                _ => false,
            },
            plain => are_plain(&[plain], Colon::Plain),
        };
        if !is_valid {
            return false;
        }
    }
    true
}

/// Reverses [`escape`]; `None` if the bytes are not text.
#[cfg(feature = "registry")]
pub(super) fn unescape(text: &str) -> Option<String> {
    let mut plain = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'%' => digit(bytes.next()?)? << 4 | digit(bytes.next()?)?,
            byte => byte,
        });
    }
    String::from_utf8(plain).ok()
}

/// Returns the value of a digit that [`push_escaped`] writes.
#[cfg(feature = "registry")]
fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

/// Returns an escaped text of bounded length: a longer one is replaced by its hash.
pub(super) fn bounded(escaped: Cow<'_, str>) -> Cow<'_, str> {
    if escaped.len() <= MAX_PART_BYTES {
        return escaped;
    }
    let digest = Sha256::digest(escaped.as_bytes());
    let mut hashed = String::from("~");
    for byte in digest.iter().take(16) {
        let _ = write!(hashed, "{byte:02x}");
    }
    Cow::Owned(hashed)
}
