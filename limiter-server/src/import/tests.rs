use proptest::prelude::*;

use super::*;
use crate::gateway::rules::RuleSet;

/// Returns the limit that the original applies: the path of its node.
fn original(children: &[DescriptorConfig], entries: &[(&str, &str)], path: &[String]) -> Option<Vec<String>> {
    let ((key, value), rest) = entries.split_first()?;
    let of_key = || children.iter().filter(|child| child.key == *key);
    let own = |child: &&DescriptorConfig| child.value.clone().unwrap_or_default();
    let exact = of_key().find(|child| !own(child).is_empty() && own(child) == *value);
    let wildcard = of_key().find(|child| {
        own(child)
            .strip_suffix('*')
            .is_some_and(|prefix| value.starts_with(prefix))
    });
    let child = exact
        .or(wildcard)
        .or_else(|| of_key().find(|child| own(child).is_empty()))?;
    let path = [path, &[child.pattern()]].concat();
    match rest.is_empty() {
        true => child.rate_limit.is_some().then_some(path),
        false => original(&child.descriptors, rest, &path),
    }
}

fn tree(depth: u32) -> BoxedStrategy<Vec<DescriptorConfig>> {
    let deeper = match depth {
        0 => Just(Vec::new()).boxed(),
        _ => tree(depth - 1),
    };
    let value = prop_oneof![Just(None), "[ab]{1,2}[*]?".prop_map(Some)];
    let node = ("[xy]", value, any::<bool>(), deeper).prop_map(|(key, value, is_limited, descriptors)| {
        let limit = LimitConfig {
            unit: Some("minute".to_owned()),
            requests_per_unit: Some(5),
            ..LimitConfig::default()
        };
        DescriptorConfig {
            key,
            value,
            rate_limit: is_limited.then_some(limit),
            descriptors,
            ..DescriptorConfig::default()
        }
    });
    prop::collection::vec(node, 0..4)
        .prop_map(|mut nodes| {
            let mut patterns = BTreeSet::new();
            nodes.retain(|node| patterns.insert(node.pattern()));
            nodes
        })
        .boxed()
}

proptest! {
    /// Rules find the limit that the original finds.
    #[test]
    fn converted_rules_agree_with_the_original(
        tree in tree(2),
        descriptors in prop::collection::vec(prop::collection::vec(("[xy]", "[ab]{1,3}"), 1..4), 1..12),
    ) {
        let mut conversion = Conversion { domain: "d".to_owned(), ..Conversion::default() };
        conversion.children(&[], &tree).unwrap();
        prop_assume!(!conversion.rules.is_empty());
        let set = RuleSet::new(conversion.rules.into());
        for descriptor in &descriptors {
            let entries: Vec<(&str, &str)> = descriptor.iter().map(|(key, value)| (&**key, &**value)).collect();
            let expected = original(&tree, &entries, &[]).map(|path| format!("d/{}", path.join("/")));
            let found = set.find("d", &entries).map(|found| found.policy.into_owned());
            prop_assert_eq!(found.filter(|policy| policy != UNLIMITED), expected, "{:?}", entries);
        }
    }
}

#[test]
fn units_modes_and_names_are_converted() {
    let text = "
domain: edge
descriptors:
  - key: route
    value: login
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 5}
    descriptors:
      - key: user
        rate_limit: {name: per user, unit: MONTH, requests_per_unit: 7}
  - key: route
    rate_limit: {unlimited: true}
  - key: path
    value: /api/*
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 0}
";
    let imported = convert(text).unwrap();
    let registry = PolicyRegistry::from_toml(&imported.registry.to_toml()).unwrap();
    let policy = |name: &str| registry.get(name).expect(name).policy().clone();
    let login = policy("edge/route=login");
    assert_eq!(
        (login.quota().whole(), login.enforcement()),
        (5, Enforcement::Shadow)
    );
    assert_eq!(policy("edge/route").enforcement(), Enforcement::Off);
    assert_eq!(policy("per user").window().as_secs(), 30 * 86_400);
    assert!(policy("edge/path=/api/*").deny_keys().is_some());
    assert_eq!(imported.warnings.len(), 0, "{:?}", imported.warnings);
    let month = policy("per user").to_string();
    assert!(month.ends_with("7 in each 30d of UTC)"), "{month}");
    assert!(registry.rules().iter().any(Rule::shares_prefixes));
}

#[test]
fn settings_without_a_counterpart_are_warnings() {
    let text = "
domain: edge
descriptors:
  - key: path
    value: /files/*
    share_threshold: true
    metadata: {owner: [search, {team: files}]}
    descriptors:
      - key: user
        rate_limit: {unit: hour, requests_per_unit: 7}
";
    let imported = convert(text).unwrap();
    assert_eq!(
        imported.warnings,
        [
            "descriptor path=/files/*: share_threshold does not apply to its nested descriptors",
            "descriptor path=/files/*: metadata is ignored",
        ]
    );
}

#[test]
fn errors_name_the_position_or_the_descriptor() {
    for (text, expected) in [
        ("descriptors: []", "domain"),
        ("domain: a\ndescriptors: [{key: k, colour: red}]", "colour"),
        (
            "domain: a\ndescriptors: [{key: k, rate_limit: {unit: eon, requests_per_unit: 1}}]",
            "descriptor k: rate_limit.unit is `eon`",
        ),
        (
            "domain: a\ndescriptors: [{key: k, rate_limit: {unit: day}}]",
            "requests_per_unit is missing",
        ),
        (
            "domain: a\ndescriptors: [{key: k}, {key: k}]",
            "descriptor k: duplicate",
        ),
        ("domain: a\ndescriptors: [{key: ''}]", "expected a key"),
        (
            "domain: a\ndescriptors: [{key: k, value: '/a/*/b'}]",
            "expected `*` at the end of a value only",
        ),
        (": :", "line"),
    ] {
        let error = convert(text).unwrap_err();
        assert!(error.contains(expected), "{expected} in {error}");
    }
}
