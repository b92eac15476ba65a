//! The import of changes that another program has published.

use limiter_core::registry::PolicyRegistry;

use crate::publish::Publisher;
use crate::publish::error::PublishError;
use crate::publish::reconcile::{DocumentId, KnownState};
use crate::publish::registry_text::imported;
use crate::store::{Author, Origin, OutsideChange};

/// The author of changes that another program has published.
const OUTSIDE: &str = "outside";

impl Publisher {
    pub(super) async fn import(
        &self,
        known: &KnownState,
        found: &PolicyRegistry,
        (revision, at): (i64, i64),
        documents: Vec<DocumentId>,
        restored: bool,
    ) -> Result<(), PublishError> {
        let inner = &*self.0;
        let author = Author {
            name: OUTSIDE.to_owned(),
            origin: Origin::Outside,
            reason: None,
            at,
        };
        let texts = documents.iter().filter_map(|id| imported(id, known, found, at));
        let change = OutsideChange {
            expected: known.confirmed,
            registry_revision: revision,
            documents: texts.collect(),
            restored: restored.then(|| documents.iter().map(|(_, name)| name.clone()).collect()),
        };
        // Another node may have imported the change meanwhile.
        inner.store.import(&inner.namespace, &change, &author).await?;
        Ok(())
    }
}
