//! The saves, suspensions and conflicts that a webhook receives: entries of the audit, read from a
//! position that all nodes share.

use crate::store::sql::binds;
use crate::store::{AuditEntry, Store, StoreError, audit};

/// The time of a clock that was further ahead delays no event.
const MAX_AHEAD: i64 = 60_000_000;
/// The name of the position.
const CURSOR: &str = "webhook";
/// The kinds of documents, and the actions on them.
const KINDS: [&str; 3] = ["policy", "rules", "overlays"];
const ACTIONS: [&str; 5] = ["create", "update", "delete", "import", "conflict"];

/// The condition that selects events. It contains constants only.
fn is_event() -> String {
    let actions = KINDS
        .iter()
        .flat_map(|kind| ACTIONS.iter().map(move |action| format!("'{kind}.{action}'")));
    format!("action IN ({})", actions.collect::<Vec<_>>().join(", "))
}

impl Store {
    /// The position after the last event that was delivered or dropped. The first call selects the
    /// newest event, since a new receiver needs no history.
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

    /// Moves the position. Another node may have moved it meanwhile; then nothing changes.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn move_event_cursor(&self, from: i64, to: i64) -> Result<(), StoreError> {
        self.require_writable()?;
        let (from, to) = (from.to_string(), to.to_string());
        let moved = self.replace_setting(CURSOR, Some(&from), &to).await;
        moved.map(|_| ())
    }

    /// At most `limit` events after a position and before the first one that is not older than
    /// `before`, the oldest first. Concurrent transactions can commit in another order than that of
    /// their numbers, so `before` must be earlier than the start of every transaction that has not
    /// ended. Times can have another order than numbers, too: a later event waits for an earlier
    /// one with a later time, because the position would pass over it.
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
        let sql = format!(
            "SELECT id, namespace, created_at, actor, action, object, apps, detail FROM audit \
             WHERE id > ? AND {} ORDER BY id LIMIT ?",
            is_event()
        );
        let rows = self.pool.rows(&sql, binds![cursor, limit]).await?;
        let events: Result<Vec<AuditEntry>, StoreError> = rows.iter().map(audit::read).collect();
        let recent = before..before.saturating_add(MAX_AHEAD);
        let settled = events?
            .into_iter()
            .take_while(|of| !recent.contains(&of.created_at));
        Ok(settled.collect())
    }

    /// The number of events after a position.
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
