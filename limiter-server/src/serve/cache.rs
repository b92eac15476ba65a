//! The last policies in force, in a file: a node that finds neither Redis nor the database starts
//! with them. The file is a cache and no source: policies of Redis and of the database replace it.
//! Its first line is a comment with the revision of the policies. Tests: `tests/state_dir.rs`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use limiter_core::registry::PolicyRegistry;
use tokio::time::timeout;

use crate::gateway::served_revision::{CachedRevision, ServedRevision};
use crate::overlay_text;
use crate::policy_text::PolicyText;

const FILE: &str = "registry.toml";
/// The pause after a failed write.
const RETRY: Duration = Duration::from_secs(5);
/// The start of the first line, before the revision.
const REVISION: &str = "# revision ";

/// Puts the cached policies into a registry. Returns their revision, or `None` without policies.
pub(super) fn load(directory: &Path, registry: &PolicyRegistry) -> Option<CachedRevision> {
    let path = directory.join(FILE);
    let text = std::fs::read_to_string(&path).ok()?;
    let cached = match PolicyRegistry::from_toml(&text) {
        Ok(cached) => cached,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cached policies rejected; starting without them");
            return None;
        }
    };
    let names = cached.names();
    // Suspensions and blocks without policies have no effect, and would not be removed.
    if names.is_empty() {
        return None;
    }
    for name in &names {
        let put = PolicyText::of(&cached, name).map(|text| text.put_into(registry));
        if let Some(Err(error)) = put {
            tracing::warn!(path = %path.display(), %error, "cached policy rejected; starting without it");
        }
    }
    if let Err(error) = registry.set_rules(cached.rules().iter().cloned()) {
        tracing::warn!(path = %path.display(), %error, "cached rules rejected; starting without them");
    }
    if let Err(error) = overlay_text::copy(&cached, registry) {
        tracing::warn!(path = %path.display(), %error, "cached suspensions and blocks rejected; starting without them");
    }
    tracing::info!(path = %path.display(), policies = names.len(), "started with cached policies");
    let revision = revision_of(&text).unwrap_or_else(|| registry.revision());
    Some(CachedRevision::new(revision, registry))
}

/// Returns the revision in the first line. A file of an earlier version has none.
fn revision_of(text: &str) -> Option<u64> {
    let line = text.lines().next()?;
    line.strip_prefix(REVISION)?.parse().ok()
}

/// Removes the cached policies from a registry, because their source has answered.
pub(super) fn clear(registry: &PolicyRegistry) {
    for name in registry.names() {
        registry.remove(&name);
    }
    // No rules and no overlays are never too many.
    let _ = registry.set_rules([]);
    let _ = registry.set_overlays([], []);
}

/// Writes the policies in force after each change, until the task is dropped. A registry without
/// policies is written if its source has answered: before that, it would replace the file.
pub(super) async fn follow(directory: PathBuf, served: ServedRevision, is_cached: bool) {
    let registry = served.registry().clone();
    let shown = directory.display().to_string();
    let mut revision = registry.revision();
    let (mut had_policies, mut has_failed) = (is_cached, false);
    loop {
        had_policies |= !registry.names().is_empty();
        if had_policies || registry.published().is_some() {
            let text = format!("{REVISION}{}\n{}", served.current(), registry.to_toml());
            let directory = directory.clone();
            let written = tokio::task::spawn_blocking(move || write(&directory, FILE, &text)).await;
            has_failed = matches!(written, Ok(Err(_)));
            if let Ok(Err(error)) = written {
                tracing::warn!(directory = %shown, %error, "cannot write the cached policies; check state_dir");
            }
        }
        revision = match has_failed {
            true => timeout(RETRY, registry.changed(revision))
                .await
                .unwrap_or(revision),
            false => registry.changed(revision).await,
        };
    }
}

/// Writes by renaming, so that a reader never sees a part of the text.
pub(super) fn write(directory: &Path, file: &str, text: &str) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let draft = directory.join(format!("{file}.new"));
    std::fs::write(&draft, text)?;
    std::fs::File::open(&draft)?.sync_all()?;
    std::fs::rename(draft, directory.join(file))
}
