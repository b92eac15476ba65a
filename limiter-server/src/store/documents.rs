//! Reads the current versions of documents.
//!
//! Lists are in the order of the names. A deleted document has a row too, which lists of policies
//! leave out. Tests: `tests/support/store_suite.rs`.

use crate::store::document::{DocumentKind, DocumentState, StoredDocument, read_apps};
use crate::store::sql::{SqlRow, binds};
use crate::store::{Store, StoreError};

pub(super) const COLUMNS: &str = "namespace, kind, name, revision, published, state, deleted, managed_by, apps, body, \
     note, created_by, created_at, updated_by, updated_at";

impl StoredDocument {
    pub(super) fn read(row: &SqlRow) -> Result<Self, StoreError> {
        Ok(Self {
            namespace: row.text(0)?,
            kind: DocumentKind::parse(&row.text(1)?),
            name: row.text(2)?,
            revision: row.int(3)?,
            published: row.int(4)?,
            state: DocumentState::parse(&row.text(5)?),
            is_deleted: row.flag(6)?,
            managed_by: row.text(7)?,
            apps: read_apps(row.optional_text(8)?.as_deref()),
            body: row.text(9)?,
            note: row.optional_text(10)?,
            created_by: row.text(11)?,
            created_at: row.int(12)?,
            updated_by: row.text(13)?,
            updated_at: row.int(14)?,
        })
    }
}

impl Store {
    /// Returns the documents of a namespace in the order of their names, deleted ones included.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn documents(&self, namespace: &str) -> Result<Vec<StoredDocument>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM document WHERE namespace = ? ORDER BY kind, name");
        let rows = self.pool.rows(&sql, binds![namespace]).await?;
        rows.iter().map(StoredDocument::read).collect()
    }

    /// At most `limit` policies of a namespace with names after `after`, in the order of their
    /// names, without deleted ones.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn policies(
        &self,
        namespace: &str,
        after: &str,
        limit: i64,
    ) -> Result<Vec<StoredDocument>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM document WHERE namespace = ? AND kind = 'policy' AND deleted = 0 AND name > ? \
             ORDER BY name LIMIT ?"
        );
        let binds = binds![namespace, after, limit];
        let rows = self.pool.rows(&sql, binds).await?;
        rows.iter().map(StoredDocument::read).collect()
    }

    /// Returns the current version of a document.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn document(
        &self,
        namespace: &str,
        kind: DocumentKind,
        name: &str,
    ) -> Result<Option<StoredDocument>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM document WHERE namespace = ? AND kind = ? AND name = ?");
        let row = self.pool.row(&sql, binds![namespace, kind.name(), name]);
        row.await?.as_ref().map(StoredDocument::read).transpose()
    }
}
