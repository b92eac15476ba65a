//! Bearer tokens: 256 random bits, of which the server keeps the SHA-256.
//!
//! The hash needs no salt and no slow function, because the secret has the entropy of a key. Tables
//! find a token by the first eight bytes of its hash. The use of a token is a mark that clones
//! share, and a marked token is not written again.
//!
//! Invariants: hashes are compared in constant time, and no `Debug` form shows a secret. Tests:
//! below, `tests/access.rs`, `tests/issued_tokens.rs`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::access::{Expiry, Scope};

/// The start of every secret, by which scanners find leaked ones.
const PREFIX: &str = "lim_";
/// The random bytes of a secret.
const RANDOM_BYTES: usize = 32;

/// A configured token.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Token {
    /// The name in logs.
    pub name: String,
    /// The hash of the secret.
    #[serde(rename = "sha256")]
    pub hash: TokenHash,
    /// The permitted actions.
    pub scopes: Vec<Scope>,
    /// The end of its validity.
    pub expires: Expiry,
    /// The mark of a token that was used after the last record.
    #[serde(skip)]
    pub(super) usage: TokenUsage,
}

/// The mark of a used token. Clones share the mark; it is no part of the identity of a token.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenUsage(Arc<AtomicBool>);

impl PartialEq for TokenUsage {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for TokenUsage {}

impl TokenUsage {
    /// Marks the token. A marked token is not written, since all threads share the cache line.
    pub(super) fn mark(&self) {
        if !self.0.load(Ordering::Relaxed) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Removes the mark. Returns whether there was one.
    pub(super) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Token {
    /// Creates a token.
    #[must_use]
    pub fn new(name: String, hash: TokenHash, scopes: Vec<Scope>, expires: Expiry) -> Self {
        Self {
            name,
            hash,
            scopes,
            expires,
            usage: TokenUsage::default(),
        }
    }
}

/// The SHA-256 of a secret. Text form: 64 hexadecimal digits.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// Hashes the secret that a client sent.
    #[must_use]
    pub fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }

    /// Returns the part by which tables find a hash before they compare it as a whole.
    pub(super) fn index(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

/// Compares in constant time.
impl PartialEq for TokenHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for TokenHash {}

impl TryFrom<String> for TokenHash {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for TokenHash {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || "expected the SHA-256 of the token as 64 hexadecimal digits".to_owned();
        if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(malformed());
        }
        let mut hash = [0; 32];
        for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| malformed())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| malformed())?;
        }
        Ok(Self(hash))
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenHash({self})")
    }
}

/// A new secret, which is shown once.
pub struct TokenSecret(String);

impl TokenSecret {
    /// Creates a secret of 256 random bits.
    ///
    /// # Errors
    ///
    /// The reason why the system has no random bits.
    pub fn generate() -> Result<Self, String> {
        let mut bytes = [0; RANDOM_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| format!("cannot read random bits: {error}"))?;
        Ok(Self(format!("{PREFIX}{}", TokenHash(bytes))))
    }

    /// Returns the text that the client sends.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns the hash to configure.
    #[must_use]
    pub fn hash(&self) -> TokenHash {
        TokenHash::of(&self.0)
    }
}

/// Shows no secret.
impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_have_256_bits_and_differ() {
        let [first, second] = [(); 2].map(|()| TokenSecret::generate().unwrap());
        let digits = first.expose().strip_prefix("lim_").unwrap();
        assert_eq!(digits.len(), 64);
        assert!(digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        assert_ne!(first.hash(), second.hash());
        assert_eq!(format!("{first:?}"), "TokenSecret(..)");
    }

    #[test]
    fn hash_is_the_sha_256_of_the_whole_secret() {
        // `printf lim_test | sha256sum`
        let expected = "32183264f81baa6b51896903aed21f25225afe85aac8ec8f908cd9196e954bb3";
        assert_eq!(TokenHash::of("lim_test").to_string(), expected);
        assert_eq!(
            expected.to_uppercase().parse::<TokenHash>().unwrap(),
            TokenHash::of("lim_test")
        );
        for malformed in ["", "00", &"g".repeat(64), &"0".repeat(63), &"é".repeat(32)] {
            assert!(malformed.parse::<TokenHash>().is_err(), "{malformed}");
        }
    }
}
