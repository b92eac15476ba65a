//! Key lists of a policy: the rule for a key, and the warning about entries that never match.
//!
//! A key is denied, allowed or unlisted before the store is queried; the deny list takes
//! precedence. Keys of a layer may be networks of a fixed prefix, and an entry that is longer than
//! this prefix matches none of them, so it is an error of `verify` or is logged once for each
//! version of the policy. Tests: `tests/contract/key_lists.rs`, `tests/contract/overlays.rs`
//! (ends), `tests/key_lists.rs` (warnings).

use crate::decision::Origin;
use crate::error::ConfigError;
use crate::key::Key;
use crate::policy::{KeyList, KeyPrefixes, Network, Policy, ReportedPrefixes};
use crate::support::clock::Clock;
use crate::units::Timestamp;

/// The rule for a key that needs no store. A denial takes precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyRule {
    /// Denied by a key list, a block or a suspension.
    Denied(Origin),
    Allowed,
    Unlisted,
}

impl KeyRule {
    /// Returns the rule of the policy's key lists.
    pub(super) fn for_key(policy: &Policy, key: &Key<'_>, clock: &Clock) -> Self {
        let (deny, allow) = (policy.deny_keys(), policy.allow_keys());
        if deny.is_none() && allow.is_none() {
            return Self::Unlisted;
        }
        warn_of_unmatchable(policy, key);
        let has_ends = deny.into_iter().chain(allow).any(KeyList::has_ends);
        let now = if has_ends {
            clock.calendar()
        } else {
            Timestamp::default()
        };
        if deny.is_some_and(|list| list.denies(key, now)) {
            Self::Denied(Origin::KeyList)
        } else if allow.is_some_and(|list| list.allows(key, now)) {
            Self::Allowed
        } else {
            Self::Unlisted
        }
    }
}

impl KeyRule {
    /// Fails if entries of the policy's lists are longer than the prefixes of all keys.
    pub(crate) fn verify(policy: &Policy, prefixes: KeyPrefixes) -> Result<(), ConfigError> {
        let mut errors = Vec::new();
        for (name, list) in lists(policy) {
            for network in prefixes.networks() {
                let expected = format!(
                    "at most {} bits, which is the prefix of the layer's keys",
                    network.prefix()
                );
                let longer = list.longer_than(network);
                errors.extend(longer.map(|entry| ConfigError::invalid(name, entry, expected.clone())));
            }
        }
        match ConfigError::several(errors) {
            Some(error) => Err(error.of_policy(policy.name())),
            None => Ok(()),
        }
    }

    /// Warns of the entries for which [`verify`](Self::verify) fails, once for each version of the
    /// policy.
    pub(crate) fn warn_of_unmatchable_entries(policy: &Policy, prefixes: KeyPrefixes) {
        for network in prefixes.networks() {
            warn_of_longer_entries(policy, network);
        }
    }
}

/// Returns the key lists of a policy, with the names that errors give to their entries.
fn lists(policy: &Policy) -> impl Iterator<Item = (&'static str, &KeyList)> {
    let deny = policy.deny_keys().map(|list| ("entry of deny_keys", list));
    let allow = policy.allow_keys().map(|list| ("entry of allow_keys", list));
    deny.into_iter().chain(allow)
}

/// Warns if a key is a network that is larger than entries of the lists: the keys have this prefix,
/// and these entries match none of them.
fn warn_of_unmatchable(policy: &Policy, key: &Key<'_>) {
    // A single address is matched by every entry that contains it.
    if key.as_str().contains('/') {
        if let Some(network) = Network::of_key(key.as_str()) {
            warn_of_longer_entries(policy, network);
        }
    }
}

fn warn_of_longer_entries(policy: &Policy, network: Network) {
    let is_longer = lists(policy).any(|(_, list)| list.has_longer_than(network));
    let is_new = |reported: &ReportedPrefixes| reported.is_new(network);
    if is_longer && policy.reported_prefixes().is_some_and(is_new) {
        lists(policy).for_each(|(name, list)| warn(policy, name, list, network));
    }
}

#[cold]
fn warn(policy: &Policy, name: &str, list: &KeyList, network: Network) {
    const SHOWN: usize = 10;
    let mut entries = list.longer_than(network);
    let shown: Vec<&str> = entries.by_ref().take(SHOWN).collect();
    if shown.is_empty() {
        return;
    }
    tracing::warn!(
        policy = policy.name(),
        list = name.trim_start_matches("entry of "),
        entries = shown.join(", "),
        more = entries.count(),
        prefix = network.prefix(),
        "entries of a key list never match: they are longer than the prefix of the keys; shorten them, or lengthen \
         the prefix of the keys"
    );
}
