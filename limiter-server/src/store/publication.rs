//! The state of the publication to the registry in force: the outbox, confirmations, and imports of
//! changes from outside.
//!
//! A save adds an outbox row, and the publisher confirms documents by the number of their revision
//! in force. An import saves the documents of another program as published revisions; a saved
//! version that is not in force becomes a conflict.
//!
//! Invariants: a confirmed revision of the registry never decreases, and of the nodes that import
//! one change, one succeeds. Tests: `confirmation_clears_the_outbox` and
//! `import_puts_pending_edit_into_conflict` in `tests/support/store_suite.rs`, and
//! `tests/publish.rs`.

use std::collections::BTreeMap;

use crate::store::document::{DocumentState, write_apps};
use crate::store::save::{insert_revision, lock};
use crate::store::sql::{SqlTransaction, binds};
use crate::store::{
    Author, DocumentKind, SaveRequest, Store, StoreError, StoredDocument, alerts, audit, restoration,
};

/// The position of the publication of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Publication {
    /// The newest revision of the registry that contains the published documents; 0 for none.
    pub registry_revision: i64,
    /// The time of the confirmation.
    pub confirmed_at: i64,
    /// The number of saved versions that are not in force.
    pub pending: i64,
    /// The time of the oldest of them.
    pub oldest_pending: Option<i64>,
}

/// A document whose newest revision is not in force, with the revisions since the one in force.
#[derive(Clone, Debug)]
pub struct PendingDocument {
    /// The newest version.
    pub document: StoredDocument,
    /// The text of the version in force and of those after it, by number.
    pub texts: BTreeMap<i64, String>,
}

/// A document as another program has published it.
#[derive(Clone, Debug)]
pub struct ImportedDocument {
    /// The kind.
    pub kind: DocumentKind,
    /// The name.
    pub name: String,
    /// The text.
    pub body: String,
    /// True if the document was removed.
    pub is_deletion: bool,
    /// The apps; `None` for all.
    pub apps: Option<Vec<String>>,
    /// The note of the policy.
    pub note: Option<String>,
    /// The change in words, for the history.
    pub summary: Option<String>,
}

/// A publication by another program.
#[derive(Clone, Debug)]
pub struct OutsideChange {
    /// The last confirmed revision of the registry that the caller read.
    pub expected: i64,
    /// The published revision of the registry.
    pub registry_revision: i64,
    /// The changed documents.
    pub documents: Vec<ImportedDocument>,
    /// The names of the documents that differ, if an older copy of the database was restored.
    pub restored: Option<Vec<String>>,
}

impl Store {
    /// Returns the position of the publication of a namespace.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn publication(&self, namespace: &str) -> Result<Publication, StoreError> {
        let sql = "SELECT registry_revision, confirmed_at FROM publication WHERE namespace = ?";
        let row = self.pool.row(sql, binds![namespace]).await?;
        let mut publication = Publication::default();
        if let Some(row) = row {
            publication.registry_revision = row.int(0)?;
            publication.confirmed_at = row.int(1)?;
        }
        let sql = "SELECT COUNT(*), MIN(created_at) FROM outbox WHERE namespace = ?";
        if let Some(row) = self.pool.row(sql, binds![namespace]).await? {
            publication.pending = row.int(0)?;
            publication.oldest_pending = row.optional_int(1)?;
        }
        Ok(publication)
    }

    /// Returns the documents whose newest revision is not in force and not in conflict.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn pending(&self, namespace: &str) -> Result<Vec<PendingDocument>, StoreError> {
        let documents = self.documents(namespace).await?;
        let sql = "SELECT r.kind, r.name, r.number, r.body FROM revision r JOIN document d \
                   ON r.namespace = d.namespace AND r.kind = d.kind AND r.name = d.name \
                   WHERE d.namespace = ? AND d.published < d.revision AND r.number >= d.published";
        let mut texts: BTreeMap<(DocumentKind, String), BTreeMap<i64, String>> = BTreeMap::new();
        for row in self.pool.rows(sql, binds![namespace]).await? {
            let id = (DocumentKind::parse(&row.text(0)?), row.text(1)?);
            texts.entry(id).or_default().insert(row.int(2)?, row.text(3)?);
        }
        let pending = documents
            .into_iter()
            .filter(|document| document.published < document.revision);
        Ok(pending
            .map(|document| {
                let id = (document.kind, document.name.clone());
                let texts = texts.remove(&id).unwrap_or_default();
                PendingDocument { document, texts }
            })
            .collect())
    }

    /// Records that the registry has these revisions of documents in force since its revision
    /// `registry_revision`. A lower revision of the registry does not replace the confirmed one.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn confirm(
        &self,
        namespace: &str,
        registry_revision: i64,
        documents: &[(DocumentKind, String, i64)],
        at: i64,
    ) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        // As a save, the lock before those of documents.
        alerts::lock(&mut transaction).await?;
        set_revision(&mut transaction, namespace, registry_revision, at).await?;
        for (kind, name, number) in documents {
            confirm_document(&mut transaction, namespace, (*kind, name), *number).await?;
        }
        transaction.commit().await
    }

    /// Imports documents that another program has published. A saved version of the same document
    /// that is not in force becomes a conflict. After the restoration of an older copy, the same
    /// transaction ends all sessions and suspends the tokens of the namespace. Returns false if
    /// another node has imported meanwhile.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn import(
        &self,
        namespace: &str,
        change: &OutsideChange,
        author: &Author,
    ) -> Result<bool, StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        // As a save, the lock before those of documents.
        alerts::lock(&mut transaction).await?;
        let sql = format!(
            "SELECT registry_revision FROM publication WHERE namespace = ?{}",
            transaction.dialect().for_update()
        );
        let row = transaction.row(&sql, binds![namespace]).await?;
        if row.map_or(Ok(0), |row| row.int(0))? != change.expected {
            return Ok(false);
        }
        match set_revision(&mut transaction, namespace, change.registry_revision, author.at).await {
            Err(error) if error.is_duplicate() => return Ok(false),
            result => result?,
        }
        let is_confirmed = change.registry_revision <= change.expected;
        for document in &change.documents {
            // Without a later revision of the registry, another node may have imported it.
            if is_confirmed && is_in_force(&mut transaction, namespace, document).await? {
                continue;
            }
            import_document(&mut transaction, namespace, document, author).await?;
        }
        if let Some(differing) = &change.restored {
            restoration::record(&mut transaction, namespace, differing, author.at).await?;
        }
        transaction.commit().await?;
        Ok(true)
    }
}

async fn set_revision(
    transaction: &mut SqlTransaction,
    namespace: &str,
    registry_revision: i64,
    at: i64,
) -> Result<(), StoreError> {
    let sql = "UPDATE publication SET registry_revision = ?, confirmed_at = ? \
               WHERE namespace = ? AND registry_revision <= ?";
    let binds = binds![registry_revision, at, namespace, registry_revision];
    if transaction.execute(sql, binds).await? > 0 {
        return Ok(());
    }
    let sql = "SELECT namespace FROM publication WHERE namespace = ?";
    if transaction.row(sql, binds![namespace]).await?.is_some() {
        // Another node has confirmed a later one.
        return Ok(());
    }
    let sql = "INSERT INTO publication (namespace, registry_revision, confirmed_at) VALUES (?, ?, ?)";
    let binds = binds![namespace, registry_revision, at];
    transaction.execute(sql, binds).await.map(|_| ())
}

async fn confirm_document(
    transaction: &mut SqlTransaction,
    namespace: &str,
    (kind, name): (DocumentKind, &str),
    number: i64,
) -> Result<(), StoreError> {
    let kind = kind.name();
    let sql = "UPDATE document SET published = ? \
               WHERE namespace = ? AND kind = ? AND name = ? AND published < ?";
    transaction
        .execute(sql, binds![number, namespace, kind, name, number])
        .await?;
    // The state of a conflict lasts until its author saves again.
    let sql = "UPDATE document SET state = 'published' \
               WHERE namespace = ? AND kind = ? AND name = ? AND published = revision AND state = 'pending'";
    transaction.execute(sql, binds![namespace, kind, name]).await?;
    let sql = "UPDATE revision SET state = 'published' WHERE namespace = ? AND kind = ? AND name = ? \
               AND number <= ? AND state = 'pending'";
    transaction
        .execute(sql, binds![namespace, kind, name, number])
        .await?;
    let sql = "DELETE FROM outbox WHERE namespace = ? AND kind = ? AND name = ? AND revision <= ?";
    transaction
        .execute(sql, binds![namespace, kind, name, number])
        .await?;
    Ok(())
}

/// Returns whether the version in force of a document has this text.
async fn is_in_force(
    transaction: &mut SqlTransaction,
    namespace: &str,
    imported: &ImportedDocument,
) -> Result<bool, StoreError> {
    let sql = "SELECT r.body FROM revision r JOIN document d \
               ON r.namespace = d.namespace AND r.kind = d.kind AND r.name = d.name AND r.number = d.published \
               WHERE d.namespace = ? AND d.kind = ? AND d.name = ?";
    let binds = binds![namespace, imported.kind.name(), &imported.name];
    let row = transaction.row(sql, binds).await?;
    row.map_or(Ok(false), |row| Ok(row.text(0)? == imported.body))
}

async fn import_document(
    transaction: &mut SqlTransaction,
    namespace: &str,
    imported: &ImportedDocument,
    author: &Author,
) -> Result<(), StoreError> {
    let current = lock(transaction, namespace, imported.kind, &imported.name).await?;
    let (kind, name) = (imported.kind.name(), &imported.name);
    let number = current.as_ref().map_or(1, |current| current.revision + 1);
    let has_conflict = current
        .as_ref()
        .is_some_and(|current| current.published < current.revision);
    let state = match has_conflict {
        true => DocumentState::Conflict,
        false => DocumentState::Published,
    };
    if has_conflict {
        let sql = "UPDATE revision SET state = 'conflict' \
                   WHERE namespace = ? AND kind = ? AND name = ? AND state = 'pending'";
        transaction.execute(sql, binds![namespace, kind, name]).await?;
        let sql = "DELETE FROM outbox WHERE namespace = ? AND kind = ? AND name = ?";
        transaction.execute(sql, binds![namespace, kind, name]).await?;
    }
    let apps = write_apps(imported.apps.as_deref());
    match &current {
        None => {
            let sql = "INSERT INTO document (namespace, kind, name, revision, published, state, deleted, managed_by, \
                       apps, body, note, created_by, created_at, updated_by, updated_at) \
                       VALUES (?, ?, ?, ?, ?, ?, ?, 'ui', ?, ?, ?, ?, ?, ?, ?)";
            let binds = binds![
                namespace,
                kind,
                name,
                number,
                number,
                state.name(),
                imported.is_deletion,
                apps.clone(),
                &imported.body,
                imported.note.clone(),
                &author.name,
                author.at,
                &author.name,
                author.at,
            ];
            transaction.execute(sql, binds).await?;
        }
        Some(current) => {
            // As by a save, a policy with the name of a deleted one has an author, a creation and
            // an owner of its own.
            let is_deleted = current.is_deleted && current.published == current.revision;
            let (created_by, created_at, managed_by) = match is_deleted && !imported.is_deletion {
                true => (&author.name, author.at, "ui"),
                false => (
                    &current.created_by,
                    current.created_at,
                    current.managed_by.as_str(),
                ),
            };
            let sql = "UPDATE document SET revision = ?, published = ?, state = ?, deleted = ?, managed_by = ?, \
                       apps = ?, body = ?, note = ?, created_by = ?, created_at = ?, updated_by = ?, updated_at = ? \
                       WHERE namespace = ? AND kind = ? AND name = ?";
            let binds = binds![
                number,
                number,
                state.name(),
                imported.is_deletion,
                managed_by,
                apps.clone(),
                &imported.body,
                imported.note.clone(),
                created_by,
                created_at,
                &author.name,
                author.at,
                namespace,
                kind,
                name,
            ];
            transaction.execute(sql, binds).await?;
        }
    }
    let request = SaveRequest {
        namespace: namespace.to_owned(),
        kind: imported.kind,
        name: imported.name.clone(),
        expected: number - 1,
        body: imported.body.clone(),
        is_deletion: imported.is_deletion,
        apps: imported.apps.clone(),
        note: imported.note.clone(),
        managed_by: "ui".to_owned(),
    };
    let author = Author {
        reason: imported.summary.clone().or_else(|| author.reason.clone()),
        ..author.clone()
    };
    insert_revision(transaction, &request, &author, number, DocumentState::Published).await?;
    let conflict = match has_conflict {
        true => "; an edit that was not in force is in conflict",
        false => "",
    };
    let summary = author.reason.as_ref().map(|reason| format!(": {reason}"));
    let entry = audit::NewEntry {
        namespace,
        actor: &author.name,
        action: &format!("{kind}.import"),
        object: name,
        apps,
        detail: Some(format!(
            "revision {number}{conflict}{}",
            summary.unwrap_or_default()
        )),
        at: author.at,
    };
    audit::insert(transaction, entry).await?;
    let Some(current) = current.filter(|_| has_conflict) else {
        return Ok(());
    };
    let entry = audit::NewEntry {
        namespace,
        actor: &current.updated_by,
        action: &format!("{kind}.conflict"),
        object: name,
        apps: write_apps(imported.apps.as_deref()),
        detail: Some(format!(
            "revision {} is not in force, because {} changed it outside: save it again",
            current.revision, author.name
        )),
        at: author.at,
    };
    audit::insert(transaction, entry).await
}
