//! Removes old records, on one node at a time.
//!
//! | record | kept |
//! |---|---|
//! | counts of decisions per minute and per hour | [`RetentionSettings`] |
//! | samples of denials | [`RetentionSettings`] |
//! | quotas of keys, suspensions, blocks and tokens | [`RetentionSettings`] after their end |
//! | entries of the audit | until they are in the export; all without an export |
//! | revisions of policies | without end |
//!
//! [`prune`] receives the time, so tests need no wait. Tests: `tests/control_plane/retention.rs`.

mod audit_export;
mod ended;

use std::fmt;
use std::time::Duration;

use crate::settings::RetentionSettings;
use crate::store::{Store, StoreError, micros, now_micros};

/// The interval between passes of all nodes.
const INTERVAL: Duration = Duration::from_secs(3_600);
/// The interval between attempts of a node.
const ATTEMPTS: Duration = Duration::from_secs(60);
/// The name of the task.
const TASK: &str = "retention";

/// The number of removed records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrunedRecords {
    /// Counts of decisions.
    pub counts: u64,
    /// Samples of denials.
    pub denials: u64,
    /// Policies and overlays without their ended entries.
    pub documents: u64,
    /// Tokens.
    pub tokens: u64,
    /// Entries of the audit that were moved to the export.
    pub audit: u64,
}

/// The reason for records that were not removed.
#[derive(Debug)]
pub enum RetentionError {
    /// The database failed.
    Store(StoreError),
    /// The export of the audit cannot be written. No entry of the audit was removed.
    Export(std::io::Error),
}

impl From<StoreError> for RetentionError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl fmt::Display for RetentionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Export(_) => f.write_str("cannot write the export of the audit"),
        }
    }
}

impl std::error::Error for RetentionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => std::error::Error::source(error),
            Self::Export(error) => Some(error),
        }
    }
}

/// Removes old records until the task is dropped.
pub(crate) async fn run(
    store: Store,
    settings: RetentionSettings,
    namespaces: Vec<String>,
    instance: String,
) {
    loop {
        let now = now_micros();
        let until = now.saturating_add(micros(INTERVAL));
        match store.claim_task(TASK, &instance, now, until).await {
            Ok(true) => {
                match prune(&store, &settings, &namespaces, now).await {
                    Ok(removed) => tracing::debug!(?removed, "old records removed"),
                    Err(error) => {
                        let cause = std::error::Error::source(&error).map(ToString::to_string);
                        tracing::warn!(%error, cause, "cannot remove old records; trying again in an hour");
                    }
                }
                tokio::time::sleep(INTERVAL).await;
            }
            Ok(false) | Err(_) => tokio::time::sleep(ATTEMPTS).await,
        }
    }
}

/// Removes the records that are old at a time.
///
/// # Errors
///
/// [`RetentionError`] when the database or the directory of the export fails.
pub async fn prune(
    store: &Store,
    settings: &RetentionSettings,
    namespaces: &[String],
    now: i64,
) -> Result<PrunedRecords, RetentionError> {
    let before = |kept: Duration| now.saturating_sub(micros(kept));
    let counts = store
        .prune_counts(before(settings.usage_minutes), before(settings.usage_hours))
        .await?;
    let denials = store.prune_denials(before(settings.denials)).await?;
    let tokens = store.prune_tokens(before(settings.ended)).await?;
    let mut documents = 0;
    for namespace in namespaces {
        documents += ended::prune(store, namespace, before(settings.ended), now).await?;
    }
    let audit = match &settings.audit_export {
        None => 0,
        Some(directory) => audit_export::run(store, directory, before(settings.audit)).await?,
    };
    Ok(PrunedRecords {
        counts,
        denials,
        documents,
        tokens,
        audit,
    })
}
