//! The revisions of a document, as both histories read them.

use serde::Deserialize;
use utoipa::IntoParams;

use crate::admin::api::paging::page;
use crate::store::{DocumentKind, Store, StoreError, StoredRevision};

/// Selects revisions of one document.
#[derive(Debug, Deserialize, IntoParams)]
pub(super) struct RevisionListQuery {
    /// The last number of the previous page.
    before: Option<i64>,
    /// The largest number of revisions. Default 100, at most 1,000.
    limit: Option<i64>,
    /// A time in microseconds since the Unix epoch: only the revision that was saved last until
    /// then, without those that another program replaced before their publication.
    at: Option<i64>,
}

/// Revisions, the newest first.
#[derive(Debug)]
pub(super) struct RevisionPage {
    pub(super) revisions: Vec<StoredRevision>,
    /// The number from which the next page continues.
    pub(super) next: Option<i64>,
}

impl RevisionListQuery {
    /// Reads the revisions of a document.
    pub(super) async fn read(
        &self,
        store: &Store,
        namespace: &str,
        (kind, name): (DocumentKind, &str),
    ) -> Result<RevisionPage, StoreError> {
        if let Some(at) = self.at {
            let found = store.revision_at(namespace, (kind, name), at).await?;
            return Ok(RevisionPage {
                revisions: Vec::from_iter(found),
                next: None,
            });
        }
        let before = self.before.unwrap_or(i64::MAX);
        let limit = page(self.limit);
        let revisions = store.history(namespace, kind, name, before, limit).await?;
        let is_full = i64::try_from(revisions.len()).is_ok_and(|count| count == limit);
        let next = revisions.last().filter(|_| is_full).map(|last| last.number);
        Ok(RevisionPage { revisions, next })
    }
}
