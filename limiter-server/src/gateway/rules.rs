//! Matching: from the entries of a descriptor to a policy and a key. Pure; no I/O and no clock.
//!
//! Rules are tried in order, and the first that matches applies. A rule matches if its domain is
//! that of the request and its patterns match the entries one by one; only a rule with `...`
//! accepts further entries. The values of entries whose pattern has no value, or a prefix, form the
//! key; each is escaped, so that no value can imitate another key. Without any rules, the default
//! mapping applies. Tests: the properties below, and `tests/envoy`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use limiter_core::Key;
use limiter_core::registry::{EntryPattern, Rule};

/// The entry that names the policy in the default mapping.
const GENERIC_KEY: &str = "generic_key";

/// An entry of a descriptor.
pub trait DescriptorEntry {
    /// Returns the key of the entry.
    fn key(&self) -> &str;
    /// Returns the value of the entry.
    fn value(&self) -> &str;
}

impl DescriptorEntry for (&str, &str) {
    fn key(&self) -> &str {
        self.0
    }

    fn value(&self) -> &str {
        self.1
    }
}

/// The limit of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedLimit<'a> {
    /// The name of the policy, which may not exist.
    pub policy: Cow<'a, str>,
    /// The key, in the group of the rule if it sets one.
    pub key: Key<'static>,
    /// The matching rule; `None` in the default mapping.
    pub rule: Option<&'a Rule>,
    /// The number of the matching rule in [`RuleSet::rules`].
    pub number: Option<usize>,
    /// The values of the key in clear text.
    pub values: Vec<String>,
}

impl MatchedLimit<'_> {
    /// Returns whether costs are charged beyond the capacity.
    #[must_use]
    pub fn settles(&self) -> bool {
        self.rule.is_some_and(Rule::settles)
    }
}

/// The rules in force, indexed by the key of the first entry.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    rules: Arc<[Rule]>,
    /// The numbers of the rules whose first pattern has this key, and of those without patterns.
    by_first_key: HashMap<Box<str>, Vec<usize>>,
    /// The numbers of the rules without patterns.
    without_patterns: Vec<usize>,
}

impl RuleSet {
    /// Indexes rules.
    #[must_use]
    pub fn new(rules: Arc<[Rule]>) -> Self {
        let mut by_first_key: HashMap<Box<str>, Vec<usize>> = HashMap::new();
        for rule in rules.iter() {
            if let Some(first) = rule.patterns().first() {
                by_first_key.entry(first.key().into()).or_default();
            }
        }
        let mut without_patterns = Vec::new();
        for (number, rule) in rules.iter().enumerate() {
            match rule.patterns().first() {
                Some(first) => by_first_key.entry(first.key().into()).or_default().push(number),
                None => {
                    without_patterns.push(number);
                    by_first_key.values_mut().for_each(|list| list.push(number));
                }
            }
        }
        Self {
            rules,
            by_first_key,
            without_patterns,
        }
    }

    /// Returns the rules, in order.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Finds the limit of a descriptor; `None` if no rule matches.
    #[must_use]
    pub fn find<'a, E: DescriptorEntry>(&'a self, domain: &str, entries: &[E]) -> Option<MatchedLimit<'a>> {
        if self.rules.is_empty() {
            return Some(default_mapping(domain, entries));
        }
        let first = entries.first()?;
        let candidates = self.by_first_key.get(first.key());
        let candidates = candidates.unwrap_or(&self.without_patterns);
        let mut rules = candidates
            .iter()
            .filter_map(|number| Some((*number, self.rules.get(*number)?)));
        let found = rules.find(|(_, rule)| matches(rule, domain, entries))?;
        Some(apply(found, entries))
    }
}

/// Returns whether a rule accepts a descriptor.
#[must_use]
pub fn matches<E: DescriptorEntry>(rule: &Rule, domain: &str, entries: &[E]) -> bool {
    let patterns = rule.patterns();
    let has_length = match rule.allows_more_entries() {
        true => entries.len() >= patterns.len(),
        false => entries.len() == patterns.len(),
    };
    has_length
        && rule.domain().is_none_or(|of_rule| of_rule == domain)
        && patterns
            .iter()
            .zip(entries)
            .all(|(pattern, entry)| pattern.matches(entry.key(), entry.value()))
}

fn apply<'a, E: DescriptorEntry>((number, rule): (usize, &'a Rule), entries: &[E]) -> MatchedLimit<'a> {
    let is_part = |pattern: &EntryPattern| match pattern.prefix() {
        Some(_) => !rule.shares_prefixes(),
        None => pattern.exact_value().is_none(),
    };
    let parts = rule.patterns().iter().zip(entries);
    let parts = parts.filter(|(pattern, _)| is_part(pattern));
    let values: Vec<String> = parts.map(|(_, entry)| entry.value().to_owned()).collect();
    let key = key_of(values.iter().map(String::as_str));
    let key = match rule.group() {
        Some(group) => key.in_group(Key::from(group).into_owned()),
        None => key,
    };
    MatchedLimit {
        policy: Cow::Borrowed(rule.policy()),
        key,
        rule: Some(rule),
        number: Some(number),
        values,
    }
}

/// Returns the mapping without rules: the policy is named by the value of `generic_key`, or else by
/// the keys of the entries joined by `.`. The key consists of the domain and the other values.
fn default_mapping<E: DescriptorEntry>(domain: &str, entries: &[E]) -> MatchedLimit<'static> {
    let generic = entries.iter().position(|entry| entry.key() == GENERIC_KEY);
    let policy = match generic.and_then(|at| entries.get(at)) {
        Some(entry) => entry.value().to_owned(),
        None => joined_keys(entries),
    };
    let others = entries.iter().enumerate();
    let others = others.filter(|(at, _)| Some(*at) != generic);
    let mut values = vec![domain.to_owned()];
    values.extend(others.map(|(_, entry)| entry.value().to_owned()));
    MatchedLimit {
        policy: policy.into(),
        key: key_of(values.iter().map(String::as_str)),
        rule: None,
        number: None,
        values,
    }
}

/// Returns the keys of the entries joined by `.`.
fn joined_keys<E: DescriptorEntry>(entries: &[E]) -> String {
    let keys: Vec<&str> = entries.iter().map(DescriptorEntry::key).collect();
    keys.join(".")
}

/// Returns a key of several values.
pub(crate) fn key_of<'a>(values: impl IntoIterator<Item = &'a str>) -> Key<'static> {
    let mut key = Key::global();
    for (number, value) in values.into_iter().enumerate() {
        if number > 0 {
            key = key.text(":");
        }
        key = key.part(value);
    }
    key.into_owned()
}

// The fuzz targets include this file by its path, from which the default path would differ.
#[cfg(test)]
#[path = "rules/tests.rs"]
mod tests;
