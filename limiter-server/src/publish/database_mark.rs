//! Names the newest change of the database in Redis, and detects a restored copy without it.
//!
//! The registry names the newest change of its last publication only. A revocation of a token after
//! it publishes no policy, so a copy of the database from between the two would accept the token
//! again. The text beside the registry follows each change, and is compared before the tokens are
//! read. The publisher of the registry compares it as well, because another program can have edited
//! the registry without its mark, and reports the policies that differ before the text is replaced.
//! Tests: `copy_from_before_a_revocation_does_not_revive_the_token` and
//! `differences_of_a_restored_copy_are_reported_after_a_suspension_from_outside` in
//! `tests/restored_database.rs`.

use limiter_core::registry::{RedisDocument, RedisRegistry, RegistryError};

use crate::publish::Publisher;
use crate::publish::error::PublishError;
use crate::publish::registry_text::read_mark;
use crate::store::{ChangeMark, Store, now_micros};

/// The name of the text in Redis.
const DOCUMENT: &str = "database";

/// Returns whether the registry was published after a change that the database has lost, by the
/// mark in its text or by the text beside it.
pub(super) async fn follows_lost_change(
    store: &Store,
    redis: &RedisRegistry,
    registry: &str,
) -> Result<bool, PublishError> {
    let beside = absent_if_damaged(redis.document(DOCUMENT).read_after(0).await)?;
    let beside = beside.and_then(|(_, text)| text.parse().ok());
    for mark in [read_mark(registry), beside].into_iter().flatten() {
        if store.has_lost(&mark).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns none for a text without a revision, which no reader accepts: the next publication
/// replaces it.
pub(super) fn absent_if_damaged(
    read: Result<Option<(u64, String)>, RegistryError>,
) -> Result<Option<(u64, String)>, RegistryError> {
    match read {
        Err(RegistryError::Parse { .. }) => Ok(None),
        read => read,
    }
}

/// The text of one namespace.
#[derive(Debug)]
pub(super) struct DatabaseMark {
    publisher: Publisher,
    document: RedisDocument,
    /// The revision of the text in Redis, and its content.
    published: (u64, Option<ChangeMark>),
    /// The lost change after which this process has suspended the credentials.
    lost: Option<ChangeMark>,
}

impl DatabaseMark {
    /// Creates the text of a namespace; `None` without Redis.
    pub(super) fn new(publisher: &Publisher) -> Option<Self> {
        Some(Self {
            publisher: publisher.clone(),
            document: publisher.redis()?.document(DOCUMENT),
            published: (0, None),
            lost: None,
        })
    }

    /// Suspends the credentials of a restored copy, or publishes the newest change. A full pass
    /// reads the text even if it has no later revision.
    pub(super) async fn pass(&mut self, is_full: bool) -> Result<(), PublishError> {
        let store = &self.publisher.0.store;
        // A newer program writes the database.
        if store.is_read_only() {
            return Ok(());
        }
        let known = if is_full { 0 } else { self.published.0 };
        // Redis is read before the database, which then contains every change that Redis names.
        match absent_if_damaged(self.document.read_after(known).await)? {
            Some((revision, text)) => self.published = (revision, text.parse().ok()),
            None if known == 0 => self.published = (0, None),
            None => {}
        }
        let newest = store.newest_mark().await?;
        if self.published.1.as_ref() == Some(&newest) {
            return Ok(());
        }
        if let Some(mark) = &self.published.1
            && store.has_lost(mark).await?
        {
            // An administrator may confirm tokens before the text is replaced.
            if self.lost.as_ref() != Some(mark) {
                let namespace = self.publisher.namespace();
                store.suspend_credentials(namespace, now_micros()).await?;
                self.lost = Some(mark.clone());
            }
            return Ok(());
        }
        self.replace(newest).await
    }

    /// After a suspension of the credentials, has the publisher report the policies that differ,
    /// and replaces the text. The text stays until the publisher succeeds.
    pub(super) async fn complete(&mut self) -> Result<(), PublishError> {
        if self.lost.is_none() {
            return Ok(());
        }
        self.publisher.set_agreed(None);
        self.publisher.pass().await?;
        let newest = self.publisher.0.store.newest_mark().await?;
        self.replace(newest).await
    }

    async fn replace(&mut self, newest: ChangeMark) -> Result<(), PublishError> {
        match self.document.publish(&newest.to_string(), self.published.0).await {
            Ok(revision) => {
                self.published = (revision, Some(newest));
                self.lost = None;
            }
            // Another node has published; the next pass reads its text.
            Err(RegistryError::Conflict { .. }) => self.published.0 = 0,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
