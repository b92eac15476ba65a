//! The effect of new rules: the descriptors whose policy, key or group changes. Pure.
//!
//! A descriptor is computed for the patterns of each rule, before or after the change, so a rule
//! that hides a later one is found too. Entries without a value have their key in braces as value.
//! Tests: below.

use std::collections::BTreeSet;
use std::sync::Arc;

use limiter_core::registry::Rule;
use serde::{Deserialize, Serialize};

use crate::gateway::rules::RuleSet;

/// The value in place of a domain for rules of any domain.
const ANY_DOMAIN: &str = "*";

/// The limit of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescribedLimit {
    /// The policy.
    pub policy: String,
    /// The values that form the key.
    pub key: Vec<String>,
    /// Limits of one request with this group are charged together or not at all.
    pub group: Option<String>,
}

/// A descriptor whose limit changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptorChange {
    /// The domain; `None` for any.
    pub domain: Option<String>,
    /// The entries as `key=value`.
    pub entries: Vec<String>,
    /// The limit before the change; `None` if no rule matches.
    pub before: Option<DescribedLimit>,
    /// The limit after the change.
    pub after: Option<DescribedLimit>,
}

/// A domain, and the keys with the values of a descriptor.
type Sample = (String, Vec<(String, String)>);

/// Returns a descriptor that the rule matches, unless an earlier one does.
fn sample(rule: &Rule) -> Sample {
    let entries = rule.patterns().iter().map(|pattern| {
        let value = match (pattern.exact_value(), pattern.prefix()) {
            (Some(value), _) => value.to_owned(),
            (None, Some(prefix)) => format!("{prefix}*"),
            (None, None) => format!("{{{}}}", pattern.key()),
        };
        (pattern.key().to_owned(), value)
    });
    let domain = rule.domain().unwrap_or(ANY_DOMAIN).to_owned();
    (domain, entries.collect())
}

fn limit(rules: &RuleSet, (domain, entries): &Sample) -> Option<DescribedLimit> {
    let entries: Vec<(&str, &str)> = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
    let found = rules.find(domain, &entries)?;
    Some(DescribedLimit {
        policy: found.policy.to_string(),
        group: found.rule.and_then(Rule::group).map(str::to_owned),
        key: found.values,
    })
}

/// Returns the descriptors whose limit changes.
#[must_use]
pub fn rule_changes(before: &Arc<[Rule]>, after: &Arc<[Rule]>) -> Vec<DescriptorChange> {
    let samples: BTreeSet<Sample> = before.iter().chain(after.iter()).map(sample).collect();
    let [before, after] = [before, after].map(|rules| RuleSet::new(Arc::clone(rules)));
    let changes = samples.into_iter().map(|sample| DescriptorChange {
        before: limit(&before, &sample),
        after: limit(&after, &sample),
        domain: Some(sample.0).filter(|domain| domain != ANY_DOMAIN),
        entries: sample
            .1
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect(),
    });
    changes.filter(|change| change.before != change.after).collect()
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;
    use crate::policy_text::parse_rules;

    fn rule(pattern: &str, rest: &str) -> String {
        format!("[[rule]]\ndomain = 'edge'\nmatch = {pattern}\n{rest}\n")
    }

    fn changes(before: &[String], after: &[String]) -> Vec<String> {
        let [before, after] = [before, after].map(|rules| parse_rules(&rules.concat()).unwrap());
        let words = |limit: &Option<DescribedLimit>| match limit {
            None => "none".to_owned(),
            Some(of) => format!(
                "{} {} {}",
                of.policy,
                of.key.join("/"),
                of.group.as_deref().unwrap_or("-")
            ),
        };
        let changes = rule_changes(&before, &after);
        let texts = changes.iter().map(|of| {
            format!(
                "{}: {} > {}",
                of.entries.join(","),
                words(&of.before),
                words(&of.after)
            )
        });
        texts.collect()
    }

    #[test]
    fn changed_policy_key_and_group_are_found() {
        let login = rule("['route=login', 'ip']", "policy = 'login'");
        assert_eq!(changes(from_ref(&login), from_ref(&login)), Vec::<String>::new());
        assert_eq!(
            changes(
                from_ref(&login),
                &[rule("['route=login', 'ip']", "policy = 'other'")]
            ),
            ["route=login,ip={ip}: login {ip} - > other {ip} -"]
        );
        assert_eq!(
            changes(
                from_ref(&login),
                &[rule("['route=login', 'ip']", "policy = 'login'\ngroup = 'edge'")]
            ),
            ["route=login,ip={ip}: login {ip} - > login {ip} edge"]
        );
        let prefix = |rest: &str| rule("['path=/a*']", &format!("policy = 'a'\n{rest}"));
        assert_eq!(
            changes(&[prefix("")], &[prefix("share = true")]),
            ["path=/a*: a /a* - > a  -"]
        );
    }

    #[test]
    fn rule_that_hides_a_later_one_is_found() {
        let login = rule("['route=login', 'ip']", "policy = 'login'");
        let all = rule("['route', '...']", "policy = 'all'");
        assert_eq!(
            changes(from_ref(&login), &[all.clone(), login.clone()]),
            [
                "route=login,ip={ip}: login {ip} - > all login -",
                "route={route}: none > all {route} -",
            ]
        );
        assert_eq!(
            changes(&[login.clone(), all.clone()], &[login]),
            ["route={route}: all {route} - > none"]
        );
    }
}
