//! Earlier versions of documents. Tests: `tests/support/store_suite/revisions.rs`.

use crate::policy_text::PolicyText;
use crate::store::sql::{SqlRow, binds};
use crate::store::{DocumentKind, DocumentState, Store, StoreError, StoredDocument};

/// A version of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRevision {
    /// The name of the document.
    pub name: String,
    /// The number, from 1.
    pub number: i64,
    /// True if the version is a deletion.
    pub is_deletion: bool,
    /// The state of the publication of the version.
    pub state: DocumentState,
    /// The name of the program through which the version was saved.
    pub origin: String,
    /// The author.
    pub author: String,
    /// The reason that the author gave.
    pub reason: Option<String>,
    /// The text.
    pub body: String,
    /// The time of the save.
    pub created_at: i64,
}

const COLUMNS: &str = "name, number, deleted, state, origin, author, reason, body, created_at";

impl StoredRevision {
    fn read(row: &SqlRow) -> Result<Self, StoreError> {
        Ok(Self {
            name: row.text(0)?,
            number: row.int(1)?,
            is_deletion: row.flag(2)?,
            state: DocumentState::parse(&row.text(3)?),
            origin: row.text(4)?,
            author: row.text(5)?,
            reason: row.optional_text(6)?,
            body: row.text(7)?,
            created_at: row.int(8)?,
        })
    }
}

impl StoredRevision {
    /// Returns the apps of a version of a policy, `None` inside for all; `None` for a text that
    /// this program cannot read.
    #[must_use]
    pub fn apps(&self) -> Option<Option<Vec<String>>> {
        let text = PolicyText::parse_stored(&self.name, &self.body).ok()?;
        Some(text.apps())
    }
}

impl Store {
    /// At most `limit` versions of a document before number `before`, the newest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn history(
        &self,
        namespace: &str,
        kind: DocumentKind,
        name: &str,
        before: i64,
        limit: i64,
    ) -> Result<Vec<StoredRevision>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM revision WHERE namespace = ? AND kind = ? AND name = ? AND number < ? \
             ORDER BY number DESC LIMIT ?"
        );
        let binds = binds![namespace, kind.name(), name, before, limit];
        let rows = self.pool.rows(&sql, binds).await?;
        rows.iter().map(StoredRevision::read).collect()
    }

    /// Returns the version of a document that was saved last until a time, without versions that
    /// another program replaced before their publication.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn revision_at(
        &self,
        namespace: &str,
        (kind, name): (DocumentKind, &str),
        at: i64,
    ) -> Result<Option<StoredRevision>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM revision WHERE namespace = ? AND kind = ? AND name = ? \
             AND created_at <= ? AND state <> ? ORDER BY number DESC LIMIT 1"
        );
        let conflict = DocumentState::Conflict.name();
        let row = self
            .pool
            .row(&sql, binds![namespace, kind.name(), name, at, conflict]);
        row.await?.as_ref().map(StoredRevision::read).transpose()
    }

    /// Returns one version of a document.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn revision(
        &self,
        namespace: &str,
        kind: DocumentKind,
        name: &str,
        number: i64,
    ) -> Result<Option<StoredRevision>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM revision WHERE namespace = ? AND kind = ? AND name = ? AND number = ?"
        );
        let row = self.pool.row(&sql, binds![namespace, kind.name(), name, number]);
        row.await?.as_ref().map(StoredRevision::read).transpose()
    }

    /// Returns the time of the last deletion before the current version of a document; `None` if
    /// its name was not used before.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn last_deletion(&self, document: &StoredDocument) -> Result<Option<i64>, StoreError> {
        let sql = "SELECT MAX(created_at) FROM revision WHERE namespace = ? AND kind = ? AND name = ? \
                   AND number < ? AND deleted = 1 AND state <> ?";
        let (kind, conflict) = (document.kind.name(), DocumentState::Conflict.name());
        let (namespace, name) = (&document.namespace, &document.name);
        let row = self
            .pool
            .row(sql, binds![namespace, kind, name, document.revision, conflict]);
        row.await?.map_or(Ok(None), |row| row.optional_int(0))
    }
}
