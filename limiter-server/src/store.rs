//! The database of the control plane: policies with their history, users, tokens, grants, audit.
//!
//! A save is one transaction: the document, a revision, an audit row and an outbox row. Documents
//! are locked optimistically by their revision. `publish` moves the outbox to the registry in
//! force. One suite runs on all databases: `tests/store.rs`.

mod accounts;
mod alerts;
mod audit;
mod audit_lines;
mod denials;
mod document;
mod documents;
mod error;
mod events;
mod grants;
mod history;
mod library_usage;
mod migrations;
mod namespaces;
mod nodes;
mod proposals;
mod publication;
mod restoration;
mod retention;
mod save;
mod sql;
mod tasks;
mod tokens;
mod usage;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use crate::store::accounts::{Account, NewAccount, SigninSession};
pub use crate::store::alerts::Alert;
pub use crate::store::audit::{AuditEntry, AuditFilter, RecordedAction};
pub use crate::store::audit_lines::AuditLines;
pub use crate::store::denials::{DenialFilter, DenialSample};
pub use crate::store::document::{Author, DocumentKind, DocumentState, Origin, StoredDocument};
pub use crate::store::error::StoreError;
pub use crate::store::grants::{GrantedRole, StoredApp, StoredGrant, SubjectKind};
pub use crate::store::history::StoredRevision;
pub use crate::store::library_usage::LibraryUsage;
pub use crate::store::namespaces::NamespaceLook;
pub use crate::store::nodes::NodeRecord;
pub use crate::store::proposals::{NewProposal, ProposalFilter, ProposalState, StoredProposal};
pub use crate::store::publication::{ImportedDocument, OutsideChange, PendingDocument, Publication};
pub use crate::store::restoration::ChangeMark;
pub use crate::store::save::{Authorship, SaveFailure, SaveRequest, SavedDocument};
pub use crate::store::sql::Dialect;
use crate::store::sql::SqlPool;
pub use crate::store::tokens::{NewStoredToken, StoredToken, TokenChange, TokenIssuer};
pub use crate::store::usage::{UsageKind, UsagePoint, UsageSpan, UsageTotals};

/// The name of the document that contains the rules of a namespace.
pub const RULES: &str = "rules";
/// The name of the document that contains the suspensions and blocks of a namespace.
pub const OVERLAYS: &str = "overlays";

/// A database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    pool: SqlPool,
    /// The version of the schema, if a newer program has updated it.
    newer_schema: Option<i64>,
    id: String,
}

/// Returns the current time in microseconds since the Unix epoch.
#[must_use]
pub fn now_micros() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    micros(elapsed)
}

/// Returns a duration in microseconds.
#[must_use]
pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl Store {
    /// Connects to the database of a URL (`sqlite:`, `postgres:`, `mysql:`) and updates its schema.
    ///
    /// # Errors
    ///
    /// [`StoreError`] for an invalid URL and when the database does not answer.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let pool = SqlPool::open(url)?;
        let found = migrations::run(&pool).await?;
        let mut store = Self {
            pool,
            newer_schema: Some(found).filter(|found| *found > migrations::NEWEST),
            id: String::new(),
        };
        store.id = store.identify().await?;
        Ok(store)
    }

    /// As [`open`](Self::open), for a database that has tables of this program.
    ///
    /// # Errors
    ///
    /// [`StoreError::Missing`] for a database without them, which stays as it is.
    pub async fn open_existing(url: &str) -> Result<Self, StoreError> {
        let pool = SqlPool::open_existing(url)?;
        let version = pool.rows("SELECT MAX(version) FROM schema_version", Vec::new());
        let version = version.await;
        pool.close().await;
        version.map_err(|error| match error {
            StoreError::Database(cause @ sqlx::Error::Database(_)) => StoreError::Missing(cause),
            error => error,
        })?;
        Self::open(url).await
    }

    /// Selects where this process writes the entries of the audit besides the database.
    #[must_use]
    pub fn with_audit_lines(mut self, lines: AuditLines) -> Self {
        self.pool.write_audit_to(lines);
        self
    }

    /// Returns the product of the database.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.pool.dialect()
    }

    /// Returns whether a newer program has updated the schema, so that this one writes sessions
    /// only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.newer_schema.is_some()
    }

    /// Returns the identity of the database. A restored copy has the same one.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Closes the connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// Sends a statement to the database and waits for the reply.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when it does not.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.pool.rows("SELECT 1", Vec::new()).await.map(|_| ())
    }

    async fn identify(&self) -> Result<String, StoreError> {
        const SELECT: &str = "SELECT content FROM setting WHERE name = 'database'";
        if let Some(row) = self.pool.row(SELECT, Vec::new()).await? {
            return row.text(0);
        }
        let id = crate::secret::random_id();
        let insert = "INSERT INTO setting (name, content) VALUES ('database', ?)";
        match self.pool.execute(insert, sql::binds![&id]).await {
            Ok(_) => Ok(id),
            // Another node was faster.
            Err(error) if error.is_duplicate() => {
                let row = self.pool.row(SELECT, Vec::new()).await?;
                row.ok_or(StoreError::NotFound)?.text(0)
            }
            Err(error) => Err(error),
        }
    }

    fn require_writable(&self) -> Result<(), StoreError> {
        match self.newer_schema {
            None => Ok(()),
            Some(found) => Err(StoreError::NewerSchema {
                found,
                known: migrations::NEWEST,
            }),
        }
    }
}
