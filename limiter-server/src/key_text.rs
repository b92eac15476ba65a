//! A key as one text: its parts, separated by ` / `.
//!
//! Pages, records, logs and fingerprints have this text, and pages send it back as a key. A part
//! can contain the separator itself, so [`joined`] writes a backslash before a slash of a part that
//! would be read as a separator: the parts `a / b` and `c` are `a \/ b / c`. A slash between a
//! space and more backslashes gets one more.
//!
//! Invariant: `parts_of(joined(parts))` are the parts. Tests: below, and
//! `tests/pages/key_parts.rs`.

use std::borrow::Cow;

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
