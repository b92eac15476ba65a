//! Samples of denials: the most denied keys of each policy and hour.
//!
//! A source, which is the gateway of a process or the library processes of a namespace, records the
//! sums of an hour again and again while they grow. A row is replaced by a higher sum only, so
//! several nodes write the rows of library processes in any order. Tests: `tests/denials.rs`,
//! `tests/support/store_suite.rs`.

use std::collections::BTreeMap;

use crate::secret;
use crate::store::sql::{Bind, Dialect, SqlRow, binds};
use crate::store::usage::CHUNK;
use crate::store::{Store, StoreError, UsageSpan};

/// The columns after the primary key. `denied` is the last one: MySQL assigns in this order, and
/// the condition compares the previous value.
const COLUMNS: [&str; 10] = [
    "node",
    "app",
    "denied_key",
    "rule_text",
    "registry_revision",
    "origin",
    "first_at",
    "last_at",
    "overcount",
    "denied",
];

/// The denials of a key in one hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenialSample {
    /// The policy.
    pub policy: String,
    /// The start of the hour.
    pub start_at: i64,
    /// The name of the node whose gateway decided; empty for library processes.
    pub node: String,
    /// The app of library processes, empty for processes without one; `None` for the gateway.
    pub app: Option<String>,
    /// The parts of the key, separated by ` / `.
    pub key: String,
    /// The rule that led to the policy at the last denial; `None` if the client named the policy.
    pub rule: Option<String>,
    /// The revision of the registry at the last denial.
    pub revision: Option<i64>,
    /// The component that made the last denial.
    pub origin: Option<String>,
    /// The time of the first denial.
    pub first_at: i64,
    /// The time of the last denial.
    pub last_at: i64,
    /// The largest possible error of `denied`.
    pub error: i64,
    /// The number of denials, which is too high by `error` at most.
    pub denied: i64,
}

/// Selects the listed samples: those of hours that began from a time to a later one.
#[derive(Clone, Copy, Debug)]
pub struct DenialFilter<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// The policy; `None` for all.
    pub policy: Option<&'a str>,
    /// The key; `None` for all.
    pub key: Option<&'a str>,
    /// The start of the first hour, and the time before which the last one began.
    pub range: (i64, i64),
    /// The largest number of samples.
    pub limit: i64,
}

impl DenialSample {
    /// Adds another sample of the same identity. The circumstances are those of the later denial.
    fn add(&mut self, other: &Self) {
        let denied = self.denied.saturating_add(other.denied);
        let error = self.error.saturating_add(other.error);
        let first_at = self.first_at.min(other.first_at);
        if other.last_at >= self.last_at {
            self.clone_from(other);
        }
        (self.denied, self.error, self.first_at) = (denied, error, first_at);
    }

    /// Returns the identity of the sample in its hour and policy.
    fn id(&self, source: &str) -> String {
        let app = self
            .app
            .as_deref()
            .map_or("-".to_owned(), |app| format!("+{app}"));
        secret::hash(&format!("{source}\n{app}\n{}", self.key))
    }

    fn read(row: &SqlRow) -> Result<Self, StoreError> {
        Ok(Self {
            policy: row.text(0)?,
            start_at: row.int(1)?,
            node: row.text(2)?,
            app: row.optional_text(3)?,
            key: row.text(4)?,
            rule: row.optional_text(5)?,
            revision: row.optional_int(6)?,
            origin: row.optional_text(7)?,
            first_at: row.int(8)?,
            last_at: row.int(9)?,
            error: row.int(10)?,
            denied: row.int(11)?,
        })
    }
}

impl Store {
    /// Records samples of a source. Samples that are lower than the recorded ones are ignored, and
    /// those of one identity are summed: keys can differ in a part that is not stored.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer. Nothing is recorded then.
    pub async fn record_denials(
        &self,
        namespace: &str,
        source: &str,
        samples: &[DenialSample],
    ) -> Result<(), StoreError> {
        self.require_writable()?;
        // A statement of PostgreSQL changes a row only once. The order of all nodes is equal, so
        // that their locks of rows do not end each other.
        let mut merged: BTreeMap<(i64, &str, String), DenialSample> = BTreeMap::new();
        for sample in samples {
            let start = UsageSpan::Hour.start(sample.start_at);
            let id = (start, sample.policy.as_str(), sample.id(source));
            let summed = merged.entry(id).and_modify(|sum| sum.add(sample));
            summed.or_insert_with(|| sample.clone());
        }
        let merged: Vec<_> = merged.into_iter().collect();
        let mut transaction = self.pool.begin().await?;
        for chunk in merged.chunks(CHUNK) {
            let mut values: Vec<Bind> = Vec::with_capacity(chunk.len() * 14);
            for ((start, policy, id), sample) in chunk {
                values.extend(binds![namespace, *start, *policy, id]);
                values.extend(binds![
                    &sample.node,
                    sample.app.clone(),
                    &sample.key,
                    sample.rule.clone(),
                    sample.revision,
                    sample.origin.clone(),
                    sample.first_at,
                    sample.last_at,
                    sample.error,
                    sample.denied,
                ]);
            }
            let sql = replacing(self.dialect(), chunk.len());
            transaction.execute(&sql, values).await?;
        }
        transaction.commit().await
    }

    /// Returns the samples of a namespace, the most denied first.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn denials(&self, filter: DenialFilter<'_>) -> Result<Vec<DenialSample>, StoreError> {
        let mut sql = format!(
            "SELECT policy, start_at, {} FROM denial_sample WHERE namespace = ? AND start_at >= ? AND start_at < ?",
            COLUMNS.join(", ")
        );
        let mut values = binds![filter.namespace, filter.range.0, filter.range.1];
        for (column, wanted) in [("policy", filter.policy), ("denied_key", filter.key)] {
            if let Some(wanted) = wanted {
                sql.push_str(&format!(" AND {column} = ?"));
                values.push(wanted.into());
            }
        }
        sql.push_str(" ORDER BY denied DESC, last_at DESC LIMIT ?");
        values.push(filter.limit.into());
        let rows = self.pool.rows(&sql, values).await?;
        rows.iter().map(DenialSample::read).collect()
    }

    /// Removes the samples of hours that began before a time. Returns their number.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn prune_denials(&self, before: i64) -> Result<u64, StoreError> {
        self.require_writable()?;
        let sql = "DELETE FROM denial_sample WHERE start_at < ?";
        self.remove_many(sql, binds![before]).await
    }
}

/// Returns the statement that inserts this number of rows, or replaces lower counts.
fn replacing(dialect: Dialect, rows: usize) -> String {
    let values = vec!["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"; rows].join(", ");
    let columns = COLUMNS.join(", ");
    let (on_duplicate, assigned) = match dialect {
        Dialect::Sqlite | Dialect::Postgres => {
            let assigned = COLUMNS.map(|column| format!("{column} = excluded.{column}"));
            let on_duplicate = "ON CONFLICT (namespace, start_at, policy, sample) DO UPDATE SET";
            let condition = " WHERE excluded.denied >= denial_sample.denied";
            (on_duplicate, assigned.join(", ") + condition)
        }
        Dialect::MySql => {
            let assigned = COLUMNS
                .map(|column| format!("{column} = IF(VALUES(denied) >= denied, VALUES({column}), {column})"));
            ("ON DUPLICATE KEY UPDATE", assigned.join(", "))
        }
    };
    format!(
        "INSERT INTO denial_sample (namespace, start_at, policy, sample, {columns}) VALUES {values} \
         {on_duplicate} {assigned}"
    )
}
