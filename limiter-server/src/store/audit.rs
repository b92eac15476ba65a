//! The record of all changes.
//!
//! A change adds its entry in its own transaction, so that both are saved or neither. The number of
//! the newest entry identifies the state of the database for publication. The entry is also written
//! as a line of JSON after the commit (`audit_lines`).
//!
//! Invariant: rows are never changed; only `retention` removes rows, and never the newest one.
//! Tests: `save_writes_revision_audit_and_outbox` in `tests/support/store_suite.rs`, and
//! `tests/control_plane/retention.rs`.

use serde_json::{Value, json};

use crate::store::document::{read_apps, write_apps};
use crate::store::sql::{Bind, SqlRow, SqlTransaction, binds};
use crate::store::{Store, StoreError};

/// A recorded change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// The position in the record.
    pub id: i64,
    /// The namespace; empty for changes of users.
    pub namespace: String,
    /// The time in microseconds.
    pub created_at: i64,
    /// The name of the user or token.
    pub actor: String,
    /// The action, such as `policy.update`.
    pub action: String,
    /// The name of the changed object.
    pub object: String,
    /// The apps of the object; `None` for all.
    pub apps: Option<Vec<String>>,
    /// The revision, origin and reason.
    pub detail: Option<String>,
}

impl AuditEntry {
    /// Returns the entry as an object, with its time in microseconds.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "namespace": self.namespace,
            "at": self.created_at,
            "actor": self.actor,
            "action": self.action,
            "object": self.object,
            "apps": self.apps,
            "detail": self.detail,
        })
    }
}

/// Selects the listed entries.
#[derive(Clone, Debug)]
pub struct AuditFilter {
    /// The namespace.
    pub namespace: String,
    /// The name of the object; `None` for all.
    pub object: Option<String>,
    /// The author; `None` for all.
    pub actor: Option<String>,
    /// Entries with a lower id only.
    pub before: i64,
    /// The largest number of entries.
    pub limit: i64,
    /// True if changes of users, which belong to no namespace, are listed as well. Sign-ins are not
    /// listed.
    pub includes_users: bool,
}

pub(super) struct NewEntry<'a> {
    pub(super) namespace: &'a str,
    pub(super) actor: &'a str,
    pub(super) action: &'a str,
    pub(super) object: &'a str,
    pub(super) apps: Option<String>,
    pub(super) detail: Option<String>,
    pub(super) at: i64,
}

/// Adds an entry to a transaction. The entry is written as a line of JSON after the commit.
pub(super) async fn insert(transaction: &mut SqlTransaction, entry: NewEntry<'_>) -> Result<(), StoreError> {
    let NewEntry {
        namespace,
        actor,
        action,
        object,
        apps,
        detail,
        at,
    } = entry;
    let line = json!({
        "at": at,
        "namespace": namespace,
        "actor": actor,
        "action": action,
        "object": object,
        "apps": read_apps(apps.as_deref()),
        "detail": detail,
    });
    transaction.add_audit_line(line.to_string());
    let sql = "INSERT INTO audit (namespace, created_at, actor, action, object, apps, detail) VALUES (?, ?, ?, ?, ?, ?, ?)";
    let binds = binds![namespace, at, actor, action, object, apps, detail];
    transaction.execute(sql, binds).await.map(|_| ())
}

/// An action that changes no table.
#[derive(Clone, Debug)]
pub struct RecordedAction {
    /// The namespace.
    pub namespace: String,
    /// The user or token.
    pub actor: String,
    /// The action, such as `policy.key_reset`.
    pub action: String,
    /// The name of the object.
    pub object: String,
    /// The apps of the object; `None` for all.
    pub apps: Option<Vec<String>>,
    /// Details.
    pub detail: Option<String>,
}

impl Store {
    /// Records an action on an object.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn record_action(&self, action: &RecordedAction, at: i64) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        let entry = NewEntry {
            namespace: &action.namespace,
            actor: &action.actor,
            action: &action.action,
            object: &action.object,
            apps: write_apps(action.apps.as_deref()),
            detail: action.detail.clone(),
            at,
        };
        insert(&mut transaction, entry).await?;
        transaction.commit().await
    }

    /// Records an action that changes no table, such as a failed sign-in.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn record(
        &self,
        namespace: &str,
        actor: &str,
        action: &str,
        object: &str,
        at: i64,
    ) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        let entry = NewEntry {
            namespace,
            actor,
            action,
            object,
            apps: None,
            detail: None,
            at,
        };
        insert(&mut transaction, entry).await?;
        transaction.commit().await
    }

    /// Returns the recorded changes, the newest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn audit(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>, StoreError> {
        let users = match filter.includes_users {
            true => " OR (namespace = '' AND action <> 'user.signin')",
            false => "",
        };
        let mut sql = format!(
            "SELECT id, namespace, created_at, actor, action, object, apps, detail FROM audit \
             WHERE (namespace = ?{users}) AND id < ?"
        );
        let mut values: Vec<Bind> = binds![&filter.namespace, filter.before];
        if let Some(object) = &filter.object {
            sql.push_str(" AND object = ?");
            values.push(object.into());
        }
        if let Some(actor) = &filter.actor {
            sql.push_str(" AND actor = ?");
            values.push(actor.into());
        }
        sql.push_str(" ORDER BY id DESC LIMIT ?");
        values.push(filter.limit.into());
        let rows = self.pool.rows(&sql, values).await?;
        rows.iter().map(read).collect()
    }

    /// Returns the id of the newest entry; 0 for none.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn newest_change(&self) -> Result<i64, StoreError> {
        let row = self.pool.row("SELECT MAX(id) FROM audit", Vec::new()).await?;
        row.map_or(Ok(0), |row| row.int(0))
    }
}

pub(super) fn read(row: &SqlRow) -> Result<AuditEntry, StoreError> {
    Ok(AuditEntry {
        id: row.int(0)?,
        namespace: row.text(1)?,
        created_at: row.int(2)?,
        actor: row.text(3)?,
        action: row.text(4)?,
        object: row.text(5)?,
        apps: read_apps(row.optional_text(6)?.as_deref()),
        detail: row.optional_text(7)?,
    })
}
