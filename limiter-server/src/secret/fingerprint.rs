//! Fingerprints of keys, by which operators recognise one key without reading it.
//!
//! A fingerprint is the beginning of the HMAC-SHA-256 of the key under a secret of the namespace,
//! so it is equal in metadata, answers, records and pages, on all nodes. Without the secret, a list
//! of likely keys does not reveal the key. Tests: below.

use std::sync::{Arc, PoisonError, RwLock};

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// The number of hexadecimal digits of a fingerprint.
const DIGITS: usize = 12;

/// Computes the fingerprints of one namespace. Cheap to clone; clones share the secret.
#[derive(Clone, Default)]
pub struct KeyFingerprints(Arc<FingerprintSecret>);

#[derive(Default)]
struct FingerprintSecret {
    shared: RwLock<Option<Arc<str>>>,
    /// The secret of the settings, which has precedence.
    configured: Option<Arc<str>>,
}

/// Shows no secret.
impl std::fmt::Debug for KeyFingerprints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyFingerprints(..)")
    }
}

impl KeyFingerprints {
    /// Creates the fingerprints under the secret of the settings, or else under the one that the
    /// nodes of the namespace share, which [`share`](Self::share) sets.
    #[must_use]
    pub fn new(configured: Option<&str>) -> Self {
        Self(Arc::new(FingerprintSecret {
            shared: RwLock::default(),
            configured: configured.map(Arc::from),
        }))
    }

    /// Sets the secret that the nodes of the namespace share.
    pub fn share(&self, secret: &str) {
        let mut shared = self.0.shared.write().unwrap_or_else(PoisonError::into_inner);
        if shared.as_deref() != Some(secret) {
            *shared = Some(secret.into());
        }
    }

    /// Returns the secret that the nodes of the namespace share, if it is known.
    pub(crate) fn shared(&self) -> Option<Arc<str>> {
        self.0
            .shared
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns whether the settings contain the secret, so that the nodes need not share one.
    pub(crate) fn is_configured(&self) -> bool {
        self.0.configured.is_some()
    }

    /// Returns the fingerprint of a key with its parts separated by ` / `, or `None` while the
    /// secret is not known.
    #[must_use]
    pub fn of(&self, key: &str) -> Option<String> {
        let secret = self.0.configured.clone().or_else(|| self.shared())?;
        Some(fingerprint(secret.as_bytes(), key))
    }
}

/// Returns whether a text has the form of a fingerprint.
#[must_use]
pub fn is_fingerprint(text: &str) -> bool {
    text.len() == DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn fingerprint(secret: &[u8], key: &str) -> String {
    // HMAC accepts a secret of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) else {
        return String::new();
    };
    mac.update(key.as_bytes());
    let mut digits = super::hex(&mac.finalize().into_bytes());
    digits.truncate(DIGITS);
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test case 2.
    #[test]
    fn fingerprint_is_the_beginning_of_an_hmac() {
        assert_eq!(
            fingerprint(b"Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60"
        );
    }

    #[test]
    fn secret_of_the_settings_has_precedence() {
        let shared = KeyFingerprints::default();
        assert_eq!(shared.of("ann"), None);
        shared.share("a");
        let configured = KeyFingerprints::new(Some("b"));
        configured.share("a");
        let (one, other) = (shared.of("ann").unwrap(), configured.of("ann").unwrap());
        assert!(is_fingerprint(&one) && is_fingerprint(&other));
        assert_ne!(one, other);
        shared.share("b");
        assert_eq!(shared.of("ann"), Some(other));
        assert!(!is_fingerprint("acme") && !is_fingerprint("5BDCC146BF60"));
    }
}
