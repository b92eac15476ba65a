//! Values that explain a decision to operators, in the same words for all protocols.

use hmac::{Hmac, Mac};
use limiter_core::Origin;
use limiter_core::registry::Rule;
use sha2::Sha256;

use crate::gateway::Gateway;
use crate::settings::KeyInMetadata;

/// The number of hexadecimal digits of a hashed key.
const HASH_DIGITS: usize = 12;

impl Gateway {
    /// The revision of the registry: that of Redis, or else the number of changes in this process.
    #[must_use]
    pub fn revision(&self) -> u64 {
        let registry = self.limiter().registry();
        registry.published().unwrap_or_else(|| registry.revision())
    }

    /// The key of a limit as the settings allow it to be shown.
    #[must_use]
    pub fn shown_key(&self, values: &[String]) -> Option<String> {
        let key = values.join(":");
        match &self.envoy_settings().key_in_metadata {
            KeyInMetadata::Omit => None,
            KeyInMetadata::Plain => Some(key),
            KeyInMetadata::Hashed { secret } => Some(hashed(secret, &key)),
        }
    }
}

/// The first digits of an HMAC, by which one key can be recognised without being revealed.
fn hashed(secret: &[u8], key: &str) -> String {
    // HMAC accepts a secret of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) else {
        return String::new();
    };
    mac.update(key.as_bytes());
    let digits = mac.finalize().into_bytes();
    let digits: String = digits.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.chars().take(HASH_DIGITS).collect()
}

/// A rule as one line: its domain and patterns, such as `edge: route=login, remote_address`.
#[must_use]
pub(crate) fn rule_text(rule: &Rule) -> String {
    let patterns: Vec<String> = rule.patterns().iter().map(ToString::to_string).collect();
    let more = if rule.allows_more_entries() { ", ..." } else { "" };
    let patterns = format!("{}{more}", patterns.join(", "));
    match rule.domain() {
        Some(domain) => format!("{domain}: {patterns}"),
        None => patterns,
    }
}

/// The name of an origin.
#[must_use]
pub fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Redis => "redis",
        Origin::DenyCache => "deny_cache",
        Origin::Memory => "memory",
        Origin::Lease => "lease",
        Origin::LocalFallback => "local_fallback",
        Origin::FailedOpen => "failed_open",
        Origin::FailedClosed => "failed_closed",
        Origin::KeyList => "key_list",
        Origin::Off => "off",
        Origin::Suspension => "suspension",
        Origin::Block => "block",
        _ => "none",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test case 2.
    #[test]
    fn hashed_key_is_the_beginning_of_its_hmac() {
        assert_eq!(hashed(b"Jefe", "what do ya want for nothing?"), "5bdcc146bf60");
    }
}
