//! Replaces the registry in Redis by a draft, and confirms the documents of the draft.

use limiter_core::registry::{PolicyRegistry, RedisRegistry, RegistryError};

use crate::publish::draft::Draft;
use crate::publish::error::PublishError;
use crate::publish::reconcile::{KnownDocument, KnownState};
use crate::publish::registry_text::with_mark;
use crate::publish::{Publisher, guard};
use crate::store::now_micros;

/// The alert of a registry that has lost data.
pub(super) const WENT_BACK: &str =
    "Redis lost the registry or has an older one; the policies were published again";
/// The alert of a text that no process reads.
pub(super) const DAMAGED: &str =
    "Redis had a text of the registry that no process reads; the policies were published again";

impl Publisher {
    /// Publishes all documents in place of the revision that was read, which has lost data if there
    /// is an alert.
    pub(super) async fn publish_all(
        &self,
        redis: &RedisRegistry,
        known: &KnownState,
        replaced: u64,
        alert: Option<&str>,
    ) -> Result<bool, PublishError> {
        let inner = &*self.0;
        if let Some(detail) = alert {
            inner
                .store
                .raise_alert(&inner.namespace, "registry_went_back", detail, now_micros())
                .await?;
        }
        let unreadable = guard::unreadable(redis, known).await?;
        // A policy in force is published again in any case: without it, its limit would not be
        // enforced.
        let is_selected =
            |of: &&KnownDocument| of.document.published > 0 || !unreadable.contains(&of.document);
        let mut draft = Draft::new(PolicyRegistry::new());
        draft.add(known.documents.values().filter(is_selected));
        if draft.has_lost() {
            return draft.complete().map(|()| false);
        }
        self.send(redis, &draft, (known, replaced)).await
    }

    /// Publishes a draft in place of the revision that was read.
    pub(super) async fn send(
        &self,
        redis: &RedisRegistry,
        draft: &Draft,
        (known, replaced): (&KnownState, u64),
    ) -> Result<bool, PublishError> {
        let inner = &*self.0;
        let text = with_mark(&draft.text(), &known.newest);
        // The limiter of this handle does not follow the registry, and Redis can have lost the
        // confirmed revision.
        let least = u64::try_from(known.confirmed).unwrap_or_default();
        match redis.publish_above(&text, replaced, least).await {
            Ok(revision) => {
                let revision = i64::try_from(revision).unwrap_or(i64::MAX);
                inner
                    .store
                    .confirm(&inner.namespace, revision, draft.confirmed(), now_micros())
                    .await?;
                draft.complete().map(|()| true)
            }
            Err(RegistryError::Conflict { .. }) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}
