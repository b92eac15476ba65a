//! Counts of decisions per policy, by minute and by hour.
//!
//! Counts are added, so several nodes write the same rows. Each addition goes to the row of its
//! minute and to the row of its hour, so removal of old minutes loses nothing of the hours. Tests:
//! `tests/support/store_suite.rs` (`usage_is_summed_by_minute_and_hour`).

use crate::store::sql::{Bind, Dialect, SqlRow, binds};
use crate::store::{Store, StoreError};

/// The number of rows of one statement. SQLite accepts at least 999 values.
pub(super) const CHUNK: usize = 50;
pub(super) const COUNTS: &str = "allowed, denied, would_deny, failed";

/// The length of the time of one count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageSpan {
    /// One minute.
    Minute,
    /// One hour.
    Hour,
}

/// The counted decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UsageKind {
    /// The decisions of the policy.
    Policy,
    /// The decisions of its trial values.
    Trial,
    /// The decisions of the policy without the store: by the local fallback or by the failure mode
    /// of the policy. Calls that failed because the store did not answer count as failed. They are
    /// among the decisions of the policy. Library processes do not report them.
    WithoutStore,
    /// The invalid requests, as failed calls. They are among those of the policy. Library processes
    /// do not report them.
    Invalid,
}

/// The kinds of rows have spans of their own in the database, so a program of the previous version
/// reads the decisions of policies alone.
impl UsageKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Policy, Self::Trial, Self::WithoutStore, Self::Invalid];

    /// Returns the span in the database.
    pub(super) fn span_name(self, span: UsageSpan) -> &'static str {
        match (self, span) {
            (Self::Policy, span) => span.name(),
            (Self::Trial, UsageSpan::Minute) => "trial_minute",
            (Self::Trial, UsageSpan::Hour) => "trial_hour",
            (Self::WithoutStore, UsageSpan::Minute) => "outage_minute",
            (Self::WithoutStore, UsageSpan::Hour) => "outage_hour",
            (Self::Invalid, UsageSpan::Minute) => "invalid_minute",
            (Self::Invalid, UsageSpan::Hour) => "invalid_hour",
        }
    }
}

impl UsageSpan {
    /// Returns the name in the database and in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
        }
    }

    /// Returns the length in microseconds.
    #[must_use]
    pub fn micros(self) -> i64 {
        match self {
            Self::Minute => 60_000_000,
            Self::Hour => 3_600_000_000,
        }
    }

    /// Returns the start of the span that contains a time.
    #[must_use]
    pub fn start(self, at: i64) -> i64 {
        at.saturating_sub(at.rem_euclid(self.micros()))
    }
}

/// The decisions of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageTotals {
    /// Calls that passed.
    pub allowed: i64,
    /// Calls that were denied.
    pub denied: i64,
    /// Calls that passed in shadow mode and would have been denied.
    pub would_deny: i64,
    /// Calls without a decision, by an error or an invalid request.
    pub failed: i64,
}

impl UsageTotals {
    /// Returns the counts, in the order of the columns.
    #[must_use]
    pub fn counts(self) -> [i64; 4] {
        [self.allowed, self.denied, self.would_deny, self.failed]
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            allowed: self.allowed.saturating_add(other.allowed),
            denied: self.denied.saturating_add(other.denied),
            would_deny: self.would_deny.saturating_add(other.would_deny),
            failed: self.failed.saturating_add(other.failed),
        }
    }

    /// Returns the number of calls.
    #[must_use]
    pub fn calls(self) -> i64 {
        self.counts().into_iter().fold(0, i64::saturating_add)
    }
}

/// The counts of a policy in one span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsagePoint {
    /// The start of the span.
    pub start_at: i64,
    /// The counts.
    pub totals: UsageTotals,
}

impl Store {
    /// Adds the counts of some policies at a time.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer. Nothing is added then.
    pub async fn add_usage(
        &self,
        namespace: &str,
        kind: UsageKind,
        at: i64,
        counts: &[(String, UsageTotals)],
    ) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        for span in [UsageSpan::Minute, UsageSpan::Hour] {
            for chunk in counts.chunks(CHUNK) {
                let sql = addition(self.dialect(), chunk.len());
                let mut values: Vec<Bind> = Vec::with_capacity(chunk.len() * 8);
                for (policy, totals) in chunk {
                    values.extend(binds![namespace, policy, kind.span_name(span), span.start(at)]);
                    values.extend(totals.counts().map(Bind::from));
                }
                transaction.execute(&sql, values).await?;
            }
        }
        transaction.commit().await
    }

    /// Returns the counts of a policy from a time to a later one, by the gateway and by library
    /// processes, the oldest first. Spans without a decision have no point.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn usage(
        &self,
        (namespace, policy): (&str, &str),
        kind: UsageKind,
        span: UsageSpan,
        (from, to): (i64, i64),
    ) -> Result<Vec<UsagePoint>, StoreError> {
        let range = "namespace = ? AND span = ? AND start_at >= ? AND start_at < ? AND policy = ?";
        let source = sources(range);
        let sums = sums(self.dialect());
        let sql = format!("SELECT start_at, {sums} FROM {source} GROUP BY start_at ORDER BY start_at");
        let mut values = binds![namespace, kind.span_name(span), from, to, policy];
        values.extend(binds![namespace, kind.span_name(span), from, to, policy]);
        let rows = self.pool.rows(&sql, values).await?;
        let points = rows.iter().map(|row| {
            Ok(UsagePoint {
                start_at: row.int(0)?,
                totals: read_totals(row)?,
            })
        });
        points.collect()
    }

    /// Returns the sum of the counts of a policy from a time to a later one.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn usage_sum(
        &self,
        of: (&str, &str),
        kind: UsageKind,
        span: UsageSpan,
        range: (i64, i64),
    ) -> Result<UsageTotals, StoreError> {
        let points = self.usage(of, kind, span, range).await?;
        let totals = points.iter().map(|point| point.totals);
        Ok(totals.fold(UsageTotals::default(), UsageTotals::plus))
    }

    /// Returns the sums of all policies from a time to a later one, by the gateway and by library
    /// processes, in the order of their names.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn usage_by_policy(
        &self,
        namespace: &str,
        span: UsageSpan,
        (from, to): (i64, i64),
    ) -> Result<Vec<(String, UsageTotals)>, StoreError> {
        let source = sources("namespace = ? AND span = ? AND start_at >= ? AND start_at < ?");
        let sums = sums(self.dialect());
        let sql = format!("SELECT policy, {sums} FROM {source} GROUP BY policy ORDER BY policy");
        let mut values = binds![namespace, span.name(), from, to];
        values.extend(binds![namespace, span.name(), from, to]);
        let rows = self.pool.rows(&sql, values).await?;
        rows.iter()
            .map(|row| Ok((row.text(0)?, read_totals(row)?)))
            .collect()
    }
}

/// Returns the rows of both tables under a condition. Its values are bound once for each table.
fn sources(condition: &str) -> String {
    let select = |table: &str| format!("SELECT start_at, policy, {COUNTS} FROM {table} WHERE {condition}");
    format!(
        "({} UNION ALL {}) AS usages",
        select("usage_count"),
        select("library_usage")
    )
}

/// Returns the sums of the counts. They are decimals in PostgreSQL and MySQL otherwise.
pub(super) fn sums(dialect: Dialect) -> String {
    let integer = match dialect {
        Dialect::MySql => "SIGNED",
        Dialect::Sqlite | Dialect::Postgres => "BIGINT",
    };
    let sums = COUNTS
        .split(", ")
        .map(|column| format!("CAST(SUM({column}) AS {integer})"));
    sums.collect::<Vec<_>>().join(", ")
}

/// Returns the statement that adds this number of rows.
fn addition(dialect: Dialect, rows: usize) -> String {
    let values = vec!["(?, ?, ?, ?, ?, ?, ?, ?)"; rows].join(", ");
    let on_duplicate = match dialect {
        Dialect::Sqlite | Dialect::Postgres => {
            "ON CONFLICT (namespace, span, start_at, policy) DO UPDATE SET"
        }
        Dialect::MySql => "ON DUPLICATE KEY UPDATE",
    };
    let sums = COUNTS.split(", ").map(|column| match dialect {
        Dialect::Sqlite | Dialect::Postgres => {
            format!("{column} = usage_count.{column} + excluded.{column}")
        }
        Dialect::MySql => format!("{column} = {column} + VALUES({column})"),
    });
    let sums: Vec<String> = sums.collect();
    format!(
        "INSERT INTO usage_count (namespace, policy, span, start_at, {COUNTS}) VALUES {values} {on_duplicate} {}",
        sums.join(", ")
    )
}

/// Returns the counts of a row, after its first column.
pub(super) fn read_totals(row: &SqlRow) -> Result<UsageTotals, StoreError> {
    Ok(UsageTotals {
        allowed: row.int(1)?,
        denied: row.int(2)?,
        would_deny: row.int(3)?,
        failed: row.int(4)?,
    })
}
