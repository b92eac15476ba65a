//! Rules as text: `[[rule]]` tables.
//!
//! The order of the tables is the order in which a gateway tries the rules, so an error in one rule
//! rejects all rules of the text: without the rejected rule, a later one would apply in its place.
//!
//! Tests: `tests/rules.rs` (`unreadable_rule_keeps_the_previous_version_of_all_rules`).

use std::collections::BTreeMap;

use toml::de::DeValue;

use crate::error::ConfigError;
use crate::registry::text::expected;
use crate::registry::text::fields::Field;
use crate::registry::text::policy_spec::AlgorithmKind;
use crate::registry::text::report::{ErrorReport, Scope};
use crate::registry::{PolicyRegistry, Rule};

const FIELDS: &str = "domain, match, policy, group, share or settle";

/// Reads the rules of a text whose policies have been read.
pub(super) fn read(
    report: &mut ErrorReport<'_>,
    rules: &Field<'_>,
    kinds: &BTreeMap<&str, Option<AlgorithmKind>>,
) -> Vec<Rule> {
    let DeValue::Array(tables) = rules.value else {
        rules.refuse(report, "tables such as [[rule]]");
        return Vec::new();
    };
    report.enter(Scope::Rules);
    let mut read = Vec::with_capacity(tables.len().min(PolicyRegistry::MAX_RULES));
    for (index, value) in tables.iter().enumerate() {
        if index == PolicyRegistry::MAX_RULES {
            let message = format!("rule[{index}] is one too many, expected at most {index}");
            report.push(value.span().start, message);
            break;
        }
        let field = Field::new(format!("rule[{index}]"), value);
        read.extend(read_rule(report, &field, kinds));
    }
    report.enter(Scope::Text);
    read
}

fn read_rule(
    report: &mut ErrorReport<'_>,
    field: &Field<'_>,
    kinds: &BTreeMap<&str, Option<AlgorithmKind>>,
) -> Option<Rule> {
    let mut table = field.table(report)?;
    let before = report.len();
    let domain = table.take("domain");
    let patterns = table.require(report, "match");
    let policy = table.require(report, "policy");
    let group = table.take("group");
    let (share, settle) = (table.take("share"), table.take("settle"));
    table.refuse_rest(report, FIELDS);

    let patterns = patterns.and_then(|patterns| read_patterns(report, &patterns));
    let policy = policy.and_then(|policy| read_policy_name(report, &policy, kinds));
    let shares = share
        .as_ref()
        .and_then(|share| share.flag(report))
        .unwrap_or(false);
    let settles = settle.and_then(|settle| settle.flag(report)).unwrap_or(false);
    // Without patterns, the other fields are still checked.
    let rule = Rule::new(policy.unwrap_or("p"), patterns.as_deref().unwrap_or(&["..."]));
    let mut rule = rule.map_err(|error| field.refuse_as(report, &error)).ok()?;
    let with =
        |report: &mut ErrorReport<'_>, field: &Field<'_>, rule: Rule, set: &dyn Fn(Rule, &str) -> _| {
            let text = field.text(report, "text")?;
            let changed: Result<Rule, ConfigError> = set(rule, text);
            changed.map_err(|error| field.refuse_as(report, &error)).ok()
        };
    if let Some(domain) = &domain {
        rule = with(report, domain, rule, &|rule, text| rule.in_domain(text))?;
    }
    if let Some(group) = &group {
        rule = with(report, group, rule, &|rule, text| rule.in_group(text))?;
    }
    if let Some(share) = share.filter(|_| shares && patterns.is_some()) {
        let shared = rule.share_prefixes();
        rule = shared.map_err(|error| share.refuse_as(report, &error)).ok()?;
    }
    if settles {
        rule = rule.settle();
    }
    (report.len() == before).then_some(rule)
}

fn read_patterns<'t>(report: &mut ErrorReport<'_>, field: &Field<'t>) -> Option<Vec<&'t str>> {
    let DeValue::Array(listed) = field.value else {
        field.refuse(
            report,
            "a list of patterns, such as [\"route=login\", \"remote_address\"]",
        );
        return None;
    };
    let before = report.len();
    let mut patterns = Vec::with_capacity(listed.len());
    for (index, value) in listed.iter().enumerate() {
        let pattern = Field::new(format!("{}[{index}]", field.path), value);
        let Some(text) = pattern.text(report, "a pattern") else {
            continue;
        };
        let is_last = index + 1 == listed.len();
        // Each pattern is parsed alone first, so that its error has its position.
        if let Err(error) = Rule::new("p", [text]) {
            pattern.refuse(report, &expected(&error));
        } else if text == "..." && !is_last {
            pattern.refuse(report, "`...` at the end alone");
        }
        patterns.push(text);
    }
    if report.len() == before {
        if let Err(error) = Rule::new("p", &patterns) {
            field.refuse_as(report, &error);
        }
    }
    (report.len() == before).then_some(patterns)
}

fn read_policy_name<'t>(
    report: &mut ErrorReport<'_>,
    field: &Field<'t>,
    kinds: &BTreeMap<&str, Option<AlgorithmKind>>,
) -> Option<&'t str> {
    let name = field.text(report, "the name of a policy")?;
    match kinds.get(name) {
        Some(Some(AlgorithmKind::Concurrency)) => {
            let expected =
                "a policy that is not of concurrency, because descriptors do not report the end of a call";
            field.refuse(report, expected);
            None
        }
        Some(_) => Some(name),
        None => {
            field.refuse(report, "the name of a policy of the same text");
            None
        }
    }
}
