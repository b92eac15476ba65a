//! Escaping of key bytes, so that they can be parts of a name.

use std::borrow::Cow;
use std::fmt;
use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// Maximum length of an escaped part; a longer one is hashed.
pub(super) const MAX_PART_BYTES: usize = 200;

/// Handling of colons, which commonly separate the parts of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Colon {
    Plain,
    Escaped,
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

/// Replaces every byte that is not plain by `%` and two hexadecimal digits. Borrows if all bytes
/// are plain.
pub(super) fn escape(bytes: &[u8], colon: Colon) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => escape_text(text, colon),
        Err(_) => Cow::Owned(escaped(bytes, colon)),
    }
}

/// As [`escape`], for text, which needs no UTF-8 validation.
#[inline]
pub(super) fn escape_text(text: &str, colon: Colon) -> Cow<'_, str> {
    if are_plain(text.as_bytes(), colon) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(escaped(text.as_bytes(), colon))
    }
}

#[cold]
fn escaped(bytes: &[u8], colon: Colon) -> String {
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

#[cfg(test)]
mod tests {
    use crate::key::escape::*;

    #[test]
    fn plainness_is_independent_of_position() {
        for byte in 0..=u8::MAX {
            let graphic = byte.is_ascii_graphic() && !b"{}|%~".contains(&byte);
            for (colon, expected) in [(Colon::Plain, graphic), (Colon::Escaped, graphic && byte != b':')] {
                for len in 1..20 {
                    for at in 0..len {
                        let mut bytes = vec![b'a'; len];
                        bytes[at] = byte;
                        assert_eq!(are_plain(&bytes, colon), expected, "{byte} at {at} of {len}");
                    }
                }
            }
        }
        assert!(are_plain(b"", Colon::Escaped));
    }
}
