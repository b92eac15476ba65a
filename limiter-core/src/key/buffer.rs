//! Keys of annotated calls on the stack: a call with a formatted key executes 1,248 instructions
//! instead of 1,873 with `format!` (`annotated::formatted_key` in `benchmarks/figures.md`).
//!
//! The key of an annotated call is read by one decision, and most decisions complete without
//! waiting. A [`KeyBuffer`] therefore stores the escaped text of any key that is stored unhashed
//! without an allocation; a longer key moves to the heap. Both forms of a key, this one and the one
//! that [`Key::part`] builds, escape by the functions of this module. Tests: below, and
//! `tests/allocations.rs`.

use std::fmt;
use std::fmt::{Display, Write as _};

use crate::key::escape::push_escaped;
use crate::key::{Colon, Key};

/// More than the longest text that is stored unhashed.
const CAPACITY: usize = 256;

/// The escaped text of a key under construction.
#[derive(Debug)]
pub struct KeyBuffer {
    stack: [u8; CAPACITY],
    /// Number of bytes in `stack`.
    len: usize,
    /// The whole text if it exceeds the capacity, else empty.
    heap: String,
}

impl KeyBuffer {
    /// Creates an empty buffer.
    #[must_use]
    #[inline]
    #[expect(
        clippy::new_without_default,
        reason = "only expansions of attributes create buffers"
    )]
    pub fn new() -> Self {
        Self {
            stack: [0; CAPACITY],
            len: 0,
            heap: String::new(),
        }
    }

    /// Appends literal text, as [`Key::text`].
    #[inline]
    pub fn text(&mut self, text: &str) -> &mut Self {
        push_escaped(self, text, Colon::Plain);
        self
    }

    /// Appends a value, as [`Key::part`].
    #[inline]
    pub fn part(&mut self, value: impl Display) -> &mut Self {
        push_displayed(self, value, Colon::Escaped);
        self
    }

    /// Appends a whole key with plain colons.
    #[inline]
    pub(crate) fn whole(&mut self, value: impl Display) -> &mut Self {
        push_displayed(self, value, Colon::Plain);
        self
    }

    /// Copies a whole key with its group into an empty buffer.
    #[inline]
    pub(crate) fn copy_of(&mut self, key: &Key<'_>) -> Key<'_> {
        self.push_escaped_text(&key.text);
        let group = key.group.as_deref();
        self.push_escaped_text(group.unwrap_or_default());
        let (text, copied) = self.written_text().split_at(key.text.len());
        let text = Key::from_escaped_text(text);
        match group {
            None => text,
            Some(_) => text.in_group(Key::from_escaped_text(copied)),
        }
    }

    /// Returns the key.
    #[must_use]
    #[inline]
    pub fn key(&self) -> Key<'_> {
        Key::from_escaped_text(self.written_text())
    }

    #[inline]
    fn written_text(&self) -> &str {
        if self.heap.is_empty() {
            self.on_stack()
        } else {
            &self.heap
        }
    }

    #[inline]
    fn on_stack(&self) -> &str {
        let bytes = self.stack.get(..self.len).unwrap_or_default();
        // Escaped text is ASCII.
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    /// Appends escaped text.
    #[inline]
    fn push_escaped_text(&mut self, text: &str) {
        let end = self.len + text.len();
        match self.stack.get_mut(self.len..end) {
            Some(place) if self.heap.is_empty() => {
                place.copy_from_slice(text.as_bytes());
                self.len = end;
            }
            _ => self.write_on_heap(text),
        }
    }

    #[cold]
    fn write_on_heap(&mut self, text: &str) {
        if self.heap.is_empty() {
            self.heap = self.on_stack().to_owned();
        }
        self.heap.push_str(text);
    }
}

impl fmt::Write for KeyBuffer {
    #[inline]
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push_escaped_text(text);
        Ok(())
    }
}

/// Appends a value to escaped text.
#[inline]
pub(super) fn push_displayed<W: fmt::Write>(escaped: &mut W, value: impl Display, colon: Colon) {
    #[expect(clippy::expect_used, reason = "as in `to_string`: a partial value is no key")]
    write!(Escape { escaped, colon }, "{value}").expect("`Display` returned an error");
}

/// Escapes a value of a key while it is displayed.
struct Escape<'a, W> {
    escaped: &'a mut W,
    colon: Colon,
}

impl<W: fmt::Write> fmt::Write for Escape<'_, W> {
    #[inline]
    fn write_str(&mut self, text: &str) -> fmt::Result {
        push_escaped(self.escaped, text, self.colon);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::key::buffer::*;

    #[test]
    fn copied_key_equals_original() {
        let long = "ä:".repeat(CAPACITY);
        for text in ["", "ann", "a%{|}~ \0", &long] {
            for group in [None, Some(""), Some("g:h"), Some(&long)] {
                let key = Key::from("user:").part(text);
                let key = match group {
                    None => key,
                    Some(group) => key.in_group(group),
                };
                assert_eq!(KeyBuffer::new().copy_of(&key), key);
            }
        }
    }

    #[test]
    fn buffered_key_equals_built_key() {
        let long = "ä:".repeat(CAPACITY);
        for value in ["", "ann", "a:b", "a%{|}~ \0", &long] {
            let mut buffer = KeyBuffer::new();
            let built = Key::from("x:y").part(value).text(":").part(7);
            assert_eq!(buffer.text("x:y").part(value).text(":").part(7).key(), built);
            let mut buffer = KeyBuffer::new();
            assert_eq!(buffer.whole(value).key(), Key::from(value));
            assert_eq!(buffer.key().into_owned(), Key::from(value));
        }
    }
}
