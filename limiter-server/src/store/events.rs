//! The saves, suspensions and conflicts that a webhook receives: entries of the audit, read from a
//! position that all nodes share.

use crate::store::sql::{Dialect, binds};
use crate::store::{AuditEntry, Store, StoreError, audit};

/// The time of a clock that was further ahead delays no event.
const MAX_AHEAD: i64 = 60_000_000;
/// The time for which an event waits for a transaction with a lower number. A transaction takes the
/// number of an entry before it ends, and one that was rolled back leaves its number unused.
const LONGEST_TRANSACTION: i64 = 60_000_000;
/// The name of the position.
const CURSOR: &str = "webhook";
/// The kinds of documents, and the actions on them.
const KINDS: [&str; 3] = ["policy", "rules", "overlays"];
const ACTIONS: [&str; 5] = ["create", "update", "delete", "import", "conflict"];

/// Returns the condition that selects events. It contains constants only.
fn is_event() -> String {
    let actions = KINDS
        .iter()
        .flat_map(|kind| ACTIONS.iter().map(move |action| format!("'{kind}.{action}'")));
    format!("action IN ({})", actions.collect::<Vec<_>>().join(", "))
}

impl Store {
    /// Returns the position after the last event that was delivered or dropped. The first call
    /// selects the newest event, since a new receiver needs no history.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn event_cursor(&self) -> Result<i64, StoreError> {
        if let Some(cursor) = self.setting(CURSOR).await? {
            return Ok(cursor.parse().unwrap_or_default());
        }
        let newest = self.newest_change().await?;
        self.replace_setting(CURSOR, None, &newest.to_string()).await?;
        Ok(newest)
    }

    /// Moves the position. Returns false if another node has moved it meanwhile: then nothing
    /// changes.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn move_event_cursor(&self, from: i64, to: i64) -> Result<bool, StoreError> {
        self.require_writable()?;
        let (from, to) = (from.to_string(), to.to_string());
        self.replace_setting(CURSOR, Some(&from), &to).await
    }

    /// Returns the newest entry after a position that no event and no transaction can precede if no
    /// event waits, or the position.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn settled_entry(&self, cursor: i64, before: i64) -> Result<i64, StoreError> {
        let sql = "SELECT MAX(id) FROM audit WHERE id > ? AND created_at < ?";
        let oldest = before.saturating_sub(LONGEST_TRANSACTION);
        let row = self.pool.row(sql, binds![cursor, oldest]).await?;
        let newest = row.map_or(Ok(None), |row| row.optional_int(0))?;
        Ok(newest.unwrap_or(cursor))
    }

    /// At most `limit` events after a position and before the first one that is not older than
    /// `before`, the oldest first. Concurrent transactions can commit in another order than that of
    /// their numbers, so an event behind an unused number also waits until it is a minute older
    /// than `before`: a transaction can have taken the number and not have ended. Times can have
    /// another order than numbers, too: a later event waits for an earlier one with a later time,
    /// because the position would pass over it.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn events_after(
        &self,
        cursor: i64,
        before: i64,
        limit: i64,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        let columns = "id, namespace, created_at, actor, action, object, apps, detail";
        // The number of an entry is its position after the cursor if no number before it is unused.
        // One statement reads both, so no entry appears between them.
        let integer = match self.dialect() {
            Dialect::MySql => "SIGNED",
            Dialect::Sqlite | Dialect::Postgres => "BIGINT",
        };
        let sql = format!(
            "SELECT {columns}, ordinal FROM \
             (SELECT {columns}, CAST(ROW_NUMBER() OVER (ORDER BY id) AS {integer}) AS ordinal \
             FROM audit WHERE id > ?) AS entries WHERE {} ORDER BY id LIMIT ?",
            is_event()
        );
        let mut events = Vec::new();
        for row in self.pool.rows(&sql, binds![cursor, limit]).await? {
            let (event, ordinal) = (audit::read(&row)?, row.int(8)?);
            let oldest = match event.id.saturating_sub(cursor) > ordinal {
                true => before.saturating_sub(LONGEST_TRANSACTION),
                false => before,
            };
            if (oldest..before.saturating_add(MAX_AHEAD)).contains(&event.created_at) {
                break;
            }
            events.push(event);
        }
        Ok(events)
    }

    /// Returns the number of events after a position.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn count_events_after(&self, cursor: i64) -> Result<i64, StoreError> {
        let sql = format!("SELECT COUNT(*) FROM audit WHERE id > ? AND {}", is_event());
        let row = self.pool.row(&sql, binds![cursor]).await?;
        row.map_or(Ok(0), |row| row.int(0))
    }
}
