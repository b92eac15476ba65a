//! Converts a configuration of envoyproxy/ratelimit to policies and rules.
//!
//! The configuration is a tree of descriptors. The original walks the tree entry by entry: at each
//! level it takes the child with the value of the entry, or else the first child whose value is a
//! prefix (`foo*`), or else the child without a value, and never goes back. A limit applies only if
//! the walk ends at its node. Rules are tried in order, so the children are written in that order,
//! and a rule that limits nothing follows the subtree of each child that has a less specific
//! sibling. Tests: the comparison with a model of the original below, and `tests/commands.rs`.

mod file;

use std::collections::BTreeSet;

use limiter_core::registry::{PolicyRegistry, Rule};
use limiter_core::{ConfigError, Enforcement, KeyList, Policy, UtcOffset};

use crate::import::file::{DescriptorConfig, DomainConfig, LimitConfig};

/// The policy of descriptors that the original does not limit.
const UNLIMITED: &str = "unlimited";

/// The converted configuration.
#[derive(Debug)]
pub struct Imported {
    /// Policies and rules.
    pub registry: PolicyRegistry,
    /// Settings of the original that have no counterpart, or another meaning.
    pub warnings: Vec<String>,
}

/// Converts a YAML text.
///
/// # Errors
///
/// The reason, with the position in the text or the path of the descriptor.
pub fn convert(text: &str) -> Result<Imported, String> {
    let config: DomainConfig = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let mut conversion = Conversion {
        domain: config.domain,
        ..Conversion::default()
    };
    conversion.children(&[], &config.descriptors)?;
    let registry = PolicyRegistry::new();
    for policy in conversion.policies {
        registry.set(policy);
    }
    registry
        .set_rules(conversion.rules)
        .map_err(|error| error.to_string())?;
    Ok(Imported {
        registry,
        warnings: conversion.warnings,
    })
}

#[derive(Debug, Default)]
struct Conversion {
    domain: String,
    policies: Vec<Policy>,
    names: BTreeSet<String>,
    rules: Vec<Rule>,
    warnings: Vec<String>,
}

impl Conversion {
    /// Converts the children of a node, the most specific first.
    fn children(&mut self, path: &[String], children: &[DescriptorConfig]) -> Result<(), String> {
        let mut ordered: Vec<&DescriptorConfig> = children.iter().collect();
        ordered.sort_by_key(|child| match child.value.as_deref().unwrap_or_default() {
            "" => 2,
            value if value.ends_with('*') => 1,
            _ => 0,
        });
        let mut patterns = BTreeSet::new();
        for (number, child) in ordered.iter().enumerate() {
            let path = [path, &[child.pattern()]].concat();
            if !patterns.insert(child.pattern()) {
                return Err(format!("descriptor {}: duplicate key and value", path.join(", ")));
            }
            self.node(&path, child)?;
            let rest = ordered.get(number + 1..).unwrap_or_default();
            if rest.iter().any(|sibling| child.is_covered_by(sibling)) {
                self.guard(&path)?;
            }
        }
        Ok(())
    }

    fn node(&mut self, path: &[String], node: &DescriptorConfig) -> Result<(), String> {
        let shown = path.join(", ");
        if node.key.is_empty() || node.key.contains('=') {
            return Err(format!(
                "descriptor {shown}: expected a key that is not empty and has no `=`"
            ));
        }
        if node.has_inner_wildcard() {
            return Err(format!(
                "descriptor {shown}: expected `*` at the end of a value only; use a prefix or list the values"
            ));
        }
        if node.share_threshold && !node.descriptors.is_empty() {
            self.warnings.push(format!(
                "descriptor {shown}: share_threshold does not apply to its nested descriptors"
            ));
        }
        for (name, is_set) in [
            ("detailed_metric", node.detailed_metric),
            ("value_to_metric", node.value_to_metric),
            ("quota_mode", node.quota_mode),
            ("metadata", node.metadata.is_some()),
        ] {
            if is_set {
                self.warnings
                    .push(format!("descriptor {shown}: {name} is ignored"));
            }
        }
        if let Some(limit) = &node.rate_limit {
            let policy = self.policy(path, node, limit);
            let policy = policy.map_err(|reason| format!("descriptor {shown}: {reason}"))?;
            let rule = self.rule(policy.name(), path);
            let mut rule = rule.map_err(|error| format!("descriptor {shown}: {error}"))?;
            if node.share_threshold {
                rule = rule
                    .share_prefixes()
                    .map_err(|_| format!("descriptor {shown}: share_threshold needs a value `prefix*`"))?;
            }
            self.policies.push(policy);
            self.rules.push(rule);
        }
        self.children(path, &node.descriptors)
    }

    fn rule(&self, policy: &str, patterns: &[String]) -> Result<Rule, ConfigError> {
        Rule::new(policy, patterns)?.in_domain(&*self.domain)
    }

    /// Ends the search at this node, as the original does.
    fn guard(&mut self, path: &[String]) -> Result<(), String> {
        if self.names.insert(UNLIMITED.to_owned()) {
            let policy = Policy::fixed_window(UNLIMITED).limit(1).window("1s");
            let policy = policy.enforcement(Enforcement::Off).build();
            self.policies.push(policy.map_err(|error| error.to_string())?);
        }
        let patterns = [path, &["...".to_owned()]].concat();
        self.rules.push(
            self.rule(UNLIMITED, &patterns)
                .map_err(|error| error.to_string())?,
        );
        Ok(())
    }

    fn policy(
        &mut self,
        path: &[String],
        node: &DescriptorConfig,
        limit: &LimitConfig,
    ) -> Result<Policy, String> {
        let shown = path.join(", ");
        if !limit.replaces.is_empty() {
            self.warnings
                .push(format!("descriptor {shown}: replaces is ignored"));
        }
        let name = self.unique_name(limit.name.clone().unwrap_or_else(|| {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            format!("{}/{}", self.domain, path.join("/"))
        }));
        let window = match limit.unlimited {
            true => "1s".to_owned(),
            false => limit.window()?,
        };
        let permits = match limit.unlimited {
            true => 1,
            false => limit
                .requests_per_unit
                .ok_or("rate_limit.requests_per_unit is missing")?,
        };
        let mut policy = Policy::fixed_window(name)
            .limit(permits.max(1))
            .window(&*window)
            .aligned(UtcOffset::UTC);
        if permits == 0 {
            // A limit of zero denies every request.
            policy = policy.deny_keys(KeyList::parse(["*"]).map_err(|error| error.to_string())?);
        }
        if limit.unlimited {
            policy = policy.enforcement(Enforcement::Off);
        } else if node.shadow_mode {
            policy = policy.enforcement(Enforcement::Shadow);
        }
        policy.build().map_err(|error| error.to_string())
    }

    fn unique_name(&mut self, name: String) -> String {
        let mut unique = name.clone();
        let mut number = 2;
        while unique == UNLIMITED || !self.names.insert(unique.clone()) {
            unique = format!("{name} {number}");
            number += 1;
        }
        unique
    }
}

#[cfg(test)]
mod tests;
