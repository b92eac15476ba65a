//! SipHash-1-3 with 128 bits (J.-P. Aumasson and D. J. Bernstein, 2012), over texts that are padded
//! to whole words.
//!
//! The common texts of a policy are absorbed once; each call then needs one round per word of its
//! key. A hasher that accepts bytes in arbitrary chunks spends as much time on their ends as on the
//! rounds.

/// The state after the absorbed words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sip {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
    bytes: usize,
}

impl Sip {
    pub(super) fn new(k0: u64, k1: u64) -> Self {
        Self {
            v0: k0 ^ 0x736f_6d65_7073_6575,
            v1: k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            v2: k0 ^ 0x6c79_6765_6e65_7261,
            v3: k1 ^ 0x7465_6462_7974_6573,
            bytes: 0,
        }
    }

    /// Absorbs a text and its length, so that no two sequences of texts are absorbed alike.
    pub(super) fn text(&mut self, text: &str) {
        let rest = self.words(text);
        self.word(rest_of(text, rest));
        self.word(text.len() as u64);
        self.bytes += (text.len() / 8 + 2) * 8;
    }

    /// Returns the hash of the absorbed texts and a last text.
    #[inline(always)]
    pub(super) fn finish(mut self, text: &str) -> u128 {
        let rest = self.words(text);
        // The lowest byte of the length ends the message; the absorbed part is equal for all texts
        // that are compared.
        let len = (self.bytes + text.len()) as u64;
        self.word(rest_of(text, rest) | len << 56);
        self.v2 ^= 0xee;
        let low = self.output();
        self.v1 ^= 0xdd;
        let high = self.output();
        u128::from(high) << 64 | u128::from(low)
    }

    /// Absorbs the whole words of a text and returns the remaining bytes.
    #[inline]
    fn words<'a>(&mut self, text: &'a str) -> &'a [u8] {
        let mut rest = text.as_bytes();
        while let Some((word, after)) = rest.split_first_chunk() {
            self.word(u64::from_le_bytes(*word));
            rest = after;
        }
        rest
    }

    #[inline]
    fn word(&mut self, word: u64) {
        self.v3 ^= word;
        self.round();
        self.v0 ^= word;
    }

    #[inline]
    fn output(&mut self) -> u64 {
        (0..3).for_each(|_| self.round());
        self.v0 ^ self.v1 ^ self.v2 ^ self.v3
    }

    #[inline]
    fn round(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.rotate_left(32).wrapping_add(self.v3);
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v2 = self.v2.rotate_left(32);
    }
}

/// Returns the bytes after the whole words, at most seven, as the lower end of a word.
#[inline]
fn rest_of(text: &str, rest: &[u8]) -> u64 {
    match (rest.len(), text.as_bytes().last_chunk()) {
        (0, _) => 0,
        // Reads the last eight bytes at once and drops those of the previous word.
        (rest, Some(last)) => u64::from_le_bytes(*last) >> (64 - 8 * rest),
        (_, None) => rest
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher;

    use siphasher::sip128::{Hasher128, SipHasher13};

    use crate::identity::sip::*;

    #[test]
    fn sip_equals_reference_implementation() {
        let mut reference = SipHasher13::new_with_keys(7, 11);
        let mut sip = Sip::new(7, 11);
        for text in ["", "a", "12345678", "123456789abcdef0", "123456789abcdef01"] {
            let mut padded = text.as_bytes().to_vec();
            padded.resize((text.len() / 8 + 1) * 8, 0);
            reference.write(&padded);
            reference.write(&(text.len() as u64).to_le_bytes());
            sip.text(text);
            for len in 0..300 {
                let key = "k".repeat(len);
                let mut reference = reference;
                reference.write(key.as_bytes());
                assert_eq!(sip.finish(&key), reference.finish128().as_u128(), "{text} {len}");
            }
        }
    }
}
