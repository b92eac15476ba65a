//! Copies of the database that are older than the published state.
//!
//! Texts in Redis name the newest change of the database at their publication by its number and
//! its time in the audit. A database without this change was restored from an older copy, or a
//! failover lost the change. Its sessions and tokens may include revoked ones. Tests:
//! `tests/support/store_suite/restoration.rs`, `tests/restored_database.rs`.

use std::fmt;
use std::str::FromStr;

use crate::store::alerts;
use crate::store::retention::EXPORTED;
use crate::store::sql::{SqlTransaction, binds};
use crate::store::{Store, StoreError, audit};

/// The kind of the alerts.
const ALERT: &str = "database_restored";

/// The newest change of a database at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeMark {
    /// The identity of the database.
    pub database: String,
    /// The number of the entry of the audit; 0 for none.
    pub change: i64,
    /// The time of the entry in microseconds.
    pub at: i64,
}

impl fmt::Display for ChangeMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} change {} at {}", self.database, self.change, self.at)
    }
}

impl FromStr for ChangeMark {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (database, rest) = text.trim().split_once(" change ")?;
            let (change, at) = rest.split_once(" at ")?;
            Some(Self {
                database: database.to_owned(),
                change: change.parse().ok()?,
                at: at.parse().ok()?,
            })
        };
        parse().ok_or(())
    }
}

impl Store {
    /// Returns the newest change.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn newest_mark(&self) -> Result<ChangeMark, StoreError> {
        let sql = "SELECT id, created_at FROM audit ORDER BY id DESC LIMIT 1";
        let row = self.pool.row(sql, Vec::new()).await?;
        let (change, at) = match row {
            Some(row) => (row.int(0)?, row.int(1)?),
            None => (0, 0),
        };
        Ok(ChangeMark {
            database: self.id().to_owned(),
            change,
            at,
        })
    }

    /// Returns whether a change of this database is absent although it was not moved to the export
    /// of the audit. The time distinguishes the change from one that later received its number.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn has_lost(&self, mark: &ChangeMark) -> Result<bool, StoreError> {
        if mark.database != self.id() || mark.change == 0 {
            return Ok(false);
        }
        let sql = "SELECT created_at FROM audit WHERE id = ?";
        if let Some(row) = self.pool.row(sql, binds![mark.change]).await? {
            return Ok(row.int(0)? != mark.at);
        }
        let exported = self.setting(EXPORTED).await?;
        if exported.is_some_and(|id| id.parse().is_ok_and(|id: i64| mark.change <= id)) {
            return Ok(false);
        }
        // An earlier version has not recorded its exports. They never remove the newest entry.
        let oldest = self.pool.row("SELECT MIN(id) FROM audit", Vec::new()).await?;
        let oldest = oldest.map_or(Ok(None), |row| row.optional_int(0))?;
        Ok(oldest.is_none_or(|oldest| oldest < mark.change))
    }

    /// Ends all sessions, suspends the tokens of a namespace and raises an alert there, because the
    /// database was restored from a copy that may contain revoked ones. The Redis of another
    /// namespace can answer later, so its tokens are suspended then, and tokens that an
    /// administrator has confirmed meanwhile stay valid.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn suspend_credentials(&self, namespace: &str, at: i64) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        suspend(&mut transaction, namespace, at).await?;
        transaction.commit().await
    }
}

/// Records in a transaction that an older copy was restored and that these documents differ.
pub(super) async fn record(
    transaction: &mut SqlTransaction,
    namespace: &str,
    differing: &[String],
    at: i64,
) -> Result<(), StoreError> {
    for name in differing {
        let detail = format!("an older copy of the database was restored: policy `{name}` differs");
        alerts::raise(transaction, namespace, (ALERT, &detail), at).await?;
    }
    suspend(transaction, namespace, at).await
}

async fn suspend(transaction: &mut SqlTransaction, namespace: &str, at: i64) -> Result<(), StoreError> {
    transaction.execute("DELETE FROM signin", Vec::new()).await?;
    // A rotated token has an end in the future.
    let sql = "UPDATE token SET suspended = 1 WHERE namespace = ? AND (revoked_at IS NULL OR revoked_at > ?)";
    transaction.execute(sql, binds![namespace, at]).await?;
    let entry = audit::NewEntry {
        namespace: "",
        actor: "limiter-server",
        action: "credentials.suspend",
        object: namespace,
        apps: None,
        detail: Some("the database was restored from a copy".to_owned()),
        at,
    };
    audit::insert(transaction, entry).await?;
    let detail = "an older copy of the database was restored: sessions ended, tokens wait for confirmation";
    alerts::raise(transaction, namespace, (ALERT, detail), at).await
}
