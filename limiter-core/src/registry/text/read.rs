//! Converts the tables of a text into a snapshot.
//!
//! Policies are read first, because overrides and rules refer to the algorithms of the policies of
//! their text. Each error is reported with its position and its scope (the text, a policy, a
//! table), which determines the part that a lenient reader rejects; a policy or an override with an
//! error is left out of the snapshot. Tests: `tests/registry/text.rs`,
//! `tests/registry/text_errors.rs`, `tests/registry/properties.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use crate::key::Key;
use crate::policy::check_text;
use crate::registry::RateType;
use crate::registry::text::fields::{Field, Table};
use crate::registry::text::inheritance::InheritanceSpec;
use crate::registry::text::policy_spec::{AlgorithmKind, PolicySpec, SharedSettings};
use crate::registry::text::report::{ErrorReport, Scope};
use crate::registry::text::{metadata, overlay, rule};
use crate::registry::{KeyOverride, PolicyEntry, PolicyRegistry, SourceSnapshot};

/// The object that a name denotes, the expected name, and the expected list.
type NamesSpec = (&'static str, &'static str, &'static str);
const APPS: NamesSpec = (
    "app",
    "the name of an app",
    "a list of apps, such as [\"checkout\"]",
);
const KEY_PARTS: NamesSpec = (
    "part of a key",
    "the name of a part",
    "a list of names, such as [\"tenant\", \"user\"]",
);

pub(super) fn read(report: &mut ErrorReport<'_>, document: &DeTable<'_>) -> SourceSnapshot {
    let mut top = Table::new(String::new(), 0, document);
    let mut snapshot = SourceSnapshot::default();
    let mut kinds = BTreeMap::new();
    for name in ["format", "min_reader"] {
        if let Some(version) = top.take(name) {
            version.version(report);
        }
    }
    // The source of the text has already read its revision.
    if let Some(revision) = top.take("revision") {
        match revision.value {
            DeValue::Integer(_) => {}
            _ => revision.refuse(report, "a whole number"),
        }
    }
    if let Some(policies) = top.take("policy") {
        match policies.value {
            DeValue::Table(policies) => {
                for field in Table::new("policy".to_owned(), 0, policies).into_fields() {
                    report.enter(Scope::Policy(field.name.into()));
                    read_policy(report, &field, &mut snapshot, &mut kinds);
                }
                report.enter(Scope::Text);
            }
            _ => policies.refuse(report, "tables such as [policy.search]"),
        }
    }
    if let Some(overrides) = top.take("override") {
        match overrides.value {
            DeValue::Array(overrides) => {
                for (index, value) in overrides.iter().enumerate() {
                    if index == PolicyRegistry::MAX_OVERRIDES {
                        let message = format!("override[{index}] is one too many, expected at most {index}");
                        report.push(value.span().start, message);
                        break;
                    }
                    let field = Field::new(format!("override[{index}]"), value);
                    report.enter(Scope::Table);
                    read_override(report, &field, &mut snapshot, &kinds);
                    report.enter(Scope::Text);
                }
            }
            _ => overrides.refuse(report, "tables such as [[override]]"),
        }
    }
    if let Some(rules) = top.take("rule") {
        snapshot.rules = rule::read(report, &rules, &kinds).into();
    }
    snapshot.overlays = overlay::read(report, &mut top);
    let expected = "policy, override, rule, suspend, block, revision, format or min_reader";
    top.refuse_rest(report, expected);
    snapshot
}

/// Returns the lowest format that a reader of the text must know.
pub(super) fn read_format(document: &DeTable<'_>) -> u32 {
    let mut top = Table::new(String::new(), 0, document);
    let version = top.take("min_reader");
    version.and_then(|version| version.as_version()).unwrap_or(1)
}

fn read_policy<'t>(
    report: &mut ErrorReport<'_>,
    field: &Field<'t>,
    snapshot: &mut SourceSnapshot,
    kinds: &mut BTreeMap<&'t str, Option<AlgorithmKind>>,
) {
    let Some(mut table) = field.table(report) else {
        return;
    };
    let before = report.len();
    let kind = AlgorithmKind::read(report, &mut table);
    kinds.insert(field.name, kind);
    let (apps, key) = (table.take("apps"), table.take("key"));
    let end = table.take("until").and_then(|until| until.time(report));
    let rate_type = table.take("rate_type");
    let rate_type = rate_type.and_then(|field| rate_type_of(report, &field));
    let metadata = metadata::metadata_from_table(report, &mut table);
    let lineage = InheritanceSpec::from_table(&mut table);
    let settings = SharedSettings::read(report, &mut table, kind);
    let Some(kind) = kind else {
        // Without an algorithm, unknown fields cannot be determined.
        return;
    };
    let draft = PolicySpec::read(report, &mut table, kind, settings);
    table.refuse_rest(report, &kind.fields_of_a_policy());
    let policy = draft.build(report, &table, field.name);
    let policy = lineage.apply(report, kind, policy);
    let entry = policy.map(PolicyEntry::new).and_then(|entry| match apps {
        None => Some(entry),
        Some(apps) => {
            let entry = entry.for_apps(read_names(report, &apps, APPS)?);
            entry.map_err(|error| apps.refuse_as(report, &error)).ok()
        }
    });
    let entry = entry.and_then(|entry| match key {
        None => Some(entry),
        Some(key) => {
            let entry = entry.with_key_parts(read_names(report, &key, KEY_PARTS)?);
            entry.map_err(|error| key.refuse_as(report, &error)).ok()
        }
    });
    if let Some(entry) = entry {
        if report.len() == before {
            let entry = entry.with_end(end).with_rate_type(rate_type.unwrap_or_default());
            let entry = entry.with_metadata(metadata);
            snapshot.set(Arc::new(entry));
        }
    }
}

fn rate_type_of(report: &mut ErrorReport<'_>, field: &Field<'_>) -> Option<RateType> {
    let rate_type = match field.value {
        DeValue::String(text) => RateType::ALL.into_iter().find(|of| of.name() == text),
        _ => None,
    };
    if rate_type.is_none() {
        field.refuse(report, "\"overall\" or \"per_client\"");
    }
    rate_type
}

/// Reads a list of names.
fn read_names<'t>(
    report: &mut ErrorReport<'_>,
    field: &Field<'t>,
    (object, expected_name, expected): NamesSpec,
) -> Option<Vec<&'t str>> {
    let DeValue::Array(listed) = field.value else {
        field.refuse(report, expected);
        return None;
    };
    let mut names = Vec::new();
    for (index, value) in listed.iter().enumerate() {
        let name = Field::new(format!("{}[{index}]", field.path), value);
        let text = name.text(report, expected_name)?;
        if let Err(error) = check_text(object, text) {
            name.refuse_as(report, &error);
            return None;
        }
        names.push(text);
    }
    Some(names)
}

fn read_override(
    report: &mut ErrorReport<'_>,
    field: &Field<'_>,
    snapshot: &mut SourceSnapshot,
    kinds: &BTreeMap<&str, Option<AlgorithmKind>>,
) {
    let Some(mut table) = field.table(report) else {
        return;
    };
    let before = report.len();
    let named = table.require(report, "policy");
    if let Some(Field {
        value: DeValue::String(name),
        ..
    }) = &named
    {
        if kinds.contains_key(&**name) {
            report.enter(Scope::Policy((&**name).into()));
        }
    }
    let key = read_key(report, &mut table);
    let end = table.take("until").and_then(|until| until.time(report));
    let Some(named) = named else { return };
    let Some(name) = named.text(report, "the name of a policy") else {
        return;
    };
    let kind = match kinds.get(name) {
        Some(Some(kind)) => *kind,
        // The policy has an error, which is reported already.
        Some(None) => return,
        None => return named.refuse(report, "the name of a policy of the same text"),
    };
    let draft = PolicySpec::read(report, &mut table, kind, SharedSettings::default());
    table.refuse_rest(report, &kind.fields_of_an_override());
    let numbers = draft.build(report, &table, name);
    if let (Some(key), Some(numbers)) = (key, numbers) {
        if report.len() == before {
            let own = KeyOverride::new(numbers, key);
            let own = match end {
                Some(end) => own.until(end),
                None => own,
            };
            // A policy with an error is missing here, and its error is reported already.
            let base = snapshot.entries.get(name).map(|entry| entry.policy());
            if base.is_some_and(|base| snapshot.has_override(&own, base)) {
                let message = format!("{} repeats the policy and key of an earlier override", field.path);
                report.push(field.at, message);
            } else {
                snapshot.add_override(Arc::new(own));
            }
        }
    }
}

/// Reads the key of an override.
fn read_key(report: &mut ErrorReport<'_>, table: &mut Table<'_>) -> Option<Key<'static>> {
    let key = read_part(report, table, ["key", "escaped_key"]);
    let group = read_part(report, table, ["group", "escaped_group"]);
    match key {
        Some(key) => match group {
            Some(group) => Some(key?.in_group(group?)),
            None => key,
        },
        None => {
            table.report_missing(report, "key");
            None
        }
    }
}

/// Reads a part of a key, plain or escaped. Returns `Some(None)` for an invalid one.
fn read_part(
    report: &mut ErrorReport<'_>,
    table: &mut Table<'_>,
    names: [&str; 2],
) -> Option<Option<Key<'static>>> {
    let [plain, escaped] = names.map(|name| table.take(name));
    match (plain, escaped) {
        (None, None) => None,
        (Some(plain), None) => {
            let text = plain.text(report, "text");
            Some(text.map(|text| Key::from(text).into_owned()))
        }
        (None, Some(escaped)) => {
            let text = escaped.text(report, "text");
            let key = text.and_then(|text| {
                let key = Key::from_escaped(text);
                if key.is_none() {
                    escaped.refuse(
                        report,
                        "a percent-encoded key as in Redis, such as %20 for a space",
                    );
                }
                key
            });
            Some(key)
        }
        (Some(_), Some(escaped)) => {
            escaped.refuse(report, "either this field or the plain one");
            Some(None)
        }
    }
}
