//! Writes a registry as text.
//!
//! Fields that would not change the registry are omitted, and `format` and `min_reader` are the
//! lowest that the content needs, so that programs of an earlier version can read the text as long
//! as possible.
//!
//! Invariant: the text reads back as an equal registry. Tests: `tests/registry/properties.rs`; the
//! exact text: `tests/frozen/policies.canonical.toml`.

use std::fmt;
use std::fmt::Write as _;
use std::time::Duration;

use crate::key::Key;
use crate::policy::{Algorithm, Enforcement, Funnel, KeyList, OnDenial, Policy, Span};
use crate::registry::RateType;
use crate::registry::text::policy_spec::{AlgorithmKind, ON_STORE_FAILURE};
use crate::registry::text::rfc3339::Rfc3339;
use crate::registry::text::values::{QuotedText, write_numbers};
use crate::registry::text::{FIRST_FORMAT, OVERLAYS_FORMAT, STARTS_FORMAT, inheritance, metadata, overlay};
use crate::registry::{KeyOverride, PolicyEntry, Rule, SourceSnapshot};
use crate::units::micros_ceil;

/// Returns the text of a snapshot.
pub(super) fn text_of(snapshot: &SourceSnapshot) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_snapshot(&mut text, snapshot);
    text
}

fn write_snapshot(text: &mut String, snapshot: &SourceSnapshot) -> fmt::Result {
    let has_starts = snapshot
        .overlays
        .suspensions
        .iter()
        .any(|of| of.start().is_some());
    let format = match (has_starts, needs_overlays(snapshot)) {
        (true, _) => STARTS_FORMAT,
        (false, true) => OVERLAYS_FORMAT,
        (false, false) => FIRST_FORMAT,
    };
    // A text without new fields stays equal to that of an earlier version.
    writeln!(text, "format = {format}\nmin_reader = {format}")?;
    for entry in snapshot.entries() {
        separate(text);
        write_entry(text, entry)?;
    }
    for own in snapshot.overrides_in_order() {
        separate(text);
        write_override(text, own)?;
    }
    for rule in snapshot.rules.iter() {
        separate(text);
        write_rule(text, rule)?;
    }
    overlay::write(text, &snapshot.overlays)
}

/// Returns whether a reader that does not know overlays would make other decisions.
fn needs_overlays(snapshot: &SourceSnapshot) -> bool {
    let has_ends = |policy: &Policy| {
        let lists = policy.allow_keys().into_iter().chain(policy.deny_keys());
        lists.into_iter().any(KeyList::has_ends)
    };
    !snapshot.overlays.is_empty() || snapshot.entries().any(|entry| has_ends(entry.policy()))
}

fn separate(text: &mut String) {
    if !text.is_empty() {
        text.push('\n');
    }
}

fn write_entry(text: &mut String, entry: &PolicyEntry) -> fmt::Result {
    let policy = entry.policy();
    writeln!(text, "[policy.{}]", QuotedText(policy.name()))?;
    let kind = AlgorithmKind::from_algorithm(policy.algorithm());
    writeln!(text, "algorithm = {}", QuotedText(kind.name()))?;
    write_numbers(text, policy)?;
    if let Some(group) = policy.group() {
        writeln!(text, "group = {}", QuotedText(group))?;
    }
    if let Some(deadline) = policy.own_deadline() {
        writeln!(text, "deadline = \"{}\"", span(deadline))?;
    }
    // Also if it is the default, which a limiter can change.
    if let Some(answer) = policy.own_on_store_failure() {
        let named = ON_STORE_FAILURE.iter().find(|(_, named)| *named == answer);
        let name = named.map_or("local", |(name, _)| name);
        writeln!(text, "on_store_failure = \"{name}\"")?;
    }
    if let Some(lease) = policy.lease() {
        writeln!(text, "lease = \"{}\"", span(lease))?;
    }
    if let Algorithm::Funnel(Funnel { paced: true, .. }) = policy.algorithm() {
        writeln!(text, "paced = true")?;
    }
    if policy.enforcement() != Enforcement::default() {
        writeln!(text, "enforcement = \"{}\"", policy.enforcement())?;
    }
    if policy.on_denial() != OnDenial::default() {
        writeln!(text, "on_denial = \"{}\"", policy.on_denial())?;
    }
    if let Some(penalty) = policy.penalty() {
        writeln!(text, "penalty = \"{penalty}\"")?;
    }
    for (name, keys) in [
        ("allow_keys", policy.allow_keys()),
        ("deny_keys", policy.deny_keys()),
    ] {
        if let Some(keys) = keys {
            let entries: Vec<String> = keys
                .entries_with_ends()
                .map(|(entry, end)| match end {
                    None => QuotedText(entry).to_string(),
                    Some(end) => format!("{{ key = {}, until = {} }}", QuotedText(entry), Rfc3339(end)),
                })
                .collect();
            writeln!(text, "{name} = [{}]", entries.join(", "))?;
        }
    }
    inheritance::write(text, policy)?;
    if let Some(apps) = entry.apps() {
        let apps: Vec<String> = apps.map(|app| QuotedText(app).to_string()).collect();
        writeln!(text, "apps = [{}]", apps.join(", "))?;
    }
    let parts: Vec<String> = entry
        .key_parts()
        .map(|part| QuotedText(part).to_string())
        .collect();
    if !parts.is_empty() {
        writeln!(text, "key = [{}]", parts.join(", "))?;
    }
    if let Some(end) = entry.end() {
        writeln!(text, "until = {}", Rfc3339(end))?;
    }
    if entry.rate_type() != RateType::default() {
        writeln!(text, "rate_type = \"{}\"", entry.rate_type().name())?;
    }
    metadata::write(text, entry.metadata())
}

fn write_override(text: &mut String, own: &KeyOverride) -> fmt::Result {
    writeln!(text, "[[override]]\npolicy = {}", QuotedText(own.policy_name()))?;
    write_part(text, "key", own.key().as_str())?;
    if let Some(group) = own.key().group(None) {
        write_part(text, "group", group)?;
    }
    write_numbers(text, own.policy())?;
    if let Some(end) = own.end() {
        writeln!(text, "until = {}", Rfc3339(end))?;
    }
    Ok(())
}

fn write_rule(text: &mut String, rule: &Rule) -> fmt::Result {
    writeln!(text, "[[rule]]")?;
    if let Some(domain) = rule.domain() {
        writeln!(text, "domain = {}", QuotedText(domain))?;
    }
    let patterns = rule.patterns().iter().map(ToString::to_string);
    let more = rule.allows_more_entries().then(|| "...".to_owned());
    let patterns: Vec<String> = patterns
        .chain(more)
        .map(|pattern| QuotedText(&pattern).to_string())
        .collect();
    writeln!(text, "match = [{}]", patterns.join(", "))?;
    writeln!(text, "policy = {}", QuotedText(rule.policy()))?;
    if let Some(group) = rule.group() {
        writeln!(text, "group = {}", QuotedText(group))?;
    }
    for (name, is_set) in [("share", rule.shares_prefixes()), ("settle", rule.settles())] {
        if is_set {
            writeln!(text, "{name} = true")?;
        }
    }
    Ok(())
}

/// Writes a part of a key: as plain text if that reads back as the same key, else escaped.
fn write_part(text: &mut String, name: &str, escaped: &str) -> fmt::Result {
    match Key::unescaped(escaped).filter(|plain| Key::from(plain).as_str() == escaped) {
        Some(plain) => writeln!(text, "{name} = {}", QuotedText(&plain)),
        None => writeln!(text, "escaped_{name} = {}", QuotedText(escaped)),
    }
}

fn span(span: Duration) -> Span {
    Span(micros_ceil(span))
}
