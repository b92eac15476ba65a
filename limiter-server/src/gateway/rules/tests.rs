use proptest::prelude::*;

use super::*;

fn set(rules: Vec<Rule>) -> RuleSet {
    RuleSet::new(rules.into())
}

fn rule(policy: &str, patterns: &[&str]) -> Rule {
    Rule::new(policy, patterns).unwrap()
}

/// A domain, the entries of a descriptor, and the expected policy and key.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], Option<(&'a str, Key<'a>)>);

fn found(set: &RuleSet, domain: &str, entries: &[(&str, &str)]) -> Option<(String, Key<'static>)> {
    let matched = set.find(domain, entries)?;
    Some((matched.policy.into_owned(), matched.key))
}

#[test]
fn first_matching_rule_applies() {
    let set = set(vec![
        rule("edge", &["route=login", "ip"]).in_domain("edge").unwrap(),
        rule("login", &["route=login", "ip"]),
        rule("admin", &["route=admin*"]),
        rule("shared", &["route=shared*"]).share_prefixes().unwrap(),
        rule("any", &["route"]),
        rule("more", &["route=login", "..."]),
        rule("rest", &["..."]).in_domain("rest").unwrap(),
    ]);
    let cases: [Case<'_>; 9] = [
        (
            "edge",
            &[("route", "login"), ("ip", "::1")],
            Some(("edge", Key::global().part("::1"))),
        ),
        (
            "api",
            &[("route", "login"), ("ip", "a")],
            Some(("login", Key::from("a"))),
        ),
        (
            "api",
            &[("route", "admin/x")],
            Some(("admin", Key::from("admin/x"))),
        ),
        ("api", &[("route", "shared/x")], Some(("shared", Key::global()))),
        ("api", &[("route", "x")], Some(("any", Key::from("x")))),
        (
            "api",
            &[("route", "login"), ("user", "a"), ("ip", "b")],
            Some(("more", Key::global())),
        ),
        ("api", &[("user", "a")], None),
        ("rest", &[("user", "a")], Some(("rest", Key::global()))),
        ("api", &[("ip", "a"), ("route", "login")], None),
    ];
    for (domain, entries, expected) in cases {
        let expected = expected.map(|(policy, key)| (policy.to_owned(), key.into_owned()));
        assert_eq!(found(&set, domain, entries), expected, "{domain} {entries:?}");
    }
}

#[test]
fn group_of_the_rule_becomes_the_group_of_the_key() {
    let set = set(vec![rule("p", &["ip"]).in_group("edge").unwrap()]);
    let expected = Key::from("a").in_group("edge");
    assert_eq!(found(&set, "d", &[("ip", "a")]), Some(("p".to_owned(), expected)));
}

#[test]
fn default_mapping_names_policy_by_generic_key_or_keys() {
    let set = set(Vec::new());
    let key = |parts: &[&str]| key_of(parts.iter().copied());
    assert_eq!(
        found(&set, "edge", &[("generic_key", "login"), ("ip", "a")]),
        Some(("login".to_owned(), key(&["edge", "a"])))
    );
    assert_eq!(
        found(&set, "edge", &[("route", "x"), ("ip", "a")]),
        Some(("route.ip".to_owned(), key(&["edge", "x", "a"])))
    );
}

fn word() -> impl Strategy<Value = String> {
    "[ab:%|]{0,3}"
}

proptest! {
    /// The index finds the rule that a search from the first to the last rule finds.
    #[test]
    fn index_finds_the_first_matching_rule(
        rules in prop::collection::vec(
            (prop::collection::vec("(a|b)(=[ab]{0,2}[*]?)?", 0..3), any::<bool>(), prop::option::of("[de]")),
            0..8,
        ),
        entries in prop::collection::vec(("[ab]", "[ab]{0,2}"), 0..4),
        domain in "[de]",
    ) {
        let rules = rules.into_iter().enumerate().filter_map(|(number, (mut patterns, more, domain))| {
            if more {
                patterns.push("...".to_owned());
            }
            let rule = Rule::new(number.to_string(), patterns).ok()?;
            Some(match domain {
                Some(domain) => rule.in_domain(domain).ok()?,
                None => rule,
            })
        });
        let rules: Vec<Rule> = rules.collect();
        prop_assume!(!rules.is_empty());
        let entries: Vec<(&str, &str)> = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
        let expected = rules.iter().find(|rule| matches(rule, &domain, &entries) && !entries.is_empty());
        let expected = expected.map(|rule| rule.policy().to_owned());
        let set = RuleSet::new(rules.clone().into());
        let actual = set.find(&domain, &entries).map(|found| found.policy.into_owned());
        prop_assert_eq!(actual, expected);
    }

    /// Different values never have one key.
    #[test]
    fn keys_of_different_values_differ(a in (word(), word()), b in (word(), word())) {
        let set = set(vec![rule("p", &["x", "y"])]);
        let key = |(x, y): &(String, String)| set.find("d", &[("x", &**x), ("y", &**y)]).map(|found| found.key);
        prop_assert_eq!(key(&a) == key(&b), a == b);
    }
}
