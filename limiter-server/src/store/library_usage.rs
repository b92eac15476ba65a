//! Counts of the decisions of library processes per policy and app, by minute and by hour.
//!
//! Redis has the sum of all processes for each minute, which only grows. The row of a minute is
//! replaced by a higher sum, and later the row of its hour by the sum of its minutes. Several nodes
//! therefore write the same rows in any order, and a node that starts again repeats its writes.
//! Tests: `tests/library_usage.rs`, `tests/support/store_suite.rs`.

use crate::store::sql::{Bind, Dialect, binds};
use crate::store::usage::{CHUNK, COUNTS, read_totals, sums};
use crate::store::{Store, StoreError, UsageKind, UsageSpan, UsageTotals};

/// The decisions of the library processes of an app under a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryUsage {
    /// The policy.
    pub policy: String,
    /// The app; empty for processes without one.
    pub app: String,
    /// The counts.
    pub totals: UsageTotals,
}

impl Store {
    /// Records the counts of the minute that contains a time. Counts that are lower than the
    /// recorded ones are ignored.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer. Nothing is recorded then.
    pub async fn record_library_usage(
        &self,
        namespace: &str,
        kind: UsageKind,
        at: i64,
        usage: &[LibraryUsage],
    ) -> Result<(), StoreError> {
        self.require_writable()?;
        let dialect = self.dialect();
        let mut transaction = self.pool.begin().await?;
        for chunk in usage.chunks(CHUNK) {
            let mut values: Vec<Bind> = Vec::with_capacity(chunk.len() * 9);
            for LibraryUsage { policy, app, totals } in chunk {
                let (span, start) = (kind.span_name(UsageSpan::Minute), UsageSpan::Minute.start(at));
                values.extend(binds![namespace, policy, app, span, start]);
                values.extend(totals.counts().map(Bind::from));
            }
            let rows = vec!["(?, ?, ?, ?, ?, ?, ?, ?, ?)"; chunk.len()].join(", ");
            let sql = replacing(dialect, &format!("VALUES {rows}"));
            transaction.execute(&sql, values).await?;
        }
        transaction.commit().await
    }

    /// Records the sums of the minutes of the hour that contains a time.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn sum_library_hour(&self, namespace: &str, at: i64) -> Result<(), StoreError> {
        self.require_writable()?;
        let (dialect, start) = (self.dialect(), UsageSpan::Hour.start(at));
        for kind in [UsageKind::Policy, UsageKind::Trial] {
            // The hour is part of the text: a database cannot deduce the type of a selected value.
            let minutes = format!(
                "SELECT namespace, policy, app, '{}', {start}, {} FROM library_usage \
                 WHERE namespace = ? AND span = ? AND start_at >= ? AND start_at < ? \
                 GROUP BY namespace, policy, app",
                kind.span_name(UsageSpan::Hour),
                sums(dialect)
            );
            let minute = kind.span_name(UsageSpan::Minute);
            let values = binds![namespace, minute, start, start + UsageSpan::Hour.micros()];
            self.pool.execute(&replacing(dialect, &minutes), values).await?;
        }
        Ok(())
    }

    /// Returns the sums from a time to a later one per policy and app, or of one policy, in this
    /// order.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn library_usage(
        &self,
        namespace: &str,
        policy: Option<&str>,
        span: UsageSpan,
        (from, to): (i64, i64),
    ) -> Result<Vec<LibraryUsage>, StoreError> {
        let mut values = binds![namespace, span.name(), from, to];
        values.extend(policy.map(Bind::from));
        let of_policy = if policy.is_some() { " AND policy = ?" } else { "" };
        let sql = format!(
            "SELECT policy, {}, app FROM library_usage \
             WHERE namespace = ? AND span = ? AND start_at >= ? AND start_at < ?{of_policy} \
             GROUP BY policy, app ORDER BY policy, app",
            sums(self.dialect())
        );
        let rows = self.pool.rows(&sql, values).await?;
        let usage = rows.iter().map(|row| {
            Ok(LibraryUsage {
                policy: row.text(0)?,
                totals: read_totals(row)?,
                app: row.text(5)?,
            })
        });
        usage.collect()
    }
}

/// Returns the statement that inserts these rows, or replaces lower counts.
fn replacing(dialect: Dialect, rows: &str) -> String {
    let on_duplicate = match dialect {
        Dialect::Sqlite | Dialect::Postgres => {
            "ON CONFLICT (namespace, span, start_at, policy, app) DO UPDATE SET"
        }
        Dialect::MySql => "ON DUPLICATE KEY UPDATE",
    };
    let highest = COUNTS.split(", ").map(|column| match dialect {
        Dialect::Sqlite => format!("{column} = MAX(library_usage.{column}, excluded.{column})"),
        Dialect::Postgres => format!("{column} = GREATEST(library_usage.{column}, excluded.{column})"),
        Dialect::MySql => format!("{column} = GREATEST(library_usage.{column}, VALUES({column}))"),
    });
    let highest: Vec<String> = highest.collect();
    format!(
        "INSERT INTO library_usage (namespace, policy, app, span, start_at, {COUNTS}) {rows} {on_duplicate} {}",
        highest.join(", ")
    )
}
