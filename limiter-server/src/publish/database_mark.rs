//! Names the newest change of the database in Redis, and detects a restored copy without it.
//!
//! The registry names the newest change of its last publication only. A revocation of a token after
//! it publishes no policy, so a copy of the database from between the two would accept the token
//! again. The text beside the registry follows each change, and is compared before the tokens are
//! read. Test: `copy_from_before_a_revocation_does_not_revive_the_token` in
//! `tests/issued_tokens.rs`.

use limiter_core::registry::{RedisDocument, RegistryError};

use crate::publish::Publisher;
use crate::publish::error::PublishError;
use crate::store::{ChangeMark, Store, now_micros};

/// The name of the text in Redis.
const DOCUMENT: &str = "database";

/// The text of one namespace.
#[derive(Debug)]
pub(super) struct DatabaseMark {
    namespace: String,
    store: Store,
    document: RedisDocument,
    /// The revision of the text in Redis, and its content.
    published: (u64, Option<ChangeMark>),
}

impl DatabaseMark {
    /// The text of a namespace; `None` without Redis.
    pub(super) fn new(publisher: &Publisher) -> Option<Self> {
        Some(Self {
            namespace: publisher.namespace().to_owned(),
            store: publisher.0.store.clone(),
            document: publisher.redis()?.document(DOCUMENT),
            published: (0, None),
        })
    }

    /// Suspends the credentials of a restored copy, and publishes the newest change. A full pass
    /// reads the text even if it has no later revision.
    pub(super) async fn pass(&mut self, is_full: bool) -> Result<(), PublishError> {
        // A newer program writes the database.
        if self.store.is_read_only() {
            return Ok(());
        }
        let known = if is_full { 0 } else { self.published.0 };
        // Redis is read before the database, which then contains every change that Redis names.
        match self.document.read_after(known).await? {
            Some((revision, text)) => self.published = (revision, text.parse().ok()),
            None if known == 0 => self.published = (0, None),
            None => {}
        }
        let mut newest = self.store.newest_mark().await?;
        if self.published.1.as_ref() == Some(&newest) {
            return Ok(());
        }
        if let Some(mark) = &self.published.1
            && self.store.has_lost(mark).await?
        {
            self.store
                .suspend_credentials(&self.namespace, now_micros())
                .await?;
            newest = self.store.newest_mark().await?;
        }
        match self.document.publish(&newest.to_string(), self.published.0).await {
            Ok(revision) => self.published = (revision, Some(newest)),
            // Another node has published; the next pass reads its text.
            Err(RegistryError::Conflict { .. }) => self.published.0 = 0,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
