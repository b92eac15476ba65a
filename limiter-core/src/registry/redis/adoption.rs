//! The part of a registry that Redis defines: the revision of its text, and the adoption of a later
//! text.
//!
//! Publications of this process and texts of other programs arrive here with their revision, and
//! replace the source `Redis` of the registry as a whole. A policy of a text that cannot be read
//! keeps its previous version, while the other policies apply.
//!
//! Invariants: an earlier or equal revision is never adopted; and no policy changes between rate
//! and concurrency. Tests: `tests/registry_redis.rs` with its modules `texts` and `newer_programs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::registry::text::{self, Findings, RegistryError};
use crate::registry::{PolicyEntry, PolicyRegistry, Source, SourceSnapshot};

impl PolicyRegistry {
    /// Returns the revision of the registry in Redis that this process has
    /// [followed](crate::registry::RedisRegistry::follow) or published last; `None` before.
    /// Replicas with the same revision have the same policies from Redis.
    #[must_use]
    pub fn published(&self) -> Option<u64> {
        Some(self.sources().published).filter(|revision| *revision > 0)
    }

    /// Returns the registry that Redis returned last, as a text without a revision.
    pub(crate) fn last_published(&self) -> String {
        let sources = self.sources();
        sources.redis().map(text::write).unwrap_or_default()
    }

    /// Returns the policy that would apply to a name without the definition in Redis.
    pub(crate) fn get_beside_redis(&self, name: &str) -> Option<Arc<PolicyEntry>> {
        self.sources().beside_redis(name).cloned()
    }

    /// Marks the registry as one that waits for its first reply from Redis.
    pub(super) fn await_redis(&self) {
        let is_received = self.published().is_some();
        self.0.awaits_redis.store(!is_received, Ordering::Relaxed);
    }

    /// Records the first reply from Redis, including an empty or rejected one.
    pub(super) fn redis_is_received(&self) {
        self.0.awaits_redis.store(false, Ordering::Relaxed);
    }

    /// Adopts a published text. Returns whether its revision is later than the known one.
    pub(super) fn adopt_published(&self, revision: u64, snapshot: SourceSnapshot) -> bool {
        {
            let mut sources = self.sources();
            if revision <= sources.published {
                return false;
            }
            sources.published = revision;
            sources.published_partly = false;
            self.replace_source(sources, &Source::Redis, snapshot);
        }
        true
    }

    /// Adopts a text that another program published, if it is later than the known one. Policies
    /// that cannot be read, and those that change between rate and concurrency, keep their previous
    /// version.
    pub(super) fn adopt_findings(
        &self,
        key: &str,
        revision: u64,
        mut snapshot: SourceSnapshot,
        mut findings: Findings,
    ) -> Option<Findings> {
        let turned = snapshot.entries().filter_map(|entry| {
            let reason = self.kind_change_error(entry)?;
            Some((
                entry.policy().name().into(),
                RegistryError::in_whole_text(key, reason),
            ))
        });
        for (name, error) in turned.collect::<Vec<(Box<str>, _)>>() {
            snapshot.remove(&name);
            findings.rejected.insert(name);
            findings.errors.push(error);
        }
        let mut sources = self.sources();
        if revision <= sources.published {
            return None;
        }
        if let Some(before) = sources.redis() {
            if findings.rejects_rules {
                snapshot.retain_rules(before);
            }
            findings
                .rejected
                .iter()
                .for_each(|name| snapshot.retain_generations(name, before));
        }
        sources.published = revision;
        sources.published_partly = !(findings.errors.is_empty() && findings.warnings.is_empty());
        self.replace_source(sources, &Source::Redis, snapshot);
        Some(findings)
    }
}
