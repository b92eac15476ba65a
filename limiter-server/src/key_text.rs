//! A key as one text: its parts, separated by ` / `.
//!
//! Pages, records, logs and fingerprints have this text, and pages send it back as a key. A part
//! can contain the separator itself, so [`joined`] writes a backslash before a slash of a part that
//! would be read as a separator: the parts `a / b` and `c` are `a \/ b / c`. A slash between a
//! space and more backslashes gets one more.
//!
//! Records have at most [`RECORDED_CHARS`] characters of the text. [`recorded`] replaces the end of
//! a longer one by a mark and a hash, so that the records of two long keys differ.
//!
//! Invariant: `parts_of(joined(parts))` are the parts. Tests: below, `tests/pages/key_parts.rs`,
//! and `tests/pages/client_keys.rs`.

use std::borrow::Cow;

use sha2::{Digest as _, Sha256};

/// The largest length of a key in a record, in characters; that of a column of the database.
const RECORDED_CHARS: usize = 255;
/// The character between the beginning of a long key and its hash.
const CUT: char = '…';
/// The length of the hash of a long key in a record, in hexadecimal digits.
const HASH_DIGITS: usize = 8;
/// The message to a user who enters the record of a longer key.
pub(crate) const CUT_KEY: &str =
    "Records contain the beginning and a hash of this key, because it is longer. Enter the whole key.";
/// The separator of the parts.
const SEPARATOR: &str = " / ";

/// Returns the parts of a key as one text.
pub(crate) fn joined<T: AsRef<str>>(parts: impl IntoIterator<Item = T>) -> String {
    let mut text = String::new();
    for (number, part) in parts.into_iter().enumerate() {
        if number > 0 {
            text.push_str(SEPARATOR);
        }
        text.push_str(&escaped(part.as_ref()));
    }
    text
}

/// Returns the parts of a key from its text.
pub(crate) fn parts_of(text: &str) -> Vec<String> {
    text.split(SEPARATOR).map(unescaped).collect()
}

/// Returns the text of a key as records contain it.
pub(crate) fn recorded(text: &str) -> Cow<'_, str> {
    if text.len() <= RECORDED_CHARS || text.chars().count() <= RECORDED_CHARS {
        return Cow::Borrowed(text);
    }
    let mut cut: String = text.chars().take(RECORDED_CHARS - 1 - HASH_DIGITS).collect();
    cut.push(CUT);
    for byte in Sha256::digest(text).iter().take(HASH_DIGITS / 2) {
        cut.push_str(&format!("{byte:02x}"));
    }
    Cow::Owned(cut)
}

/// Returns whether a text is the record of a longer key, which names no key.
pub(crate) fn is_cut(text: &str) -> bool {
    let is_digit = |of: char| of.is_ascii_digit() || ('a'..='f').contains(&of);
    let mut last = text.chars().rev();
    let has_hash = last.by_ref().take(HASH_DIGITS).all(is_digit);
    has_hash && last.next() == Some(CUT) && text.chars().count() == RECORDED_CHARS
}

/// Returns the part with a backslash before each slash that follows a space, or a space and
/// backslashes, and precedes a space or the end.
fn escaped(part: &str) -> Cow<'_, str> {
    match part.contains(" /") || part.contains(" \\") {
        false => Cow::Borrowed(part),
        true => Cow::Owned(rewritten(part, |slash| format!("\\{slash}"))),
    }
}

fn unescaped(part: &str) -> String {
    rewritten(part, |slash| slash.strip_prefix('\\').unwrap_or(slash).to_owned())
}

/// Returns the part with another text in place of each `/`, `\/`, `\\/` and so on between two
/// spaces, or between a space and the end.
fn rewritten(part: &str, rewrite: impl Fn(&str) -> String) -> String {
    let mut words = Vec::new();
    for (number, word) in part.split(' ').enumerate() {
        let is_slash = number > 0
            && word
                .strip_suffix('/')
                .is_some_and(|rest| rest.bytes().all(|byte| byte == b'\\'));
        words.push(match is_slash {
            true => Cow::Owned(rewrite(word)),
            false => Cow::Borrowed(word),
        });
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_those_of_the_text() {
        for (parts, text) in [
            (vec![""], ""),
            (vec!["acme", "ann:x"], "acme / ann:x"),
            (vec!["192.0.2.1", "/"], "192.0.2.1 / /"),
            (vec!["a / b", "c"], "a \\/ b / c"),
            (vec!["a \\/ b"], "a \\\\/ b"),
            (vec!["a /", "/ b"], "a \\/ / / b"),
            (vec!["/a/b", "x /y"], "/a/b / x /y"),
        ] {
            assert_eq!(joined(&parts), text);
            assert_eq!(parts_of(text), parts);
        }
    }

    #[test]
    fn long_text_is_recorded_by_its_beginning_and_a_hash() {
        let (short, long) = ("é".repeat(255), "é".repeat(256));
        assert_eq!(recorded(&short), short);
        let cut = recorded(&long);
        assert_eq!(cut.chars().count(), RECORDED_CHARS);
        assert!(is_cut(&cut) && !is_cut(&short) && !is_cut(&long) && !is_cut(""));
        assert_eq!(recorded(&cut), cut);
        assert_ne!(recorded(&format!("{long}x")), cut);
    }

    #[test]
    fn different_parts_have_different_texts() {
        let parts = |mut number: usize| {
            let mut text = String::new();
            while number > 0 {
                text.push([' ', '/', '\\', '|'][number % 4]);
                number /= 4;
            }
            text.split('|').map(str::to_owned).collect::<Vec<_>>()
        };
        for number in 0..100_000 {
            let parts = parts(number);
            assert_eq!(parts_of(&joined(&parts)), parts);
        }
    }
}
