//! One transaction that writes.
//!
//! Each statement has the timeout of its connection. A transaction that is dropped rolls back; one
//! with a statement without an answer closes its connection instead, which ends the transaction at
//! the database. The outcome of a commit without an answer is unknown, and its error says so.
//! Tests: `tests/control_plane/stalled_database.rs`.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use crate::store::StoreError;
use crate::store::audit_lines::AuditLines;
use crate::store::sql::connection::SqlConnection;
use crate::store::sql::{Bind, Dialect, SqlRow};

/// A transaction that writes. It rolls back when it is dropped.
#[derive(Debug)]
pub(in crate::store) struct SqlTransaction {
    open: OpenTransaction,
    dialect: Dialect,
    audit_lines: AuditLines,
    /// The entries of the audit that this transaction adds.
    audit: Vec<String>,
}

/// A connection that is in a transaction, until it is taken.
#[derive(Debug)]
struct OpenTransaction {
    connection: Option<SqlConnection>,
    /// The permit of the writer of SQLite.
    permit: Option<OwnedSemaphorePermit>,
}

impl SqlTransaction {
    /// Begins a transaction on a connection.
    pub(super) async fn begin(
        mut connection: SqlConnection,
        permit: Option<OwnedSemaphorePermit>,
        audit_lines: AuditLines,
    ) -> Result<Self, StoreError> {
        let dialect = connection.dialect();
        let begin = match dialect {
            // A transaction that begins with a read cannot wait for another writer later.
            Dialect::Sqlite => "BEGIN IMMEDIATE",
            Dialect::Postgres | Dialect::MySql => "BEGIN",
        };
        connection.command(begin).await??;
        let open = OpenTransaction {
            connection: Some(connection),
            permit,
        };
        Ok(Self {
            open,
            dialect,
            audit_lines,
            audit: Vec::new(),
        })
    }

    pub(in crate::store) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Sets the time that each following statement may take.
    pub(in crate::store) fn set_timeout(&mut self, timeout: Duration) {
        if let Some(connection) = &mut self.open.connection {
            connection.set_timeout(timeout);
        }
    }

    /// Runs a statement. Returns the number of affected rows.
    pub(in crate::store) async fn execute(&mut self, sql: &str, binds: Vec<Bind>) -> Result<u64, StoreError> {
        self.open.connection()?.execute(sql, binds).await
    }

    /// Returns the rows of a query.
    pub(in crate::store) async fn rows(
        &mut self,
        sql: &str,
        binds: Vec<Bind>,
    ) -> Result<Vec<SqlRow>, StoreError> {
        self.open.connection()?.rows(sql, binds).await
    }

    /// Returns the first row of a query.
    pub(in crate::store) async fn row(
        &mut self,
        sql: &str,
        binds: Vec<Bind>,
    ) -> Result<Option<SqlRow>, StoreError> {
        Ok(self.rows(sql, binds).await?.into_iter().next())
    }

    /// Writes a line of the audit after the commit.
    pub(in crate::store) fn add_audit_line(&mut self, line: String) {
        self.audit.push(line);
    }

    /// Ends the transaction with its changes.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unconfirmed`] if the database may have made the changes.
    pub(in crate::store) async fn commit(mut self) -> Result<(), StoreError> {
        let connection = self.open.connection()?;
        if connection.is_waiting() {
            return Err(StoreError::Unavailable);
        }
        let done = connection.command("COMMIT").await;
        let done = done.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()));
        done.map_err(StoreError::of_commit)?;
        self.open.connection = None;
        self.audit_lines.write(&self.audit);
        Ok(())
    }
}

impl OpenTransaction {
    fn connection(&mut self) -> Result<&mut SqlConnection, StoreError> {
        self.connection.as_mut().ok_or(StoreError::Closed)
    }
}

impl Drop for OpenTransaction {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        // The next writer of SQLite waits for the end of the transaction.
        let permit = self.permit.take();
        match Handle::try_current() {
            Ok(runtime) if !connection.is_waiting() => {
                runtime.spawn(async move {
                    if !matches!(connection.command("ROLLBACK").await, Ok(Ok(()))) {
                        connection.close_on_drop();
                    }
                    drop((connection, permit));
                });
            }
            // Without a connection, the database rolls back.
            _ => connection.close_on_drop(),
        }
    }
}
