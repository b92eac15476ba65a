//! `limiter-server check`: validates a policy file for CI.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use limiter_core::registry::{PolicyRegistry, Rule};

use crate::serve::policies;

/// Reads the file and reports all of its errors, or else a summary with warnings.
pub(super) fn run(file: &Path) -> Result<(), String> {
    let registry = policies::read(file)?;
    let rules = registry.rules();
    let (policies, file) = (registry.names().len(), file.display());
    println!("{file}: policies: {policies}, rules: {}", rules.len());
    if policies == 0 {
        println!("warning: the file has no policy, so no call is limited");
    }
    for (number, earlier) in unreachable(&rules) {
        println!("warning: rule[{number}] is never used, because rule[{earlier}] has the same patterns");
    }
    for (domain, limits) in decided_in_order(&registry, &rules) {
        let domain = domain.unwrap_or("any domain");
        println!(
            "note: {domain}: limits of these rules have no common group; in one request they are decided \
             in order, and refunded if a later one denies: {}",
            limits.join(", ")
        );
    }
    Ok(())
}

/// Rules with the patterns and the domain of an earlier rule.
fn unreachable(rules: &[Rule]) -> Vec<(usize, usize)> {
    let mut unreachable = Vec::new();
    let mut first = BTreeMap::new();
    for (number, rule) in rules.iter().enumerate() {
        let patterns: Vec<String> = rule.patterns().iter().map(ToString::to_string).collect();
        let of_domain = |domain: Option<&str>| {
            (
                domain.map(str::to_owned),
                patterns.clone(),
                rule.allows_more_entries(),
            )
        };
        let earlier = first
            .get(&of_domain(rule.domain()))
            .or_else(|| first.get(&of_domain(None)));
        match earlier {
            Some(earlier) => unreachable.push((number, *earlier)),
            None => {
                first.insert(of_domain(rule.domain()), number);
            }
        }
    }
    unreachable
}

/// For each domain the rules that have no common group, if there are several.
fn decided_in_order<'a>(
    registry: &PolicyRegistry,
    rules: &'a [Rule],
) -> BTreeMap<Option<&'a str>, Vec<String>> {
    let mut domains: BTreeMap<Option<&str>, (BTreeSet<String>, Vec<String>)> = BTreeMap::new();
    for (number, rule) in rules.iter().enumerate() {
        let entry = registry.get(rule.policy());
        let of_policy = entry.as_ref().and_then(|entry| entry.policy().group());
        let group = rule.group().or(of_policy).map(str::to_owned);
        let (tags, limits) = domains.entry(rule.domain()).or_default();
        // Without a group, the key is the tag, and the keys of two rules are rarely equal.
        tags.insert(group.map_or_else(|| format!("rule {number}"), |group| format!("group {group}")));
        limits.push(format!("rule[{number}] {}", rule.policy()));
    }
    let several = domains.into_iter().filter(|(_, (tags, _))| tags.len() > 1);
    several.map(|(domain, (_, limits))| (domain, limits)).collect()
}
