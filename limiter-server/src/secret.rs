//! Random secrets and their hashes.
//!
//! A secret has 256 random bits, so a plain SHA-256 is enough to store it: there is nothing to
//! guess. Passwords are hashed by `admin/auth/password.rs`.

pub mod fingerprint;

use crate::access::TokenHash;

/// A secret that a client presents: a token, a session, the link of the first run. The program
/// stores its hash only.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// Shows no secret.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Returns a new secret of 256 bits with a prefix.
    #[must_use]
    pub fn generate(prefix: &str) -> Self {
        let mut bytes = [0_u8; 32];
        fill(&mut bytes);
        Self(format!("{prefix}{}", hex(&bytes)))
    }

    /// Returns the text that is shown once.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns the hash that is stored.
    #[must_use]
    pub fn hash(&self) -> String {
        hash(&self.0)
    }
}

/// Returns the SHA-256 of a secret in hexadecimal.
#[must_use]
pub fn hash(secret: &str) -> String {
    TokenHash::of(secret).to_string()
}

/// Returns a random name of 64 bits.
#[must_use]
pub fn random_id() -> String {
    let mut bytes = [0_u8; 8];
    fill(&mut bytes);
    hex(&bytes)
}

fn fill(bytes: &mut [u8]) {
    #[expect(
        clippy::expect_used,
        reason = "without random numbers of the system, no secret can be made"
    )]
    getrandom::fill(bytes).expect("random numbers of the system");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_have_a_stable_hash() {
        let (first, second) = (Secret::generate("lim_"), Secret::generate("lim_"));
        assert_ne!(first, second);
        assert!(first.reveal().starts_with("lim_") && first.reveal().len() == 68);
        assert_eq!(first.hash(), hash(first.reveal()));
        assert_eq!(
            hash("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(format!("{first:?}"), "Secret(..)");
    }
}
