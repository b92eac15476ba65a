//! `limiter-server explain`: the rule, policy and key of a descriptor.

use std::path::Path;

use crate::gateway::rules::RuleSet;
use crate::serve::policies;

/// Prints the limit of a descriptor.
pub(super) fn run(file: &Path, domain: &str, entries: &[(String, String)]) -> Result<(), String> {
    let registry = policies::read(file)?;
    let rules = RuleSet::new(registry.rules());
    let entries: Vec<(&str, &str)> = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
    let Some(found) = rules.find(domain, &entries) else {
        return Err(format!("no rule of {} matches the descriptor", file.display()));
    };
    match found.rule {
        None => println!("rule: none, the default mapping applies"),
        Some(rule) => {
            let number = rules.rules().iter().position(|of| of == rule).unwrap_or_default();
            let patterns: Vec<String> = rule.patterns().iter().map(ToString::to_string).collect();
            let more = if rule.allows_more_entries() { ", ..." } else { "" };
            println!("rule: rule[{number}], match {}{more}", patterns.join(", "));
        }
    }
    println!("key: {}", found.values.join(":"));
    println!("values: {:?}", found.values);
    let group = found.rule.and_then(|rule| rule.group());
    match registry.get(&found.policy) {
        None => Err(format!("policy: {}, which is not configured", found.policy)),
        Some(entry) => {
            println!("policy: {}", entry.policy());
            match group.or(entry.policy().group()) {
                Some(group) => println!("atomic: with the limits of group {group}"),
                None => println!("atomic: with limits of the same key; others are decided in order"),
            }
            Ok(())
        }
    }
}

/// Parses `key=value`.
pub(super) fn parse_entry(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is no entry, expected key=value")),
    }
}
