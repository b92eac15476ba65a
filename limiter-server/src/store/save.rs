//! Saves documents: one transaction for the documents, their revisions, the audit and the outbox.
//!
//! The revision that the author read is compared under a lock of the row, so two concurrent saves
//! cannot both succeed. A check of the whole namespace runs in the transaction, and transactions
//! with such a check exclude each other, so two saves that do not fit together cannot both succeed.
//! So do all transactions that change several documents, since each locks them in its own order.
//! Tests: `concurrent_saves_lose_no_update`,
//! `stale_save_conflicts_with_both_versions` and `documents_are_saved_together_or_not_at_all` in
//! `tests/support/store_suite.rs`.

use crate::store::document::write_apps;
use crate::store::documents::COLUMNS;
use crate::store::sql::{SqlTransaction, binds};
use crate::store::{Author, DocumentKind, DocumentState, Store, StoreError, StoredDocument, alerts, audit};

/// A new version of a document.
#[derive(Clone, Debug)]
pub struct SaveRequest {
    /// The namespace.
    pub namespace: String,
    /// The kind.
    pub kind: DocumentKind,
    /// The name of the policy.
    pub name: String,
    /// The revision that the author read; 0 for a new document. A deleted document may be replaced
    /// by 0 too.
    pub expected: i64,
    /// The text.
    pub body: String,
    /// True if the text is the tombstone of a deletion.
    pub is_deletion: bool,
    /// The apps; `None` for all.
    pub apps: Option<Vec<String>>,
    /// The note of the policy.
    pub note: Option<String>,
    /// The owner of the text.
    pub managed_by: String,
}

/// The authors and times of a document that another program has stored until now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorship {
    /// The author of the document.
    pub created_by: String,
    /// The time of its creation in microseconds.
    pub created_at: i64,
    /// The author of the last change.
    pub updated_by: String,
    /// The time of the last change in microseconds.
    pub updated_at: i64,
}

/// A saved version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedDocument {
    /// The number of the new revision.
    pub revision: i64,
}

/// A check of the documents of a namespace before a save, under the lock of the save.
pub(crate) type NamespaceCheck<'a> = &'a (dyn Fn(&[StoredDocument]) -> Result<(), String> + Send + Sync);

/// The version of several that could not be saved. None of them is saved.
#[derive(Debug)]
pub struct SaveFailure {
    /// The name of the document.
    pub name: String,
    /// The reason.
    pub error: StoreError,
}

impl Store {
    /// Saves a new version of a document.
    ///
    /// # Errors
    ///
    /// [`StoreError::Conflict`] with the current version when it is not the expected one.
    pub async fn save(&self, request: &SaveRequest, author: &Author) -> Result<SavedDocument, StoreError> {
        let saved = self.save_all(std::slice::from_ref(request), author).await;
        let saved = saved.map_err(|failures| failures.into_iter().next());
        match saved {
            Ok(saved) => saved.into_iter().next().ok_or(StoreError::NotFound),
            Err(failure) => Err(failure.map_or(StoreError::NotFound, |failure| failure.error)),
        }
    }

    /// Saves new versions of documents in one transaction: all of them or none.
    ///
    /// # Errors
    ///
    /// A [`StoreError::Conflict`] for each document whose current version is not the expected one;
    /// one failure when the database fails.
    pub async fn save_all(
        &self,
        requests: &[SaveRequest],
        author: &Author,
    ) -> Result<Vec<SavedDocument>, Vec<SaveFailure>> {
        let documents: Vec<_> = requests.iter().map(|of| (of, None)).collect();
        self.save_documents(&documents, author, None).await
    }

    /// As [`save_all`](Self::save_all), if the documents of the namespace pass a check.
    ///
    /// # Errors
    ///
    /// Those of [`save_all`](Self::save_all), and [`StoreError::Inconsistent`] with the reason.
    pub(crate) async fn save_checked(
        &self,
        requests: &[SaveRequest],
        author: &Author,
        check: NamespaceCheck<'_>,
    ) -> Result<Vec<SavedDocument>, Vec<SaveFailure>> {
        let documents: Vec<_> = requests.iter().map(|of| (of, None)).collect();
        self.save_documents(&documents, author, Some(check)).await
    }

    /// Saves documents of another program with their authors and times, as
    /// [`save_all`](Self::save_all). The audit names `author`.
    ///
    /// # Errors
    ///
    /// Those of [`save_all`](Self::save_all).
    pub async fn save_existing(
        &self,
        documents: &[(SaveRequest, Authorship)],
        author: &Author,
    ) -> Result<Vec<SavedDocument>, Vec<SaveFailure>> {
        let documents: Vec<_> = documents.iter().map(|(of, by)| (of, Some(by))).collect();
        self.save_documents(&documents, author, None).await
    }

    async fn save_documents(
        &self,
        documents: &[(&SaveRequest, Option<&Authorship>)],
        author: &Author,
        check: Option<NamespaceCheck<'_>>,
    ) -> Result<Vec<SavedDocument>, Vec<SaveFailure>> {
        let fail = |error: StoreError| {
            let name = documents
                .first()
                .map(|(of, _)| of.name.clone())
                .unwrap_or_default();
            vec![SaveFailure { name, error }]
        };
        self.require_writable().map_err(fail)?;
        let mut transaction = self.pool.begin().await.map_err(fail)?;
        let namespace = documents.first().map_or("", |(of, _)| of.namespace.as_str());
        let before = match check {
            Some(_) => lock_namespace(&mut transaction, namespace).await.map_err(fail)?,
            None if documents.len() > 1 => {
                alerts::lock(&mut transaction).await.map_err(fail)?;
                Vec::new()
            }
            None => Vec::new(),
        };
        let (mut saved, mut conflicts) = (Vec::with_capacity(documents.len()), Vec::new());
        for (request, authorship) in documents {
            let name = request.name.clone();
            let mut result = save_in(&mut transaction, request, author).await;
            if let (Ok(document), Some(authorship)) = (&result, authorship) {
                let set = set_authorship(&mut transaction, request, document.revision, authorship).await;
                result = set.and(result);
            }
            match result {
                Ok(document) => saved.push(document),
                Err(error @ StoreError::Conflict { .. }) => conflicts.push(SaveFailure { name, error }),
                // Another transaction inserted the document after the select.
                Err(error) if error.is_duplicate() => {
                    drop(transaction);
                    let current = self.document(&request.namespace, request.kind, &name).await;
                    let error = current.map_or_else(
                        |error| error,
                        |current| StoreError::Conflict {
                            expected: request.expected,
                            current: current.map(Box::new),
                        },
                    );
                    conflicts.push(SaveFailure { name, error });
                    return Err(conflicts);
                }
                Err(error) => return Err(vec![SaveFailure { name, error }]),
            }
        }
        if !conflicts.is_empty() {
            return Err(conflicts);
        }
        if let Some(check) = check {
            check(&before).map_err(|reason| {
                vec![SaveFailure {
                    name: namespace.to_owned(),
                    error: StoreError::Inconsistent(reason),
                }]
            })?;
        }
        transaction.commit().await.map_err(fail)?;
        Ok(saved)
    }
}

pub(super) async fn save_in(
    transaction: &mut SqlTransaction,
    request: &SaveRequest,
    author: &Author,
) -> Result<SavedDocument, StoreError> {
    let current = lock(transaction, &request.namespace, request.kind, &request.name).await?;
    let is_new = |current: &StoredDocument| current.is_deleted && request.expected == 0;
    let revision = match &current {
        None if request.expected == 0 => 0,
        Some(current) if current.revision == request.expected || is_new(current) => current.revision,
        _ => {
            return Err(StoreError::Conflict {
                expected: request.expected,
                current: current.map(Box::new),
            });
        }
    };
    let number = revision + 1;
    let apps = write_apps(request.apps.as_deref());
    match &current {
        None => {
            let sql = "INSERT INTO document (namespace, kind, name, revision, published, state, deleted, managed_by, \
                       apps, body, note, created_by, created_at, updated_by, updated_at) \
                       VALUES (?, ?, ?, ?, 0, 'pending', ?, ?, ?, ?, ?, ?, ?, ?, ?)";
            let binds = binds![
                &request.namespace,
                request.kind.name(),
                &request.name,
                number,
                request.is_deletion,
                &request.managed_by,
                apps.clone(),
                &request.body,
                request.note.clone(),
                &author.name,
                author.at,
                &author.name,
                author.at,
            ];
            transaction.execute(sql, binds).await?;
        }
        Some(current) => {
            // A policy with the name of a deleted one has an author and a creation of its own.
            let (created_by, created_at) = match current.is_deleted {
                true => (&author.name, author.at),
                false => (&current.created_by, current.created_at),
            };
            let sql = "UPDATE document SET revision = ?, state = 'pending', deleted = ?, managed_by = ?, apps = ?, \
                       body = ?, note = ?, created_by = ?, created_at = ?, updated_by = ?, updated_at = ? \
                       WHERE namespace = ? AND kind = ? AND name = ? AND revision = ?";
            let binds = binds![
                number,
                request.is_deletion,
                &request.managed_by,
                apps.clone(),
                &request.body,
                request.note.clone(),
                created_by,
                created_at,
                &author.name,
                author.at,
                &request.namespace,
                request.kind.name(),
                &request.name,
                current.revision,
            ];
            transaction.execute(sql, binds).await?;
        }
    }
    insert_revision(transaction, request, author, number, DocumentState::Pending).await?;
    let sql = "INSERT INTO outbox (namespace, kind, name, revision, created_at) VALUES (?, ?, ?, ?, ?)";
    let kind = request.kind.name();
    let binds = binds![&request.namespace, kind, &request.name, number, author.at];
    transaction.execute(sql, binds).await?;
    let action = match (request.is_deletion, revision) {
        (true, _) => "delete",
        (false, 0) => "create",
        (false, _) => "update",
    };
    let entry = audit::NewEntry {
        namespace: &request.namespace,
        actor: &author.name,
        action: &format!("{kind}.{action}"),
        object: &request.name,
        apps,
        detail: audit_detail(number, author),
        at: author.at,
    };
    audit::insert(transaction, entry).await?;
    Ok(SavedDocument { revision: number })
}

/// Replaces the author and the times of a revision that the same transaction has saved.
async fn set_authorship(
    transaction: &mut SqlTransaction,
    request: &SaveRequest,
    number: i64,
    by: &Authorship,
) -> Result<(), StoreError> {
    let id = binds![&request.namespace, request.kind.name(), &request.name, number];
    let sql = "UPDATE document SET created_by = ?, created_at = ?, updated_by = ?, updated_at = ? \
               WHERE namespace = ? AND kind = ? AND name = ? AND revision = ?";
    let mut values = binds![&by.created_by, by.created_at, &by.updated_by, by.updated_at];
    values.extend(id.clone());
    transaction.execute(sql, values).await?;
    let sql = "UPDATE revision SET author = ?, created_at = ? \
               WHERE namespace = ? AND kind = ? AND name = ? AND number = ?";
    let mut values = binds![&by.updated_by, by.updated_at];
    values.extend(id);
    transaction.execute(sql, values).await.map(|_| ())
}

fn audit_detail(number: i64, author: &Author) -> Option<String> {
    let origin = author.origin.name();
    Some(match &author.reason {
        Some(reason) => format!("revision {number} ({origin}): {reason}"),
        None => format!("revision {number} ({origin})"),
    })
}

pub(super) async fn insert_revision(
    transaction: &mut SqlTransaction,
    request: &SaveRequest,
    author: &Author,
    number: i64,
    state: DocumentState,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO revision (namespace, kind, name, number, deleted, state, origin, author, reason, body, \
               created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    let binds = binds![
        &request.namespace,
        request.kind.name(),
        &request.name,
        number,
        request.is_deletion,
        state.name(),
        author.origin.name(),
        &author.name,
        author.reason.clone(),
        &request.body,
        author.at,
    ];
    transaction.execute(sql, binds).await.map(|_| ())
}

/// Locks the checks of all saves until the end of the transaction, and reads the documents of a
/// namespace. A lock of the documents would not exclude new ones.
pub(super) async fn lock_namespace(
    transaction: &mut SqlTransaction,
    namespace: &str,
) -> Result<Vec<StoredDocument>, StoreError> {
    alerts::lock(transaction).await?;
    let sql = format!("SELECT {COLUMNS} FROM document WHERE namespace = ? ORDER BY kind, name");
    let rows = transaction.rows(&sql, binds![namespace]).await?;
    rows.iter().map(StoredDocument::read).collect()
}

/// Reads a document and locks it until the end of the transaction.
pub(super) async fn lock(
    transaction: &mut SqlTransaction,
    namespace: &str,
    kind: DocumentKind,
    name: &str,
) -> Result<Option<StoredDocument>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM document WHERE namespace = ? AND kind = ? AND name = ?{}",
        transaction.dialect().for_update()
    );
    let row = transaction
        .row(&sql, binds![namespace, kind.name(), name])
        .await?;
    row.as_ref().map(StoredDocument::read).transpose()
}
