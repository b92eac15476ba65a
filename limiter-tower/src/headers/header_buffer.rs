//! Structured fields (RFC 9651), as they are written.

use std::time::Duration;

use bytes::Bytes;
use limiter_core::__private::whole_seconds;

/// The largest integer of a structured field.
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// What most values fit in.
const ROOM: usize = 128;

/// Header values, one after the other. They are copied once, when their length is known, so that
/// they take one allocation.
#[derive(Debug)]
pub(super) struct HeaderBuffer {
    short: [u8; ROOM],
    len: usize,
    /// All of it, once it is longer than that.
    long: Vec<u8>,
}

impl Default for HeaderBuffer {
    fn default() -> Self {
        Self {
            short: [0; ROOM],
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
        // What is written is ASCII.
        String::from_utf8_lossy(&self.into_bytes()).into_owned()
    }

    pub(super) fn push(&mut self, text: &str) {
        self.extend(text.as_bytes());
    }

    /// An integer: larger ones than a field holds are the largest.
    pub(super) fn integer(&mut self, number: u64) {
        self.push(itoa::Buffer::new().format(number.min(MAX_INTEGER)));
    }

    /// Whole seconds, rounded up, and at least one.
    pub(super) fn seconds(&mut self, span: Duration) {
        self.integer(whole_seconds(span));
    }

    /// A string. What it cannot carry (controls, and all beyond ASCII) is percent-encoded, and so
    /// is the percent sign, lest two names become one.
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
        if let Some(room) = self.short.get_mut(self.len..end) {
            room.copy_from_slice(bytes);
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
