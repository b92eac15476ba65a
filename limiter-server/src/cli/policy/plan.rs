//! The changes that make the database equal to a policy file.
//!
//! Policies have an owner: the plan saves the policies of the file, deletes those of its owner that
//! the file lacks, and fails if a changed policy has another owner, unless it is taken over. Rules
//! are replaced if the file has some; suspensions and blocks are added. These have no owner.
//!
//! Invariants: equal content and notes yield no change, and quotas of keys that were set by the API
//! stay unless the file has quotas of the policy. Tests: `tests/policy_command.rs`.

use std::collections::BTreeSet;

use limiter_core::registry::{PolicyMetadata, PolicyRegistry};

use crate::admin::preview::unified_diff;
use crate::cli::print_text;
use crate::error_text::with_causes;
use crate::overlay_text;
use crate::policy_text::{PolicyText, rules_to_toml};
use crate::publish::timestamp;
use crate::store::{DocumentKind, OVERLAYS, RULES, StoredDocument, now_micros};

/// A change that makes the database equal to a file.
#[derive(Debug)]
pub(super) enum PlannedChange {
    Save {
        text: PolicyText,
        revision: i64,
    },
    Delete {
        name: String,
        revision: i64,
    },
    Rules {
        text: String,
        revision: i64,
    },
    /// Adds suspensions and blocks, which have no owner.
    Overlays {
        added: PolicyRegistry,
        text: String,
    },
}

/// Returns the changes, or the policies of other owners that they would change.
pub(super) fn plan(
    desired: &PolicyRegistry,
    documents: &[StoredDocument],
    (managed_by, takes_over): (&str, bool),
) -> Result<Vec<PlannedChange>, String> {
    let mut changes = Vec::new();
    let mut foreign = Vec::new();
    let names: BTreeSet<String> = desired.names().into_iter().collect();
    let find = |kind, name: &str| documents.iter().find(|of| of.kind == kind && of.name == name);
    for name in &names {
        let text = PolicyText::of(desired, name)
            .ok_or_else(|| format!("the name of policy `{name}` is too long, expected at most 255 bytes"))?;
        let found = find(DocumentKind::Policy, name);
        // An export contains the tombstone of a policy that another program has ended, and that
        // rules name.
        if found.is_some_and(|of| of.is_deleted) && text.is_ended_at(timestamp(now_micros())) {
            continue;
        }
        let current = found.filter(|of| !of.is_deleted);
        let before = current.and_then(|of| of.policy().ok());
        // Quotas that are set by the API stay, unless the file lists quotas of the policy.
        let text = match &before {
            Some(before) if text.overrides().is_empty() => {
                text.with_overrides_of(before).map_err(|error| {
                    format!(
                        "the quotas that keys of policy `{name}` have in the database do not fit the policy of the file: \
                         {error}; remove them, or list the quotas of the policy in the file"
                    )
                })?
            }
            _ => text,
        };
        let is_foreign = current.is_some_and(|of| of.managed_by != managed_by);
        let is_same = before.as_ref().is_some_and(|before| {
            before.has_content_of(&text) && (is_foreign || note_of(before) == note_of(&text))
        });
        if is_same && !(is_foreign && takes_over) {
            continue;
        }
        if is_foreign && !takes_over {
            foreign.push(name.clone());
        }
        let revision = current.map_or(0, |of| of.revision);
        changes.push(PlannedChange::Save { text, revision });
    }
    for document in documents {
        let is_removed = document.kind == DocumentKind::Policy
            && !document.is_deleted
            && document.managed_by == managed_by
            && !names.contains(&document.name);
        if is_removed {
            changes.push(PlannedChange::Delete {
                name: document.name.clone(),
                revision: document.revision,
            });
        }
    }
    let rules = desired.rules();
    if !rules.is_empty() {
        let text = rules_to_toml(&rules).map_err(|error| error.to_string())?;
        let current = find(DocumentKind::Rules, RULES);
        if current.is_none_or(|of| of.body != text) {
            let revision = current.map_or(0, |of| of.revision);
            changes.push(PlannedChange::Rules { text, revision });
        }
    }
    if overlay_text::is_in(desired) {
        let current = find(DocumentKind::Overlays, OVERLAYS);
        changes.extend(plan_overlays(desired, current)?);
    }
    match foreign.is_empty() {
        true => Ok(changes),
        false => Err(format!(
            "these policies have another owner than `{managed_by}`: {}; use --take-over to change them",
            foreign.join(", ")
        )),
    }
}

fn note_of(text: &PolicyText) -> Option<&str> {
    text.entry().metadata().note()
}

/// Returns the text without authors and times.
fn shown(text: &PolicyText) -> String {
    let metadata = PolicyMetadata::new();
    let metadata = match note_of(text) {
        Some(note) => metadata.with_note(note),
        None => metadata,
    };
    text.with_metadata(metadata).to_toml()
}

/// Returns the addition of the suspensions and blocks of a file; `None` if the database contains
/// them.
fn plan_overlays(
    desired: &PolicyRegistry,
    current: Option<&StoredDocument>,
) -> Result<Option<PlannedChange>, String> {
    let invalid = |error: &dyn std::error::Error| format!("suspensions and blocks: {}", with_causes(error));
    let before = current.map_or("", |of| of.body.as_str());
    let merged = overlay_text::parse(before).map_err(|error| invalid(&error))?;
    let before = overlay_text::of(&merged).map_err(|error| invalid(&error))?;
    overlay_text::add(desired, &merged, timestamp(now_micros())).map_err(|error| invalid(&error))?;
    let text = overlay_text::of(&merged).map_err(|error| invalid(&error))?;
    let added = PolicyRegistry::new();
    overlay_text::copy(desired, &added).map_err(|error| invalid(&error))?;
    Ok((text != before).then_some(PlannedChange::Overlays { added, text }))
}

/// Prints a change with its difference to the database.
pub(super) fn print_change(change: &PlannedChange, documents: &[StoredDocument]) -> Result<(), String> {
    let body = |kind, name: &str| {
        let found = documents.iter().find(|of| of.kind == kind && of.name == name);
        found.filter(|of| !of.is_deleted)
    };
    let content = |name: &str| {
        let text = body(DocumentKind::Policy, name).and_then(|of| of.policy().ok());
        text.as_ref().map(shown).unwrap_or_default()
    };
    let (title, before, after) = match change {
        PlannedChange::Save { text, revision } => {
            let action = if *revision == 0 { "create" } else { "change" };
            let title = format!("{action} policy {}", text.name());
            (title, content(text.name()), shown(text))
        }
        PlannedChange::Delete { name, .. } => (format!("delete policy {name}"), content(name), String::new()),
        PlannedChange::Rules { text, .. } => {
            let before = body(DocumentKind::Rules, RULES).map(|of| of.body.clone());
            (
                "change rules".to_owned(),
                before.unwrap_or_default(),
                text.clone(),
            )
        }
        PlannedChange::Overlays { text, .. } => {
            let before = body(DocumentKind::Overlays, OVERLAYS).map(|of| of.body.clone());
            let title = "change suspensions and blocks".to_owned();
            (title, before.unwrap_or_default(), text.clone())
        }
    };
    print_text(&format!("{title}\n{}", unified_diff(&before, &after)))
}
