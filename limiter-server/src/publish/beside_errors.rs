//! Publishes suspensions and blocks in a text whose policies or rules cannot be read.
//!
//! Another program can publish a policy with an error, or one of a newer version. The processes
//! that follow the registry report it and adopt the rest of the text, so that a suspension takes
//! effect beside it. Until the text can be read, the publisher imports and publishes the
//! suspensions and blocks alone, and the other parts stay as they are. The confirmed revision
//! stays, too, so that the other changes are imported later. A text with an earlier revision than
//! the last one is a restored copy of Redis: its suspensions are replaced and not imported. Tests:
//! `suspensions_are_published_beside_an_unreadable_policy` in `tests/publish.rs`, and
//! `kill_works_beside_an_unreadable_policy` in `tests/overlays.rs`.

use std::sync::atomic::Ordering;

use limiter_core::ConfigError;
use limiter_core::registry::{PolicyRegistry, RedisRegistry, RegistryError};

use crate::overlay_text;
use crate::policy_text::TextError;
use crate::publish::Publisher;
use crate::publish::error::PublishError;
use crate::publish::reconcile::{KnownState, ObservedRegistry, Step, compare_texts};
use crate::publish::registry_text::{contents, with_mark};
use crate::store::{DocumentKind, now_micros};

/// The largest number of attempts of an edit. An attempt is repeated after a publication by another
/// program.
const MAX_ATTEMPTS: usize = 8;

/// Edits the suspensions and blocks of the registry in Redis. Returns its revision.
///
/// # Errors
///
/// The reason as one message.
pub(crate) async fn edit_overlays(
    redis: &RedisRegistry,
    change: impl Fn(&PolicyRegistry) -> Result<(), ConfigError>,
) -> Result<u64, String> {
    let edit = async || -> Result<u64, PublishError> {
        let (replaced, text) = redis.read().await?.unwrap_or_default();
        let overlays = overlay_text::read_from(&text)?;
        change(&overlays).map_err(|error| TextError::Unsuitable(error.to_string()))?;
        let text = overlay_text::replace_in(&text, &overlays)?;
        Ok(redis.publish_beside_errors(&text, replaced, 0).await?)
    };
    let mut attempt = 0;
    loop {
        attempt += 1;
        match edit().await {
            Err(PublishError::Registry(RegistryError::Conflict { .. })) if attempt < MAX_ATTEMPTS => {}
            edited => return edited.map_err(|error| error.to_string()),
        }
    }
}

impl Publisher {
    /// Takes one step towards the agreement of the suspensions and blocks alone. Returns whether
    /// there was one.
    pub(super) async fn step_overlays(
        &self,
        redis: &RedisRegistry,
        known: &KnownState,
        (replaced, text): (u64, &str),
        now: i64,
    ) -> Result<bool, PublishError> {
        let inner = &*self.0;
        let found = overlay_text::read_from(text)?;
        let documents = known.documents.iter();
        let of_kind = documents.filter(|((kind, _), _)| *kind == DocumentKind::Overlays);
        let known = KnownState {
            newest: known.newest.clone(),
            confirmed: known.confirmed,
            documents: of_kind.map(|(id, of)| (id.clone(), of.clone())).collect(),
        };
        let observed = ObservedRegistry {
            revision: i64::try_from(replaced).unwrap_or(i64::MAX),
            contents: contents(&found, now),
            follows_lost_change: false,
        };
        let confirmed = u64::try_from(known.confirmed).unwrap_or_default();
        let least = inner.overlays_agreed.load(Ordering::Relaxed).max(confirmed);
        let went_back = replaced < least;
        let published: Vec<_> = match compare_texts(&known, &observed) {
            Step::Import { documents, .. } if !went_back => {
                // SQL was read after Redis, so another node may have published its text meanwhile.
                let current = redis.read().await?;
                if current.is_none_or(|(revision, _)| revision != replaced) {
                    return Ok(true);
                }
                let documents = documents.into_iter().collect();
                self.import(&known, &found, (known.confirmed, now), documents, false)
                    .await?;
                return Ok(true);
            }
            Step::Confirm(documents) if !documents.is_empty() && !went_back => documents
                .into_iter()
                .map(|((kind, name), revision)| (kind, name, revision))
                .collect(),
            _ => {
                let mut documents = known.documents.values();
                let Some(newest) = documents.find(|of| of.is_pending() || went_back) else {
                    inner.overlays_agreed.store(replaced, Ordering::Relaxed);
                    return Ok(false);
                };
                let document = &newest.document;
                let overlays = overlay_text::parse(&document.body)?;
                let text = with_mark(&overlay_text::replace_in(text, &overlays)?, &known.newest);
                let revision = match redis.publish_beside_errors(&text, replaced, least).await {
                    // Another program has published.
                    Err(RegistryError::Conflict { .. }) => return Ok(true),
                    published => published?,
                };
                inner.overlays_agreed.store(revision, Ordering::Relaxed);
                vec![(document.kind, document.name.clone(), document.revision)]
            }
        };
        inner
            .store
            .confirm(&inner.namespace, known.confirmed, &published, now_micros())
            .await?;
        Ok(true)
    }
}
