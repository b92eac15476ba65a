//! Conditions that an administrator must know, such as a registry that went back.
//!
//! An alert stays until an administrator clears it, which the audit records. An alert of equal
//! namespace, kind and detail is not raised again before that, so that a condition that is found
//! repeatedly adds one row.
//!
//! Tests: `tests/support/store_suite/alerts.rs`.

use crate::store::sql::{SqlRow, SqlTransaction, binds};
use crate::store::{Store, StoreError, audit};

/// A condition that an administrator must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// The number.
    pub id: i64,
    /// The namespace.
    pub namespace: String,
    /// The kind, such as `registry_went_back`.
    pub kind: String,
    /// A sentence.
    pub detail: String,
    /// The time.
    pub created_at: i64,
    /// The administrator that cleared it.
    pub cleared_by: Option<String>,
}

impl Store {
    /// Records an alert, unless the same one is not cleared yet.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn raise_alert(
        &self,
        namespace: &str,
        kind: &str,
        detail: &str,
        at: i64,
    ) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        raise(&mut transaction, namespace, (kind, detail), at).await?;
        transaction.commit().await
    }

    /// Returns the alerts that are not cleared, the newest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn alerts(&self, namespace: &str) -> Result<Vec<Alert>, StoreError> {
        let sql = "SELECT id, namespace, kind, detail, created_at, cleared_by FROM alert \
                   WHERE namespace = ? AND cleared_at IS NULL ORDER BY id DESC";
        let rows = self.pool.rows(sql, binds![namespace]).await?;
        rows.iter().map(read_alert).collect()
    }

    /// Clears an alert.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] when there is no such alert.
    pub async fn clear_alert(
        &self,
        namespace: &str,
        id: i64,
        author: &str,
        at: i64,
    ) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        let sql = "UPDATE alert SET cleared_by = ?, cleared_at = ? WHERE namespace = ? AND id = ? AND cleared_at IS NULL";
        let cleared = transaction
            .execute(sql, binds![author, at, namespace, id])
            .await?;
        if cleared == 0 {
            return Err(StoreError::NotFound);
        }
        let entry = audit::NewEntry {
            namespace,
            actor: author,
            action: "alert.clear",
            object: &id.to_string(),
            apps: None,
            detail: None,
            at,
        };
        audit::insert(&mut transaction, entry).await?;
        transaction.commit().await
    }
}

/// Records an alert in a transaction, unless the same one is not cleared yet. Locks the alerts
/// until the end of the transaction.
pub(super) async fn raise(
    transaction: &mut SqlTransaction,
    namespace: &str,
    (kind, detail): (&str, &str),
    at: i64,
) -> Result<(), StoreError> {
    // Several nodes find a condition at once.
    lock(transaction).await?;
    let sql = "SELECT id FROM alert WHERE namespace = ? AND kind = ? AND detail = ? AND cleared_at IS NULL";
    let found = transaction.row(sql, binds![namespace, kind, detail]).await?;
    if found.is_none() {
        tracing::warn!(namespace, kind, detail, "alert");
        let sql = "INSERT INTO alert (namespace, kind, detail, created_at) VALUES (?, ?, ?, ?)";
        transaction
            .execute(sql, binds![namespace, kind, detail, at])
            .await?;
    }
    Ok(())
}

/// Excludes other transactions with this lock until the end of the transaction.
pub(super) async fn lock(transaction: &mut SqlTransaction) -> Result<(), StoreError> {
    // The version is a row that every database has.
    let sql = format!(
        "SELECT version FROM schema_version{}",
        transaction.dialect().for_update()
    );
    transaction.rows(&sql, Vec::new()).await.map(|_| ())
}

fn read_alert(row: &SqlRow) -> Result<Alert, StoreError> {
    Ok(Alert {
        id: row.int(0)?,
        namespace: row.text(1)?,
        kind: row.text(2)?,
        detail: row.text(3)?,
        created_at: row.int(4)?,
        cleared_by: row.optional_text(5)?,
    })
}
