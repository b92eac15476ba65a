//! The rules of a text in their order by domain.

use crate::admin::pages::links;
use crate::policy_text::parse_rules;

/// A rule in the list.
#[derive(Debug)]
pub(super) struct RuleRow {
    pub(super) number: usize,
    pub(super) patterns: String,
    pub(super) policy: String,
    pub(super) href: String,
    /// Limits of one request with this group are charged together or not at all.
    pub(super) group: Option<String>,
    pub(super) settles: bool,
    pub(super) is_found: bool,
}

/// The rules of a domain, in order.
#[derive(Debug)]
pub(super) struct DomainRules {
    pub(super) domain: Option<String>,
    pub(super) rows: Vec<RuleRow>,
}

/// Returns the rules of a text by domain, in order.
pub(super) fn domains(environment: &str, toml: &str, found: Option<usize>) -> Vec<DomainRules> {
    let Ok(rules) = parse_rules(toml) else {
        return Vec::new();
    };
    let mut domains: Vec<DomainRules> = Vec::new();
    for (number, rule) in rules.iter().enumerate() {
        let mut patterns: Vec<String> = rule.patterns().iter().map(ToString::to_string).collect();
        if rule.allows_more_entries() {
            patterns.push("...".to_owned());
        }
        let row = RuleRow {
            number: number + 1,
            patterns: patterns.join(", "),
            policy: rule.policy().to_owned(),
            href: links::page(environment, &["policies", rule.policy()]),
            group: rule.group().map(str::to_owned),
            settles: rule.settles(),
            is_found: found == Some(number),
        };
        match domains
            .iter_mut()
            .find(|of| of.domain.as_deref() == rule.domain())
        {
            Some(domain) => domain.rows.push(row),
            None => domains.push(DomainRules {
                domain: rule.domain().map(str::to_owned),
                rows: vec![row],
            }),
        }
    }
    domains
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_keep_their_numbers_across_domains() {
        let rule = |domain: &str, key: &str| format!("[[rule]]\n{domain}match = ['{key}']\npolicy = 'p'\n");
        let text = [
            rule("domain = 'a'\n", "x"),
            rule("", "y"),
            rule("domain = 'a'\n", "z"),
        ]
        .concat();
        let domains = domains("prod", &text, Some(2));
        let numbers: Vec<Vec<usize>> = domains
            .iter()
            .map(|of| of.rows.iter().map(|row| row.number).collect())
            .collect();
        assert_eq!(numbers, [vec![1, 3], vec![2]]);
        assert!(domains[0].rows[1].is_found);
    }
}
