//! The metadata of a policy as text.

use std::fmt::{self, Write as _};

use crate::registry::PolicyMetadata;
use crate::registry::text::fields::Table;
use crate::registry::text::report::ErrorReport;
use crate::registry::text::rfc3339::Rfc3339;
use crate::registry::text::values::QuotedText;

/// Takes the fields of the metadata out of the table of a policy.
pub(super) fn metadata_from_table(report: &mut ErrorReport<'_>, table: &mut Table<'_>) -> PolicyMetadata {
    let mut text = |report: &mut ErrorReport<'_>, name: &str| {
        let field = table.take(name)?;
        field.text(report, "text").map(str::to_owned)
    };
    let [created_by, updated_by, note] = ["created_by", "updated_by", "note"].map(|name| text(report, name));
    let [created_at, updated_at] =
        ["created_at", "updated_at"].map(|name| table.take(name).and_then(|field| field.time(report)));
    PolicyMetadata {
        created_by,
        created_at,
        updated_by,
        updated_at,
        note,
    }
}

pub(super) fn write(text: &mut String, metadata: &PolicyMetadata) -> fmt::Result {
    for (name, value) in [
        ("created_by", metadata.created_by()),
        ("updated_by", metadata.updated_by()),
        ("note", metadata.note()),
    ] {
        if let Some(value) = value {
            writeln!(text, "{name} = {}", QuotedText(value))?;
        }
    }
    for (name, at) in [
        ("created_at", metadata.created_at()),
        ("updated_at", metadata.updated_at()),
    ] {
        if let Some(at) = at {
            writeln!(text, "{name} = {}", Rfc3339(at))?;
        }
    }
    Ok(())
}
