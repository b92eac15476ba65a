//! The connections to a database, and the selection of the database by the scheme of its URL.
//!
//! Each of SQLite, PostgreSQL and MySQL (MariaDB) has its own pool with the settings that the store
//! needs: WAL and full synchronization of SQLite, `READ COMMITTED` of MySQL, since locks of gaps
//! would let its inserts deadlock. A semaphore serializes the writers of SQLite in this process,
//! since the database lets waiting writers poll.
//!
//! Tests: `tests/store.rs`, `tests/store_mariadb.rs`, `tests/store_mysql.rs`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Executor as _;
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use tokio::sync::Semaphore;

use crate::store::StoreError;
use crate::store::audit_lines::AuditLines;
use crate::store::sql::connection::{PooledConnection, SqlConnection};
use crate::store::sql::{Bind, Dialect, SqlRow, SqlTransaction};

/// The time for which a caller waits for a connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which SQLite waits for another process that writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_CONNECTIONS: u32 = 8;

/// The connections to a database.
#[derive(Clone, Debug)]
pub(in crate::store) struct SqlPool {
    connections: Connections,
    audit_lines: AuditLines,
}

#[derive(Clone, Debug)]
enum Connections {
    /// The semaphore serializes the writers of this process, which would otherwise poll for the
    /// lock of the file.
    Sqlite(SqlitePool, Arc<Semaphore>),
    Postgres(PgPool),
    MySql(MySqlPool),
}

/// The handling of a missing SQLite file.
#[derive(Clone, Copy, Debug)]
enum IfMissing {
    Create,
    Fail,
}

impl SqlPool {
    /// Prepares connections to the database of a URL. Connects with the first statement.
    /// Creates the file of SQLite if it is absent.
    pub(in crate::store) fn open(url: &str) -> Result<Self, StoreError> {
        Self::connect(url, IfMissing::Create)
    }

    /// As [`open`](Self::open), and neither creates nor changes a file of SQLite, which may be that
    /// of another program.
    pub(in crate::store) fn open_existing(url: &str) -> Result<Self, StoreError> {
        Self::connect(url, IfMissing::Fail)
    }

    fn connect(url: &str, if_missing: IfMissing) -> Result<Self, StoreError> {
        let url = match url.strip_prefix("mariadb:") {
            Some(rest) => &format!("mysql:{rest}"),
            None => url,
        };
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        let connections = match scheme {
            "sqlite" => {
                let options: SqliteConnectOptions = url.parse().map_err(invalid_url)?;
                require_directory(options.get_filename())?;
                let options = match if_missing {
                    IfMissing::Create => options
                        .create_if_missing(true)
                        .journal_mode(SqliteJournalMode::Wal),
                    IfMissing::Fail => options.create_if_missing(false),
                };
                let options = options
                    .synchronous(SqliteSynchronous::Full)
                    .busy_timeout(BUSY_TIMEOUT);
                let pool = SqlitePoolOptions::new()
                    .max_connections(MAX_CONNECTIONS)
                    .acquire_timeout(ACQUIRE_TIMEOUT)
                    .connect_lazy_with(options);
                Ok(Connections::Sqlite(pool, Arc::new(Semaphore::new(1))))
            }
            "postgres" | "postgresql" => {
                let options: PgConnectOptions = url.parse().map_err(invalid_url)?;
                let pool = PgPoolOptions::new()
                    .max_connections(MAX_CONNECTIONS)
                    .acquire_timeout(ACQUIRE_TIMEOUT)
                    .connect_lazy_with(options.application_name("limiter-server"));
                Ok(Connections::Postgres(pool))
            }
            "mysql" => {
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
                Ok(Connections::MySql(pool))
            }
            _ => Err(StoreError::Url(
                "expected a database URL that begins with sqlite:, postgres: or mysql:".to_owned(),
            )),
        };
        Ok(Self {
            connections: connections?,
            audit_lines: AuditLines::default(),
        })
    }

    /// Selects where the entries of the audit are written besides the database.
    pub(in crate::store) fn write_audit_to(&mut self, lines: AuditLines) {
        self.audit_lines = lines;
    }

    pub(in crate::store) fn dialect(&self) -> Dialect {
        match &self.connections {
            Connections::Sqlite(..) => Dialect::Sqlite,
            Connections::Postgres(_) => Dialect::Postgres,
            Connections::MySql(_) => Dialect::MySql,
        }
    }

    /// Begins a transaction that writes.
    pub(in crate::store) async fn begin(&self) -> Result<SqlTransaction, StoreError> {
        let permit = match &self.connections {
            Connections::Sqlite(_, writer) => {
                let permit = Arc::clone(writer).acquire_owned().await;
                Some(permit.map_err(|_| StoreError::Closed)?)
            }
            Connections::Postgres(_) | Connections::MySql(_) => None,
        };
        SqlTransaction::begin(self.acquire().await?, permit, self.audit_lines).await
    }

    /// Returns the rows of a query outside of a transaction.
    pub(in crate::store) async fn rows(
        &self,
        sql: &str,
        binds: Vec<Bind>,
    ) -> Result<Vec<SqlRow>, StoreError> {
        self.acquire().await?.rows(sql, binds).await
    }

    /// Returns a connection that answers.
    async fn acquire(&self) -> Result<SqlConnection, StoreError> {
        let pooled = match &self.connections {
            Connections::Sqlite(pool, _) => PooledConnection::Sqlite(pool.acquire().await?),
            Connections::Postgres(pool) => PooledConnection::Postgres(pool.acquire().await?),
            Connections::MySql(pool) => PooledConnection::MySql(pool.acquire().await?),
        };
        Ok(SqlConnection::new(pooled))
    }

    /// Returns the first row of a query outside of a transaction.
    pub(in crate::store) async fn row(
        &self,
        sql: &str,
        binds: Vec<Bind>,
    ) -> Result<Option<SqlRow>, StoreError> {
        Ok(self.rows(sql, binds).await?.into_iter().next())
    }

    /// Runs one statement in a transaction of its own. Returns the number of affected rows.
    pub(in crate::store) async fn execute(&self, sql: &str, binds: Vec<Bind>) -> Result<u64, StoreError> {
        let mut transaction = self.begin().await?;
        let affected = transaction.execute(sql, binds).await?;
        transaction.commit().await?;
        Ok(affected)
    }

    pub(in crate::store) async fn close(&self) {
        match &self.connections {
            Connections::Sqlite(pool, _) => pool.close().await,
            Connections::Postgres(pool) => pool.close().await,
            Connections::MySql(pool) => pool.close().await,
        }
    }
}

/// Fails if the directory of a file of SQLite does not exist. The error of SQLite names no path.
fn require_directory(file: &Path) -> Result<(), StoreError> {
    let directory = file.parent().filter(|of| !of.as_os_str().is_empty());
    match directory {
        Some(directory) if !directory.is_dir() => {
            let reason = format!("there is no directory {} for the database", directory.display());
            Err(StoreError::Database(sqlx::Error::Configuration(reason.into())))
        }
        _ => Ok(()),
    }
}

fn invalid_url(error: sqlx::Error) -> StoreError {
    // The message names the part of the URL that is wrong, and no password.
    StoreError::Url(error.to_string())
}
