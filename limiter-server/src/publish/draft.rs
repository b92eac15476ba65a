//! The registry that a pass publishes, with the documents that it contains.
//!
//! A newer version of the server can have saved a text that this version cannot read, and rules can
//! name a policy that is kept back. Such a document keeps its version in force, and the others,
//! such as suspensions, are published. Tests: `tests/publish.rs`, `tests/control_plane/guard.rs`.

use limiter_core::registry::PolicyRegistry;

use crate::policy_text::TextError;
use crate::publish::error::PublishError;
use crate::publish::reconcile::KnownDocument;
use crate::publish::registry_text::put;
use crate::store::{DocumentKind, StoredDocument};

/// A registry that is filled with documents.
#[derive(Debug)]
pub(super) struct Draft {
    registry: PolicyRegistry,
    /// The documents whose newest version is in the registry, with its revision.
    confirmed: Vec<(DocumentKind, String, i64)>,
    /// The reasons for documents whose newest version is not in the registry.
    kept_back: Vec<String>,
    /// True if a document in force is in the registry in no version.
    has_lost: bool,
}

impl Draft {
    /// Creates a draft on top of a registry.
    pub(super) fn new(registry: PolicyRegistry) -> Self {
        Self {
            registry,
            confirmed: Vec::new(),
            kept_back: Vec::new(),
            has_lost: false,
        }
    }

    /// Adds documents: policies before the rules that name them.
    pub(super) fn add<'a>(&mut self, documents: impl IntoIterator<Item = &'a KnownDocument>) {
        for known in documents {
            let document = &known.document;
            match self.put(document) {
                Ok(()) => {
                    let name = document.name.clone();
                    self.confirmed.push((document.kind, name, document.revision));
                }
                Err(error) => {
                    self.kept_back
                        .push(format!("{} is not published: {error}", title(document)));
                    self.keep_version_in_force(known);
                }
            }
        }
    }

    /// Adds the reason for documents that the caller keeps back.
    pub(super) fn keep_back(&mut self, reason: &str) {
        if !reason.is_empty() {
            self.kept_back.push(reason.to_owned());
        }
    }

    /// Returns the text of the registry.
    pub(super) fn text(&self) -> String {
        self.registry.to_toml()
    }

    /// Returns the documents whose newest version is in the registry, with its revision.
    pub(super) fn confirmed(&self) -> &[(DocumentKind, String, i64)] {
        &self.confirmed
    }

    /// Returns whether a document in force is in the registry in no version. The registry would
    /// take it away from processes that still apply it.
    pub(super) fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// Fails if the newest version of a document is not in the registry.
    pub(super) fn complete(&self) -> Result<(), PublishError> {
        match self.kept_back.is_empty() {
            true => Ok(()),
            false => Err(PublishError::Unreadable(self.kept_back.join("; "))),
        }
    }

    fn put(&self, document: &StoredDocument) -> Result<(), TextError> {
        let before = self.registry.rules();
        put(document, &self.registry)?;
        if document.kind != DocumentKind::Rules {
            return Ok(());
        }
        let checked = PolicyRegistry::from_toml(&self.text());
        checked.map(|_| ()).map_err(|error| {
            // The rules were valid before.
            let _ = self.registry.set_rules(before.iter().cloned());
            TextError::Registry(error)
        })
    }

    /// Puts the version in force of a document into a registry without the document.
    fn keep_version_in_force(&mut self, known: &KnownDocument) {
        let document = &known.document;
        let is_present = match document.kind {
            DocumentKind::Policy => self.registry.get(&document.name).is_some(),
            DocumentKind::Rules => !self.registry.rules().is_empty(),
            DocumentKind::Overlays => crate::overlay_text::is_in(&self.registry),
        };
        if is_present || document.published == 0 {
            return;
        }
        let in_force = known.contents.get(&document.published).cloned().flatten();
        let put = in_force.map(|body| {
            self.put(&StoredDocument {
                body,
                ..document.clone()
            })
        });
        self.has_lost |= !matches!(put, Some(Ok(())));
    }
}

/// Returns the document in words.
pub(super) fn title(document: &StoredDocument) -> String {
    match document.kind {
        DocumentKind::Policy => format!("policy `{}`", document.name),
        DocumentKind::Rules => "the text of the rules".to_owned(),
        DocumentKind::Overlays => "the text of the suspensions and blocks".to_owned(),
    }
}
