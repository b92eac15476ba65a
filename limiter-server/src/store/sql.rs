//! One form of statements and rows for SQLite, PostgreSQL and MySQL.
//!
//! Statements use `?` for values, which becomes `$1` for PostgreSQL. Columns have one of two types,
//! text and a signed integer of 64 bits, so that one statement serves all databases. Tests: below.

mod connection;
mod pool;
mod transaction;

use std::time::Duration;

use sqlx::Row as _;
use sqlx::mysql::MySqlRow;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;

use crate::store::StoreError;
pub(super) use crate::store::sql::pool::SqlPool;
pub(super) use crate::store::sql::transaction::SqlTransaction;

/// The longest time of a statement. A database that is stopped or unreachable keeps connections
/// open.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time of a statement that reads or writes a whole table, as migrations do.
pub(super) const TABLE_TIMEOUT: Duration = Duration::from_secs(600);

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
    /// Returns the name of the product.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
            Self::MySql => "MariaDB or MySQL",
        }
    }

    /// Returns the clause that locks the selected rows until the end of the transaction.
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

/// A query with its values.
macro_rules! prepare {
    ($database:ty, $dialect:expr, $sql:expr, $binds:expr) => {{
        let statement = sqlx::AssertSqlSafe($dialect.statement($sql));
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
use prepare;

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
