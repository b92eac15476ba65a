//! One form of statements and rows for SQLite, PostgreSQL and MySQL.
//!
//! Statements use `?` for values, which becomes `$1` for PostgreSQL. Columns have one of two types,
//! text and a signed integer of 64 bits, so that one statement serves all databases.

use std::sync::Arc;

use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions, MySqlRow};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions, PgRow};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, Executor as _, MySql, Postgres, Row as _, Sqlite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::store::StoreError;

/// How long a caller waits for a connection.
const ACQUIRE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
/// How long SQLite waits for another process that writes.
const BUSY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
const MAX_CONNECTIONS: u32 = 8;

/// A database product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// SQLite, in one file.
    Sqlite,
    /// PostgreSQL.
    Postgres,
    /// MariaDB or MySQL.
    MySql,
}

impl Dialect {
    /// The name of the product.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
            Self::MySql => "MariaDB or MySQL",
        }
    }

    /// The clause that locks the selected rows until the end of the transaction.
    pub(super) fn for_update(self) -> &'static str {
        match self {
            // A write transaction of SQLite locks the database.
            Self::Sqlite => "",
            Self::Postgres | Self::MySql => " FOR UPDATE",
        }
    }

    fn statement(self, sql: &str) -> String {
        match self {
            Self::Sqlite | Self::MySql => sql.to_owned(),
            Self::Postgres => {
                let mut statement = String::with_capacity(sql.len() + 16);
                for (index, part) in sql.split('?').enumerate() {
                    if index > 0 {
                        statement.push_str(&format!("${index}"));
                    }
                    statement.push_str(part);
                }
                statement
            }
        }
    }
}

/// A value of a statement.
#[derive(Clone, Debug)]
pub(super) enum Bind {
    Text(Option<String>),
    Int(Option<i64>),
}

impl From<&str> for Bind {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

impl From<&String> for Bind {
    fn from(text: &String) -> Self {
        Self::Text(Some(text.clone()))
    }
}

impl From<String> for Bind {
    fn from(text: String) -> Self {
        Self::Text(Some(text))
    }
}

impl From<Option<&str>> for Bind {
    fn from(text: Option<&str>) -> Self {
        Self::Text(text.map(str::to_owned))
    }
}

impl From<Option<String>> for Bind {
    fn from(text: Option<String>) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Bind {
    fn from(number: i64) -> Self {
        Self::Int(Some(number))
    }
}

impl From<Option<i64>> for Bind {
    fn from(number: Option<i64>) -> Self {
        Self::Int(number)
    }
}

impl From<bool> for Bind {
    fn from(flag: bool) -> Self {
        Self::Int(Some(i64::from(flag)))
    }
}

/// The values of a statement, in order.
macro_rules! binds {
    ($($value:expr),* $(,)?) => { vec![$($crate::store::sql::Bind::from($value)),*] };
}
pub(super) use binds;

/// A row of a result.
#[derive(Debug)]
pub(super) enum SqlRow {
    Sqlite(SqliteRow),
    Postgres(PgRow),
    MySql(MySqlRow),
}

impl SqlRow {
    pub(super) fn optional_text(&self, column: usize) -> Result<Option<String>, StoreError> {
        Ok(match self {
            Self::Sqlite(row) => row.try_get(column),
            Self::Postgres(row) => row.try_get(column),
            Self::MySql(row) => row.try_get(column),
        }?)
    }

    pub(super) fn text(&self, column: usize) -> Result<String, StoreError> {
        Ok(self.optional_text(column)?.unwrap_or_default())
    }

    pub(super) fn optional_int(&self, column: usize) -> Result<Option<i64>, StoreError> {
        Ok(match self {
            Self::Sqlite(row) => row.try_get(column),
            Self::Postgres(row) => row.try_get(column),
            Self::MySql(row) => row.try_get(column),
        }?)
    }

    pub(super) fn int(&self, column: usize) -> Result<i64, StoreError> {
        Ok(self.optional_int(column)?.unwrap_or_default())
    }

    pub(super) fn flag(&self, column: usize) -> Result<bool, StoreError> {
        Ok(self.int(column)? != 0)
    }
}

macro_rules! prepare {
    ($database:ty, $dialect:expr, $sql:expr, $binds:expr) => {{
        let statement = AssertSqlSafe($dialect.statement($sql));
        let mut query = sqlx::query::<$database>(statement);
        for bind in $binds {
            query = match bind {
                Bind::Text(text) => query.bind(text),
                Bind::Int(number) => query.bind(number),
            };
        }
        query
    }};
}

/// The connections to a database.
#[derive(Clone, Debug)]
pub(super) enum SqlPool {
    /// The semaphore serializes the writers of this process, which would otherwise poll for the
    /// lock of the file.
    Sqlite(SqlitePool, Arc<Semaphore>),
    Postgres(PgPool),
    MySql(MySqlPool),
}

impl SqlPool {
    /// Prepares connections to the database of a URL. Connects with the first statement.
    pub(super) fn open(url: &str) -> Result<Self, StoreError> {
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        match scheme {
            "sqlite" => {
                let options: SqliteConnectOptions = url.parse().map_err(invalid_url)?;
                let options = options
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .synchronous(SqliteSynchronous::Full)
                    .busy_timeout(BUSY_TIMEOUT);
                let pool = SqlitePoolOptions::new()
                    .max_connections(MAX_CONNECTIONS)
                    .acquire_timeout(ACQUIRE_TIMEOUT)
                    .connect_lazy_with(options);
                Ok(Self::Sqlite(pool, Arc::new(Semaphore::new(1))))
            }
            "postgres" | "postgresql" => {
                let options: PgConnectOptions = url.parse().map_err(invalid_url)?;
                let pool = PgPoolOptions::new()
                    .max_connections(MAX_CONNECTIONS)
                    .acquire_timeout(ACQUIRE_TIMEOUT)
                    .connect_lazy_with(options.application_name("limiter-server"));
                Ok(Self::Postgres(pool))
            }
            "mysql" | "mariadb" => {
                let options: MySqlConnectOptions = url.parse().map_err(invalid_url)?;
                let pool = MySqlPoolOptions::new()
                    .max_connections(MAX_CONNECTIONS)
                    .acquire_timeout(ACQUIRE_TIMEOUT)
                    .after_connect(|connection, _| {
                        Box::pin(async move {
                            // Locks of gaps would let concurrent inserts deadlock.
                            connection
                                .execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                                .await?;
                            Ok(())
                        })
                    })
                    .connect_lazy_with(options);
                Ok(Self::MySql(pool))
            }
            _ => Err(StoreError::Url(
                "expected a database URL that begins with sqlite:, postgres: or mysql:".to_owned(),
            )),
        }
    }

    pub(super) fn dialect(&self) -> Dialect {
        match self {
            Self::Sqlite(..) => Dialect::Sqlite,
            Self::Postgres(_) => Dialect::Postgres,
            Self::MySql(_) => Dialect::MySql,
        }
    }

    /// Begins a transaction that writes.
    pub(super) async fn begin(&self) -> Result<SqlTransaction, StoreError> {
        Ok(match self {
            Self::Sqlite(pool, writer) => {
                let permit = Arc::clone(writer).acquire_owned().await;
                let permit = permit.map_err(|_| StoreError::Closed)?;
                SqlTransaction::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await?, permit)
            }
            Self::Postgres(pool) => SqlTransaction::Postgres(pool.begin().await?),
            Self::MySql(pool) => SqlTransaction::MySql(pool.begin().await?),
        })
    }

    /// The rows of a query outside of a transaction.
    pub(super) async fn rows(&self, sql: &str, binds: Vec<Bind>) -> Result<Vec<SqlRow>, StoreError> {
        let dialect = self.dialect();
        Ok(match self {
            Self::Sqlite(pool, _) => {
                let rows = prepare!(Sqlite, dialect, sql, binds).fetch_all(pool).await?;
                rows.into_iter().map(SqlRow::Sqlite).collect()
            }
            Self::Postgres(pool) => {
                let rows = prepare!(Postgres, dialect, sql, binds).fetch_all(pool).await?;
                rows.into_iter().map(SqlRow::Postgres).collect()
            }
            Self::MySql(pool) => {
                let rows = prepare!(MySql, dialect, sql, binds).fetch_all(pool).await?;
                rows.into_iter().map(SqlRow::MySql).collect()
            }
        })
    }

    /// The first row of a query outside of a transaction.
    pub(super) async fn row(&self, sql: &str, binds: Vec<Bind>) -> Result<Option<SqlRow>, StoreError> {
        Ok(self.rows(sql, binds).await?.into_iter().next())
    }

    /// Runs one statement in a transaction of its own. Returns the number of affected rows.
    pub(super) async fn execute(&self, sql: &str, binds: Vec<Bind>) -> Result<u64, StoreError> {
        let mut transaction = self.begin().await?;
        let affected = transaction.execute(sql, binds).await?;
        transaction.commit().await?;
        Ok(affected)
    }

    pub(super) async fn close(&self) {
        match self {
            Self::Sqlite(pool, _) => pool.close().await,
            Self::Postgres(pool) => pool.close().await,
            Self::MySql(pool) => pool.close().await,
        }
    }
}

/// A transaction that writes. It rolls back when it is dropped.
#[derive(Debug)]
pub(super) enum SqlTransaction {
    Sqlite(sqlx::Transaction<'static, Sqlite>, OwnedSemaphorePermit),
    Postgres(sqlx::Transaction<'static, Postgres>),
    MySql(sqlx::Transaction<'static, MySql>),
}

impl SqlTransaction {
    pub(super) fn dialect(&self) -> Dialect {
        match self {
            Self::Sqlite(..) => Dialect::Sqlite,
            Self::Postgres(_) => Dialect::Postgres,
            Self::MySql(_) => Dialect::MySql,
        }
    }

    /// Runs a statement. Returns the number of affected rows.
    pub(super) async fn execute(&mut self, sql: &str, binds: Vec<Bind>) -> Result<u64, StoreError> {
        let dialect = self.dialect();
        Ok(match self {
            Self::Sqlite(transaction, _) => {
                let query = prepare!(Sqlite, dialect, sql, binds);
                query.execute(&mut **transaction).await?.rows_affected()
            }
            Self::Postgres(transaction) => {
                let query = prepare!(Postgres, dialect, sql, binds);
                query.execute(&mut **transaction).await?.rows_affected()
            }
            Self::MySql(transaction) => {
                let query = prepare!(MySql, dialect, sql, binds);
                query.execute(&mut **transaction).await?.rows_affected()
            }
        })
    }

    /// The rows of a query.
    pub(super) async fn rows(&mut self, sql: &str, binds: Vec<Bind>) -> Result<Vec<SqlRow>, StoreError> {
        let dialect = self.dialect();
        Ok(match self {
            Self::Sqlite(transaction, _) => {
                let query = prepare!(Sqlite, dialect, sql, binds);
                let rows = query.fetch_all(&mut **transaction).await?;
                rows.into_iter().map(SqlRow::Sqlite).collect()
            }
            Self::Postgres(transaction) => {
                let query = prepare!(Postgres, dialect, sql, binds);
                let rows = query.fetch_all(&mut **transaction).await?;
                rows.into_iter().map(SqlRow::Postgres).collect()
            }
            Self::MySql(transaction) => {
                let query = prepare!(MySql, dialect, sql, binds);
                let rows = query.fetch_all(&mut **transaction).await?;
                rows.into_iter().map(SqlRow::MySql).collect()
            }
        })
    }

    /// The first row of a query.
    pub(super) async fn row(&mut self, sql: &str, binds: Vec<Bind>) -> Result<Option<SqlRow>, StoreError> {
        Ok(self.rows(sql, binds).await?.into_iter().next())
    }

    pub(super) async fn commit(self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(transaction, _permit) => transaction.commit().await?,
            Self::Postgres(transaction) => transaction.commit().await?,
            Self::MySql(transaction) => transaction.commit().await?,
        }
        Ok(())
    }
}

fn invalid_url(error: sqlx::Error) -> StoreError {
    // The message names the part of the URL that is wrong, and no password.
    StoreError::Url(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_numbered_for_postgres() {
        let sql = "UPDATE t SET a = ? WHERE b = ?";
        assert_eq!(Dialect::Sqlite.statement(sql), sql);
        assert_eq!(
            Dialect::Postgres.statement(sql),
            "UPDATE t SET a = $1 WHERE b = $2"
        );
    }

    #[tokio::test]
    async fn unknown_url_is_rejected_without_its_text() {
        let error = SqlPool::open("oracle://user:secret@host/db").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
