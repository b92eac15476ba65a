//! Removal of old records. The caller states the time, so tests need no wait.

use crate::store::sql::{Bind, TABLE_TIMEOUT, binds};
use crate::store::{AuditEntry, Store, StoreError, UsageKind, UsageSpan, audit};

/// The name of the highest number among the exported entries of the audit. Times can have another
/// order than numbers, so an entry with a lower number can stay.
pub(super) const EXPORTED: &str = "audit-exported";

impl Store {
    /// Removes counts of decisions: those of minutes and of hours that began before these times.
    /// Returns the number of removed rows.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn prune_counts(&self, minutes_before: i64, hours_before: i64) -> Result<u64, StoreError> {
        self.require_writable()?;
        let mut removed = 0;
        for (span, before) in [
            (UsageSpan::Minute, minutes_before),
            (UsageSpan::Hour, hours_before),
        ] {
            for kind in UsageKind::ALL {
                for table in ["usage_count", "library_usage"] {
                    let sql = format!("DELETE FROM {table} WHERE span = ? AND start_at < ?");
                    let values = binds![kind.span_name(span), before];
                    removed += self.remove_many(&sql, values).await?;
                }
            }
        }
        Ok(removed)
    }

    /// Removes the tokens that ended at a time or before, by their expiry or a revocation. Returns
    /// their number.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn prune_tokens(&self, ended_at: i64) -> Result<u64, StoreError> {
        self.require_writable()?;
        let sql = "DELETE FROM token WHERE expires_at <= ? OR revoked_at <= ?";
        self.remove_many(sql, binds![ended_at, ended_at]).await
    }

    /// Removes rows by one statement, which may take long after a pause of the removal.
    pub(super) async fn remove_many(&self, sql: &str, binds: Vec<Bind>) -> Result<u64, StoreError> {
        let mut transaction = self.pool.begin().await?;
        transaction.set_timeout(TABLE_TIMEOUT);
        let removed = transaction.execute(sql, binds).await?;
        transaction.commit().await?;
        Ok(removed)
    }

    /// Returns the oldest entries of the audit of all namespaces, among those before a time. The
    /// newest entry of the audit is never among them, because its number identifies the newest
    /// change.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn audit_before(&self, before: i64, limit: i64) -> Result<Vec<AuditEntry>, StoreError> {
        let newest = self.newest_change().await?;
        let sql = "SELECT id, namespace, created_at, actor, action, object, apps, detail FROM audit \
                   WHERE created_at < ? AND id < ? ORDER BY id LIMIT ?";
        let rows = self.pool.rows(sql, binds![before, newest, limit]).await?;
        rows.iter().map(audit::read).collect()
    }

    /// Removes entries of the audit by their numbers.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer. Some entries may be removed then.
    pub async fn remove_audit(&self, entries: &[AuditEntry]) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        let mut highest = 0;
        for entry in entries {
            let sql = "DELETE FROM audit WHERE id = ?";
            transaction.execute(sql, binds![entry.id]).await?;
            highest = highest.max(entry.id);
        }
        let sql = "SELECT content FROM setting WHERE name = ?";
        let before = transaction.row(sql, binds![EXPORTED]).await?;
        let before = before.map(|row| row.text(0)).transpose()?;
        let highest = before
            .iter()
            .filter_map(|id| id.parse().ok())
            .fold(highest, i64::max);
        let sql = match before {
            Some(_) => "UPDATE setting SET content = ? WHERE name = ?",
            None => "INSERT INTO setting (content, name) VALUES (?, ?)",
        };
        transaction
            .execute(sql, binds![highest.to_string(), EXPORTED])
            .await?;
        transaction.commit().await
    }
}
