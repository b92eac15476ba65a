//! A buffer that formats structured fields (RFC 9651) in one allocation: with one for each header,
//! a request of `layer-axum-headers` takes 32 ns more than 970.
//!
//! The crate `sfv` is not used here, because it allocates a `String` for each header.
//!
//! Invariant: each number and string is valid in a structured field. Tests:
//! `headers/tests/syntax.rs` (`lists_are_valid_structured_fields`,
//! `numbers_are_clamped_to_structured_field_range`), `tests/allocations.rs`
//! (`headers_allocate_one_buffer_and_its_shared_handle`).

use std::time::Duration;

use bytes::Bytes;
use limiter_core::__private::whole_seconds;

/// The largest integer of a structured field.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Most values fit into this number of bytes.
const INLINE_LENGTH: usize = 128;

/// Concatenated header values. They are copied once, when their length is known, into one
/// allocation.
#[derive(Debug)]
pub(super) struct HeaderBuffer {
    short: [u8; INLINE_LENGTH],
    len: usize,
    /// The whole content if it is longer than `short`.
    long: Vec<u8>,
}

impl Default for HeaderBuffer {
    fn default() -> Self {
        Self {
            short: [0; INLINE_LENGTH],
            len: 0,
            long: Vec::new(),
        }
    }
}

impl HeaderBuffer {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn into_bytes(self) -> Bytes {
        match self.short.get(..self.len) {
            Some(short) => Bytes::copy_from_slice(short),
            None => Bytes::from(self.long),
        }
    }

    pub(super) fn into_string(self) -> String {
        // The content is ASCII.
        String::from_utf8_lossy(&self.into_bytes()).into_owned()
    }

    pub(super) fn push(&mut self, text: &str) {
        self.extend(text.as_bytes());
    }

    /// Appends an integer, at most the largest of a structured field.
    pub(super) fn integer(&mut self, number: u64) {
        self.push(itoa::Buffer::new().format(number.min(MAX_INTEGER)));
    }

    /// Appends whole seconds, rounded up, at least 1.
    pub(super) fn seconds(&mut self, span: Duration) {
        self.integer(whole_seconds(span));
    }

    /// Appends a string. Control characters, characters beyond ASCII and the percent sign are
    /// percent-encoded, so that different names stay different.
    pub(super) fn string(&mut self, text: &str) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let hex = |nibble: u8| HEX.get(usize::from(nibble)).copied().unwrap_or(b'0');
        self.push("\"");
        if text
            .bytes()
            .all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\' | b'%'))
        {
            self.push(text);
        } else {
            for byte in text.bytes() {
                match byte {
                    b'"' | b'\\' => self.extend(&[b'\\', byte]),
                    b' '..=b'~' if byte != b'%' => self.extend(&[byte]),
                    _ => self.extend(&[b'%', hex(byte >> 4), hex(byte & 15)]),
                }
            }
        }
        self.push("\"");
    }

    fn extend(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if let Some(target) = self.short.get_mut(self.len..end) {
            target.copy_from_slice(bytes);
        } else {
            if self.long.is_empty() {
                self.long
                    .extend_from_slice(self.short.get(..self.len).unwrap_or_default());
            }
            self.long.extend_from_slice(bytes);
        }
        self.len = end;
    }
}
