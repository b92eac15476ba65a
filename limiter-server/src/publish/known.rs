//! The state of a namespace in SQL, as a step compares it with the registry.

use std::collections::BTreeMap;

use crate::publish::Publisher;
use crate::publish::error::PublishError;
use crate::publish::reconcile::{DocumentId, KnownDocument, KnownState};
use crate::publish::registry_text::known_contents;

impl Publisher {
    /// Reads the documents, with the contents that they have at a time: an ended policy has none.
    pub(super) async fn known_state(&self, now: i64) -> Result<KnownState, PublishError> {
        let inner = &*self.0;
        let publication = inner.store.publication(&inner.namespace).await?;
        let newest = inner.store.newest_mark().await?;
        let documents = inner.store.documents(&inner.namespace).await?;
        let mut texts: BTreeMap<DocumentId, BTreeMap<i64, String>> = BTreeMap::new();
        if documents.iter().any(|of| of.published < of.revision) {
            for pending in inner.store.pending(&inner.namespace).await? {
                texts.insert((pending.document.kind, pending.document.name), pending.texts);
            }
        }
        let documents = documents.into_iter().map(|document| {
            let id = (document.kind, document.name.clone());
            let contents = known_contents(&document, texts.remove(&id), now);
            (id, KnownDocument { document, contents })
        });
        Ok(KnownState {
            newest,
            confirmed: publication.registry_revision,
            documents: documents.collect(),
        })
    }
}
