//! `limiter-server check`: validates a policy file for CI.
//!
//! Errors are those of the server, because the file is read by the same function. The command also
//! warns of a file without policies and of rules with the patterns of an earlier rule, and notes
//! the limits that one request can have but that are not decided atomically, by domain.
//!
//! Warnings and notes do not change the exit code. Tests: `tests/commands.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use limiter_core::registry::{PolicyRegistry, Rule};

use crate::cli::print_text;
use crate::gateway::charge::sets::MAX_ATOMIC;
use crate::serve::policies;

/// Reads the file and reports all of its errors, or else a summary with warnings.
pub(super) fn run(file: &Path) -> Result<(), String> {
    let registry = policies::read(file)?;
    let rules = registry.rules();
    let (policies, file) = (registry.names().len(), file.display());
    let mut lines = vec![format!("{file}: policies: {policies}, rules: {}", rules.len())];
    if policies == 0 {
        lines.push("warning: the file has no policy, so no call is limited".to_owned());
    }
    lines.extend(unreachable(&rules).into_iter().map(|(number, earlier)| {
        format!("warning: rule[{number}] is never used, because rule[{earlier}] has the same patterns")
    }));
    let notes = decided_in_order(&registry, &rules).into_iter();
    lines.extend(notes.map(|note| format!("note: {note}")));
    print_text(&format!("{}\n", lines.join("\n")))
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

/// Returns the limits that one request can have, and that are not decided atomically, as notes.
fn decided_in_order(registry: &PolicyRegistry, rules: &[Rule]) -> Vec<String> {
    if rules.is_empty() {
        return without_rules(registry).into_iter().collect();
    }
    let named: BTreeSet<&str> = rules.iter().filter_map(Rule::domain).collect();
    let of_all = rules.iter().any(|rule| rule.domain().is_none());
    let other = match named.is_empty() {
        true => "any domain",
        false => "any other domain",
    };
    let domains = named.iter().map(|domain| (Some(*domain), *domain));
    let domains = domains.chain(of_all.then_some((None, other)));
    domains
        .flat_map(|(domain, shown)| notes_of_domain(registry, rules, domain, shown))
        .collect()
}

/// Returns the notes on the rules that apply to requests of a domain: its own, and those of all
/// domains.
fn notes_of_domain(
    registry: &PolicyRegistry,
    rules: &[Rule],
    domain: Option<&str>,
    shown: &str,
) -> Vec<String> {
    let mut tags: BTreeMap<String, usize> = BTreeMap::new();
    let mut limits = Vec::new();
    let applies = |rule: &Rule| rule.domain().is_none() || rule.domain() == domain;
    for (number, rule) in rules.iter().enumerate().filter(|(_, rule)| applies(rule)) {
        let entry = registry.get(rule.policy());
        let of_policy = entry.as_ref().and_then(|entry| entry.policy().group());
        // Without a group, the key is the tag, and the keys of two rules are rarely equal.
        let tag = match rule.group().or(of_policy) {
            Some(group) => format!("group {group}"),
            None => format!("rule[{number}]"),
        };
        *tags.entry(tag).or_default() += 1;
        limits.push(format!("rule[{number}] {}", rule.policy()));
    }
    let mut notes = Vec::new();
    if tags.len() > 1 {
        notes.push(format!(
            "{shown}: limits of these rules have no common group; in one request they are decided in order, and \
             refunded if a later one denies: {}",
            limits.join(", ")
        ));
    }
    for (tag, count) in tags.into_iter().filter(|(_, count)| *count > MAX_ATOMIC) {
        notes.push(format!(
            "{shown}: {count} rules have the {tag}; a request with more than {MAX_ATOMIC} of their limits is decided \
             in sets of {MAX_ATOMIC} in order, and refunded if a later set denies"
        ));
    }
    notes
}

/// Returns the note on a file without rules, where descriptors name policies.
fn without_rules(registry: &PolicyRegistry) -> Option<String> {
    let names = registry.names();
    let entries = names.iter().filter_map(|name| registry.get(name));
    let tags = entries.map(|entry| match entry.policy().group() {
        Some(group) => format!("group {group}"),
        None => format!("policy {}", entry.policy().name()),
    });
    let tags: BTreeSet<String> = tags.collect();
    (tags.len() > 1).then(|| {
        "the file has no rule, so descriptors name policies by the default mapping; limits of one request with different \
         keys and without a common group are decided in order, and refunded if a later one denies"
            .to_owned()
    })
}
