//! Moves old entries of the audit to files, one JSON object per line and one file per month.
//!
//! Entries are removed from the database after the file was synchronized. A crash between both
//! exports them again, so a reader of the files must ignore a repeated `id`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use crate::retention::RetentionError;
use crate::store::{AuditEntry, Store};

/// The number of entries that are moved at once.
const BATCH: i64 = 500;

/// Moves the entries before a time. Returns their number.
pub(super) async fn run(store: &Store, directory: &Path, before: i64) -> Result<u64, RetentionError> {
    let mut moved = 0;
    loop {
        let entries = store.audit_before(before, BATCH).await?;
        if entries.is_empty() {
            return Ok(moved);
        }
        let (directory, batch) = (directory.to_owned(), entries.clone());
        let written = tokio::task::spawn_blocking(move || write(&directory, &batch)).await;
        // The task panics only if the runtime ends.
        let written = written.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        written.map_err(RetentionError::Export)?;
        store.remove_audit(&entries).await?;
        moved += u64::try_from(entries.len()).unwrap_or_default();
    }
}

fn write(directory: &Path, entries: &[AuditEntry]) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for entry in entries {
        let lines = files.entry(month_of(entry.created_at)).or_default();
        lines.push_str(&entry.to_json().to_string());
        lines.push('\n');
    }
    for (month, lines) in files {
        let path = directory.join(format!("audit-{month}.jsonl"));
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(lines.as_bytes())?;
        file.sync_all()?;
    }
    Ok(())
}

/// Returns the month in UTC, such as `2026-11`.
fn month_of(micros: i64) -> String {
    let time = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    time.strftime("%Y-%m").to_string()
}
