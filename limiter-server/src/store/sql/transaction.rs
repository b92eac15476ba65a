//! One transaction that writes.

use sqlx::{MySql, Postgres, Sqlite};
use tokio::sync::OwnedSemaphorePermit;

use crate::store::StoreError;
use crate::store::audit_lines::AuditLines;
use crate::store::sql::{Bind, Dialect, SqlRow, prepare};

/// A transaction that writes. It rolls back when it is dropped.
#[derive(Debug)]
pub(in crate::store) struct SqlTransaction {
    open: OpenTransaction,
    audit_lines: AuditLines,
    /// The entries of the audit that this transaction adds.
    audit: Vec<String>,
}

#[derive(Debug)]
pub(super) enum OpenTransaction {
    Sqlite(sqlx::Transaction<'static, Sqlite>, OwnedSemaphorePermit),
    Postgres(sqlx::Transaction<'static, Postgres>),
    MySql(sqlx::Transaction<'static, MySql>),
}

impl SqlTransaction {
    pub(super) fn new(open: OpenTransaction, audit_lines: AuditLines) -> Self {
        Self {
            open,
            audit_lines,
            audit: Vec::new(),
        }
    }

    pub(in crate::store) fn dialect(&self) -> Dialect {
        match &self.open {
            OpenTransaction::Sqlite(..) => Dialect::Sqlite,
            OpenTransaction::Postgres(_) => Dialect::Postgres,
            OpenTransaction::MySql(_) => Dialect::MySql,
        }
    }

    /// Runs a statement. Returns the number of affected rows.
    pub(in crate::store) async fn execute(&mut self, sql: &str, binds: Vec<Bind>) -> Result<u64, StoreError> {
        let dialect = self.dialect();
        Ok(match &mut self.open {
            OpenTransaction::Sqlite(transaction, _) => {
                let query = prepare!(Sqlite, dialect, sql, binds);
                query.execute(&mut **transaction).await?.rows_affected()
            }
            OpenTransaction::Postgres(transaction) => {
                let query = prepare!(Postgres, dialect, sql, binds);
                query.execute(&mut **transaction).await?.rows_affected()
            }
            OpenTransaction::MySql(transaction) => {
                let query = prepare!(MySql, dialect, sql, binds);
                query.execute(&mut **transaction).await?.rows_affected()
            }
        })
    }

    /// The rows of a query.
    pub(in crate::store) async fn rows(
        &mut self,
        sql: &str,
        binds: Vec<Bind>,
    ) -> Result<Vec<SqlRow>, StoreError> {
        let dialect = self.dialect();
        Ok(match &mut self.open {
            OpenTransaction::Sqlite(transaction, _) => {
                let query = prepare!(Sqlite, dialect, sql, binds);
                let rows = query.fetch_all(&mut **transaction).await?;
                rows.into_iter().map(SqlRow::Sqlite).collect()
            }
            OpenTransaction::Postgres(transaction) => {
                let query = prepare!(Postgres, dialect, sql, binds);
                let rows = query.fetch_all(&mut **transaction).await?;
                rows.into_iter().map(SqlRow::Postgres).collect()
            }
            OpenTransaction::MySql(transaction) => {
                let query = prepare!(MySql, dialect, sql, binds);
                let rows = query.fetch_all(&mut **transaction).await?;
                rows.into_iter().map(SqlRow::MySql).collect()
            }
        })
    }

    /// The first row of a query.
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

    pub(in crate::store) async fn commit(self) -> Result<(), StoreError> {
        match self.open {
            OpenTransaction::Sqlite(transaction, _permit) => transaction.commit().await?,
            OpenTransaction::Postgres(transaction) => transaction.commit().await?,
            OpenTransaction::MySql(transaction) => transaction.commit().await?,
        }
        self.audit_lines.write(&self.audit);
        Ok(())
    }
}
