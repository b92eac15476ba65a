//! One connection of the pool, with a timeout for each statement.
//!
//! A database host that vanishes keeps its connections open until TCP gives up, minutes later. A
//! statement without an answer therefore fails after a time, and its connection is closed: the
//! answer could arrive as that of the next statement, and the state of the transaction is unknown.
//! A statement whose caller was cancelled has no answer either. Tests:
//! `tests/control_plane/stalled_database.rs`.

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Executor as _, MySql, Postgres, Sqlite};

use crate::store::StoreError;
use crate::store::sql::{Bind, Dialect, QUERY_TIMEOUT, SqlRow, prepare};

/// A connection that returns to the pool when it is dropped, unless a statement has no answer.
#[derive(Debug)]
pub(super) struct SqlConnection {
    pooled: PooledConnection,
    timeout: Duration,
    /// True from the start of a statement to its answer.
    is_waiting: bool,
}

#[derive(Debug)]
pub(super) enum PooledConnection {
    Sqlite(PoolConnection<Sqlite>),
    Postgres(PoolConnection<Postgres>),
    MySql(PoolConnection<MySql>),
}

/// Evaluates an expression for the connection of each database.
macro_rules! with_each {
    ($pooled:expr, $connection:ident => $body:expr) => {
        match $pooled {
            PooledConnection::Sqlite($connection) => $body,
            PooledConnection::Postgres($connection) => $body,
            PooledConnection::MySql($connection) => $body,
        }
    };
}

impl SqlConnection {
    pub(super) fn new(pooled: PooledConnection) -> Self {
        Self {
            pooled,
            timeout: QUERY_TIMEOUT,
            is_waiting: false,
        }
    }

    pub(super) fn dialect(&self) -> Dialect {
        match &self.pooled {
            PooledConnection::Sqlite(_) => Dialect::Sqlite,
            PooledConnection::Postgres(_) => Dialect::Postgres,
            PooledConnection::MySql(_) => Dialect::MySql,
        }
    }

    /// Sets the time that each following statement may take.
    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Returns whether a statement has no answer. The connection takes no further ones then.
    pub(super) fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Runs a statement with values. Returns the number of affected rows.
    pub(super) async fn execute(&mut self, sql: &str, binds: Vec<Bind>) -> Result<u64, StoreError> {
        let dialect = self.start()?;
        let timeout = self.timeout;
        let affected = match &mut self.pooled {
            PooledConnection::Sqlite(connection) => {
                let done = prepare!(Sqlite, dialect, sql, binds).execute(&mut **connection);
                within(timeout, done).await?.map(|done| done.rows_affected())
            }
            PooledConnection::Postgres(connection) => {
                let done = prepare!(Postgres, dialect, sql, binds).execute(&mut **connection);
                within(timeout, done).await?.map(|done| done.rows_affected())
            }
            PooledConnection::MySql(connection) => {
                let done = prepare!(MySql, dialect, sql, binds).execute(&mut **connection);
                within(timeout, done).await?.map(|done| done.rows_affected())
            }
        };
        self.is_waiting = false;
        Ok(affected?)
    }

    /// Returns the rows of a query with values.
    pub(super) async fn rows(&mut self, sql: &str, binds: Vec<Bind>) -> Result<Vec<SqlRow>, StoreError> {
        let dialect = self.start()?;
        let timeout = self.timeout;
        let rows = match &mut self.pooled {
            PooledConnection::Sqlite(connection) => {
                let rows = prepare!(Sqlite, dialect, sql, binds).fetch_all(&mut **connection);
                let rows = within(timeout, rows).await?;
                rows.map(|rows| rows.into_iter().map(SqlRow::Sqlite).collect())
            }
            PooledConnection::Postgres(connection) => {
                let rows = prepare!(Postgres, dialect, sql, binds).fetch_all(&mut **connection);
                let rows = within(timeout, rows).await?;
                rows.map(|rows| rows.into_iter().map(SqlRow::Postgres).collect())
            }
            PooledConnection::MySql(connection) => {
                let rows = prepare!(MySql, dialect, sql, binds).fetch_all(&mut **connection);
                let rows = within(timeout, rows).await?;
                rows.map(|rows| rows.into_iter().map(SqlRow::MySql).collect())
            }
        };
        self.is_waiting = false;
        Ok(rows?)
    }

    /// Begins, commits or rolls back a transaction. The outer error is a missing answer.
    pub(super) async fn command(&mut self, sql: &'static str) -> Result<Result<(), sqlx::Error>, StoreError> {
        self.start()?;
        let timeout = self.timeout;
        let done = with_each!(&mut self.pooled, connection => {
            within(timeout, (&mut **connection).execute(sql)).await?.map(|_| ())
        });
        self.is_waiting = false;
        Ok(done)
    }

    /// Closes the connection when it is dropped.
    pub(super) fn close_on_drop(&mut self) {
        with_each!(&mut self.pooled, connection => connection.close_on_drop());
    }

    /// Marks a statement as started. Fails if an earlier one has no answer.
    fn start(&mut self) -> Result<Dialect, StoreError> {
        match std::mem::replace(&mut self.is_waiting, true) {
            false => Ok(self.dialect()),
            true => Err(StoreError::Unavailable),
        }
    }
}

impl Drop for SqlConnection {
    fn drop(&mut self) {
        if self.is_waiting {
            self.close_on_drop();
        }
    }
}

/// Returns the answer of a statement; [`StoreError::Unavailable`] without one.
async fn within<T>(
    timeout: Duration,
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<Result<T, sqlx::Error>, StoreError> {
    let answer = tokio::time::timeout(timeout, answer).await;
    answer.map_err(|_| StoreError::Unavailable)
}
