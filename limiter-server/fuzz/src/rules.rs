//! Rules: the index finds the first rule that matches, and no value imitates another key.

use crate::gateway::rules::{DescriptorEntry, RuleSet, matches};
use arbitrary::Arbitrary;
use limiter_core::registry::{PolicyRegistry, Rule};

/// A policy text and two descriptors.
#[derive(Arbitrary, Debug)]
pub struct RulesInput<'a> {
    text: &'a str,
    patterns: Vec<(Vec<&'a str>, Option<&'a str>, bool)>,
    domain: &'a str,
    descriptors: [Vec<(&'a str, &'a str)>; 2],
}

/// Checks the rules of the text, and those of the patterns.
pub fn check(input: &RulesInput<'_>) {
    if let Ok(registry) = PolicyRegistry::from_toml(input.text) {
        check_rules(registry.rules().iter().cloned().collect(), input);
    }
    let rules = input.patterns.iter().filter_map(|(patterns, domain, shares)| {
        let rule = Rule::new("p", patterns).ok()?;
        let rule = match domain {
            Some(domain) => rule.in_domain(*domain).ok()?,
            None => rule,
        };
        match shares {
            true => rule.share_prefixes().ok(),
            false => Some(rule),
        }
    });
    check_rules(rules.collect(), input);
}

fn check_rules(rules: Vec<Rule>, input: &RulesInput<'_>) {
    let [one, other] = &input.descriptors;
    check_pair(&RuleSet::new(rules.into()), input.domain, one, other);
}

/// The index finds the first rule that matches, and two descriptors of one rule have one key if and
/// only if the values of the key are equal.
pub(crate) fn check_pair<E: DescriptorEntry>(set: &RuleSet, domain: &str, one: &[E], other: &[E]) {
    let found = [one, other].map(|descriptor| {
        let found = set.find(domain, descriptor);
        if !set.rules().is_empty() && !descriptor.is_empty() {
            let mut rules = set.rules().iter();
            let first = rules.find(|rule| matches(rule, domain, descriptor));
            assert_eq!(found.as_ref().and_then(|found| found.rule), first);
        }
        found
    });
    if let [Some(one), Some(other)] = &found
        && one.rule == other.rule
        && one.policy == other.policy
    {
        assert_eq!(
            one.key == other.key,
            one.values == other.values,
            "{one:?} {other:?}"
        );
    }
}
