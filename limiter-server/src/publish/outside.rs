//! The import of changes that another program has published.

use limiter_core::registry::PolicyRegistry;

use crate::publish::Publisher;
use crate::publish::error::PublishError;
use crate::publish::reconcile::{DocumentId, KnownState};
use crate::publish::registry_text::imported;
use crate::store::{Author, Origin, now_micros};

/// The author of changes that another program has published.
const OUTSIDE: &str = "outside";

impl Publisher {
    pub(super) async fn import(
        &self,
        known: &KnownState,
        found: &PolicyRegistry,
        revision: i64,
        documents: Vec<DocumentId>,
        restored: bool,
    ) -> Result<(), PublishError> {
        let inner = &*self.0;
        let at = now_micros();
        let author = Author {
            name: OUTSIDE.to_owned(),
            origin: Origin::Outside,
            reason: None,
            at,
        };
        let texts = documents.iter().filter_map(|id| imported(id, known, found, at));
        let texts: Vec<_> = texts.collect();
        let namespace = &inner.namespace;
        let store = &inner.store;
        let done = store
            .import(namespace, known.confirmed, revision, &texts, &author)
            .await?;
        if done && restored {
            store.distrust_credentials(at).await?;
            for (_, name) in &documents {
                let detail = format!("an older copy of the database was restored: policy `{name}` differs");
                store
                    .raise_alert(namespace, "database_restored", &detail, at)
                    .await?;
            }
            let detail =
                "an older copy of the database was restored: sessions ended, tokens wait for confirmation";
            store
                .raise_alert(namespace, "database_restored", detail, at)
                .await?;
        }
        Ok(())
    }
}
