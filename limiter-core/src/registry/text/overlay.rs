//! Overlays as text: `[[suspend]]` and `[[block]]` tables.
//!
//! An error in one of the tables rejects this table alone in a lenient report: the other overlays,
//! which may protect a service, must apply.
//!
//! Tests: `tests/registry/overlays.rs` (`overlays_round_trip_and_raise_min_reader`,
//! `invalid_overlays_are_named`), `tests/registry_redis/newer_programs.rs`.

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;
use std::sync::Arc;

use toml::de::DeValue;

use crate::error::ConfigError;
use crate::registry::text::fields::{Field, Table};
use crate::registry::text::report::{ErrorReport, Scope};
use crate::registry::text::rfc3339::Rfc3339;
use crate::registry::text::values::QuotedText;
use crate::registry::{
    Block, BlockTarget, PolicyRegistry, SourceOverlays, Suspension, SuspensionMode, SuspensionScope,
};

const SUSPENSION_FIELDS: &str = "scope, enforcement, from, until, by or reason";
const BLOCK_FIELDS: &str = "key, network, part, app, until, by or reason";

/// Reads the overlays of a text.
pub(super) fn read(report: &mut ErrorReport<'_>, top: &mut Table<'_>) -> Arc<SourceOverlays> {
    let mut overlays = SourceOverlays::default();
    if let Some(field) = top.take("suspend") {
        let most = PolicyRegistry::MAX_SUSPENSIONS;
        for_each_table(report, &field, most, |report, field| {
            let Some(suspension) = read_suspension(report, field) else {
                return;
            };
            let scope = suspension.scope();
            if overlays.suspensions.iter().any(|of| of.scope() == scope) {
                let message = format!("{} repeats the scope of an earlier suspension", field.path);
                report.push(field.at, message);
            } else {
                overlays.suspensions.push(suspension);
            }
        });
    }
    if let Some(field) = top.take("block") {
        let most = PolicyRegistry::MAX_BLOCKS;
        let mut known = std::collections::HashSet::new();
        for_each_table(report, &field, most, |report, field| {
            let Some(block) = read_block(report, field) else {
                return;
            };
            if known.insert((block.target().clone(), block.app().map(str::to_owned))) {
                overlays.blocks.push(block);
            } else {
                let message = format!("{} repeats the keys and the app of an earlier block", field.path);
                report.push(field.at, message);
            }
        });
    }
    Arc::new(overlays)
}

fn for_each_table(
    report: &mut ErrorReport<'_>,
    field: &Field<'_>,
    most: usize,
    mut read: impl FnMut(&mut ErrorReport<'_>, &Field<'_>),
) {
    let DeValue::Array(tables) = field.value else {
        return field.refuse(report, &format!("tables such as [[{}]]", field.name));
    };
    report.enter(Scope::Table);
    for (index, value) in tables.iter().enumerate() {
        if index == most {
            let message = format!(
                "{}[{index}] is one too many, expected at most {index}",
                field.name
            );
            report.push(value.span().start, message);
            break;
        }
        read(report, &Field::new(format!("{}[{index}]", field.name), value));
    }
    report.enter(Scope::Text);
}

fn read_suspension(report: &mut ErrorReport<'_>, field: &Field<'_>) -> Option<Suspension> {
    let mut table = field.table(report)?;
    let before = report.len();
    let scope = table.require(report, "scope");
    let scope = scope.and_then(|scope| parsed::<SuspensionScope>(report, &scope));
    let mode = table.require(report, "enforcement");
    let mode = mode.and_then(|mode| parsed::<SuspensionMode>(report, &mode));
    let from = table.take("from").and_then(|from| from.time(report));
    let until = table.require(report, "until");
    let until = until.and_then(|until| until.time(report));
    let (by, reason) = read_author(report, &mut table);
    table.refuse_rest(report, SUSPENSION_FIELDS);
    let mut suspension = Suspension::new(scope?, mode?, until?);
    if let Some(from) = from {
        suspension = suspension.with_start(from);
    }
    if let Some(by) = by {
        suspension = suspension.with_author(by);
    }
    if let Some(reason) = reason {
        suspension = suspension.with_reason(reason);
    }
    if let Err(error) = suspension.check() {
        field.refuse_as(report, &error);
    }
    (report.len() == before).then_some(suspension)
}

fn read_block(report: &mut ErrorReport<'_>, field: &Field<'_>) -> Option<Block> {
    let mut table = field.table(report)?;
    let before = report.len();
    let targets = ["key", "network", "part"].map(|name| table.take(name));
    let count = targets.iter().flatten().count();
    let target = targets.into_iter().flatten().next();
    let app = table.take("app");
    let app = app.and_then(|app| app.text(report, "the name of an app"));
    let until = table.take("until");
    let until = until.and_then(|until| until.time(report));
    let (by, reason) = read_author(report, &mut table);
    table.refuse_rest(report, BLOCK_FIELDS);
    if count != 1 {
        let message = format!("{}: expected exactly one of key, network and part", field.path);
        report.push(field.at, message);
        return None;
    }
    let target = target.and_then(|field| read_target(report, &field))?;
    let mut block = Block::new(target);
    if let Some(app) = app {
        block = block.for_app(app);
    }
    if let Some(until) = until {
        block = block.until(until);
    }
    if let Some(by) = by {
        block = block.with_author(by);
    }
    if let Some(reason) = reason {
        block = block.with_reason(reason);
    }
    if let Err(error) = block.check() {
        field.refuse_as(report, &error);
    }
    (report.len() == before).then_some(block)
}

fn read_target(report: &mut ErrorReport<'_>, field: &Field<'_>) -> Option<BlockTarget> {
    let text = field.text(report, "text")?;
    let target = match field.name {
        "key" => Ok(BlockTarget::Key(text.to_owned())),
        "network" => Ok(BlockTarget::Network(text.to_owned())),
        _ => BlockTarget::part(text),
    };
    let target = target.and_then(|target| target.check().map(|()| target));
    target.map_err(|error| field.refuse_as(report, &error)).ok()
}

fn read_author<'t>(
    report: &mut ErrorReport<'_>,
    table: &mut Table<'t>,
) -> (Option<&'t str>, Option<&'t str>) {
    let [by, reason] = ["by", "reason"].map(|name| table.take(name));
    let mut text = |field: Option<Field<'t>>| field.and_then(|field| field.text(report, "text"));
    (text(by), text(reason))
}

fn parsed<T: FromStr<Err = ConfigError>>(report: &mut ErrorReport<'_>, field: &Field<'_>) -> Option<T> {
    field.parsed(report)
}

/// Writes the overlays of a snapshot.
pub(super) fn write(text: &mut String, overlays: &SourceOverlays) -> fmt::Result {
    for suspension in &overlays.suspensions {
        writeln!(text, "\n[[suspend]]")?;
        let scope = suspension.scope().to_string();
        writeln!(text, "scope = {}", QuotedText(&scope))?;
        writeln!(text, "enforcement = \"{}\"", suspension.mode())?;
        if let Some(from) = suspension.start() {
            writeln!(text, "from = {}", Rfc3339(from))?;
        }
        writeln!(text, "until = {}", Rfc3339(suspension.end()))?;
        write_author(text, suspension.author(), suspension.reason())?;
    }
    for block in &overlays.blocks {
        writeln!(text, "\n[[block]]")?;
        let target = block.target();
        writeln!(text, "{} = {}", target.field(), QuotedText(&target.value()))?;
        if let Some(app) = block.app() {
            writeln!(text, "app = {}", QuotedText(app))?;
        }
        if let Some(until) = block.end() {
            writeln!(text, "until = {}", Rfc3339(until))?;
        }
        write_author(text, block.author(), block.reason())?;
    }
    Ok(())
}

fn write_author(text: &mut String, by: Option<&str>, reason: Option<&str>) -> fmt::Result {
    for (name, value) in [("by", by), ("reason", reason)] {
        if let Some(value) = value {
            writeln!(text, "{name} = {}", QuotedText(value))?;
        }
    }
    Ok(())
}
