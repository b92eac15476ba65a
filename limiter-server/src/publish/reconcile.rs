//! Compares the documents in SQL with the registry in force and decides the next step. Pure.
//!
//! | SQL | registry | step |
//! |---|---|---|
//! | documents | none | publish all |
//! | documents | older than the last confirmed one | publish all, raise an alert |
//! | documents | the last confirmed one | publish the pending documents |
//! | documents | later, with known texts | confirm them |
//! | documents | later, with unknown texts | import these, then publish the others |
//! | none | any | import |
//!
//! A text is known if it is that of the published revision or of a later one. The registry carries
//! a mark with the newest change of the database; a change that the database lacks shows that an
//! older copy of the database was restored. Tests: `reconcile/tests.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::store::{ChangeMark, DocumentKind, StoredDocument};

/// The identity of a document in a namespace.
pub type DocumentId = (DocumentKind, String);

/// A document in SQL.
#[derive(Clone, Debug)]
pub struct KnownDocument {
    /// The newest version.
    pub document: StoredDocument,
    /// The content in force and the contents saved since, by revision. `None` is a deletion.
    pub contents: BTreeMap<i64, Option<String>>,
}

impl KnownDocument {
    /// Returns whether the newest version is not in force.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.document.published < self.document.revision
    }
}

/// The registry in force.
#[derive(Clone, Debug, Default)]
pub struct ObservedRegistry {
    /// The revision.
    pub revision: i64,
    /// The contents of the documents.
    pub contents: BTreeMap<DocumentId, String>,
    /// True if the text was published after a change that the database lacks.
    pub follows_lost_change: bool,
}

/// The state of a namespace in SQL.
#[derive(Clone, Debug, Default)]
pub struct KnownState {
    /// The newest change in the database.
    pub newest: ChangeMark,
    /// The last confirmed revision of the registry; 0 for none.
    pub confirmed: i64,
    /// All documents, deleted ones included.
    pub documents: BTreeMap<DocumentId, KnownDocument>,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// SQL and the registry agree.
    Nothing,
    /// Publish all documents.
    PublishAll {
        /// True if the registry has lost data.
        went_back: bool,
    },
    /// Publish the pending documents.
    PublishPending,
    /// Another node, or this one before a crash, has published these revisions.
    Confirm(Vec<(DocumentId, i64)>),
    /// Another program has changed these documents.
    Import {
        /// The changed documents; an absent one in the registry was removed.
        documents: BTreeSet<DocumentId>,
        /// True if an older copy of the database was restored.
        restored: bool,
    },
}

/// Decides the next step.
#[must_use]
pub fn next_step(known: &KnownState, observed: Option<&ObservedRegistry>) -> Step {
    let has_pending = known.documents.values().any(KnownDocument::is_pending);
    let Some(observed) = observed else {
        return match known.documents.is_empty() {
            true => Step::Nothing,
            false => Step::PublishAll {
                went_back: known.confirmed > 0,
            },
        };
    };
    // An empty database has nothing to publish in place of an older registry.
    let is_earlier = observed.revision < known.confirmed && !observed.contents.is_empty();
    if known.documents.is_empty() && (observed.revision > known.confirmed || is_earlier) {
        return Step::Import {
            documents: observed.contents.keys().cloned().collect(),
            restored: observed.follows_lost_change,
        };
    }
    if observed.revision < known.confirmed {
        return Step::PublishAll { went_back: true };
    }
    if observed.revision == known.confirmed {
        return match has_pending {
            true => Step::PublishPending,
            false => Step::Nothing,
        };
    }
    compare_texts(known, observed)
}

/// Decides the step for a text that is later than the confirmed one.
pub(super) fn compare_texts(known: &KnownState, observed: &ObservedRegistry) -> Step {
    let mut imported = BTreeSet::new();
    let mut confirmed = Vec::new();
    let ids: BTreeSet<&DocumentId> = known.documents.keys().chain(observed.contents.keys()).collect();
    for id in ids {
        let found = observed.contents.get(id);
        let Some(document) = known.documents.get(id) else {
            imported.insert(id.clone());
            continue;
        };
        // A document that was never published is absent from the registry.
        let is_unpublished = document.document.published == 0 && found.is_none();
        let known_revision = document
            .contents
            .iter()
            .rev()
            .find(|(_, content)| content.as_ref() == found)
            .map(|(revision, _)| *revision);
        match known_revision {
            _ if is_unpublished => {}
            Some(revision) if revision > document.document.published => {
                confirmed.push((id.clone(), revision));
            }
            Some(_) => {}
            None => {
                imported.insert(id.clone());
            }
        }
    }
    let restored = observed.follows_lost_change;
    match imported.is_empty() && !restored {
        true => Step::Confirm(confirmed),
        false => Step::Import {
            documents: imported,
            restored,
        },
    }
}

#[cfg(test)]
mod tests;
