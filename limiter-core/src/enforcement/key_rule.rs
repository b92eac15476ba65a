//! What the key lists of a policy say about a key, and the warning about entries that never match.

use crate::key::Key;
use crate::policy::{KeyList, Network, Policy};

/// What the key lists of a policy say about a key. A deny list takes precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyRule {
    Denied,
    Allowed,
    Unlisted,
}

impl KeyRule {
    pub(crate) fn of(policy: &Policy, key: &Key<'_>) -> Self {
        let (deny, allow) = (policy.deny_keys(), policy.allow_keys());
        if deny.is_none() && allow.is_none() {
            return Self::Unlisted;
        }
        warn_of_unmatchable_entries(policy, key);
        if deny.is_some_and(|list| list.denies(key)) {
            Self::Denied
        } else if allow.is_some_and(|list| list.allows(key)) {
            Self::Allowed
        } else {
            Self::Unlisted
        }
    }
}

/// Warns once for each version of a policy if a key is a network that is larger than entries of its lists: the
/// keys have this prefix, and these entries match none of them.
fn warn_of_unmatchable_entries(policy: &Policy, key: &Key<'_>) {
    // A single address is matched by every entry that contains it.
    if !key.as_str().contains('/') {
        return;
    }
    let lists = [
        ("deny_keys", policy.deny_keys()),
        ("allow_keys", policy.allow_keys()),
    ];
    let is_longer = |network| {
        let mut lists = lists.iter().filter_map(|(_, list)| *list);
        lists.any(|list| list.has_longer_than(network))
    };
    let Some(network) = Network::of_key(key.as_str()).filter(|network| is_longer(*network)) else {
        return;
    };
    if policy
        .reported_prefixes()
        .is_some_and(|reported| reported.is_new(network))
    {
        let lists = lists.into_iter().filter_map(|(name, list)| Some((name, list?)));
        lists.for_each(|(name, list)| warn(policy, name, list, network));
    }
}

#[cold]
fn warn(policy: &Policy, list: &str, keys: &KeyList, network: Network) {
    const SHOWN: usize = 10;
    let mut entries = keys.longer_than(network);
    let shown: Vec<&str> = entries.by_ref().take(SHOWN).collect();
    if shown.is_empty() {
        return;
    }
    tracing::warn!(
        policy = policy.name(),
        list,
        entries = shown.join(", "),
        more = entries.count(),
        prefix = network.prefix(),
        "entries of a key list never match: they are longer than the prefix of the keys; shorten them, or lengthen \
         the prefix of the keys"
    );
}
