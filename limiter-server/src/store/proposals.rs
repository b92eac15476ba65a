//! Changes that wait for the approval of an owner.
//!
//! A proposal states the revision that its author read and the whole text. An approval decides the
//! proposal and saves the text in one transaction, so it conflicts if the policy has changed since.
//!
//! Invariant: a proposal is decided once, which the condition `state = 'open'` of the update
//! ensures. Tests: `proposal_is_decided_once` in `tests/support/store_suite.rs`, and
//! `tests/control_plane/proposals.rs`.

use crate::store::document::{read_apps, write_apps};
use crate::store::save::{lock_namespace, save_in};
use crate::store::sql::{SqlRow, SqlTransaction, binds};
use crate::store::{Author, SaveRequest, SavedDocument, Store, StoreError, StoredDocument, audit};

/// The state of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProposalState {
    /// Waits for a decision.
    Open,
    /// Saved as a revision.
    Approved,
    /// Declined by an owner, or withdrawn by its author.
    Rejected,
}

impl ProposalState {
    /// Returns the name in the database and in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Approved => "approved",
            Self::Rejected => "rejected",
        }
    }

    fn parse(name: &str) -> Self {
        match name {
            "approved" => Self::Approved,
            "rejected" => Self::Rejected,
            _ => Self::Open,
        }
    }
}

/// A proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredProposal {
    /// The identity.
    pub id: String,
    /// The namespace.
    pub namespace: String,
    /// The name of the policy.
    pub name: String,
    /// The revision that the author read.
    pub base: i64,
    /// The proposed text.
    pub body: String,
    /// The apps of the policy; `None` for all.
    pub apps: Option<Vec<String>>,
    /// The reason.
    pub reason: Option<String>,
    /// The author.
    pub author: String,
    /// The time.
    pub created_at: i64,
    /// The state.
    pub state: ProposalState,
    /// The user that decided.
    pub decided_by: Option<String>,
    /// The time of the decision.
    pub decided_at: Option<i64>,
}

/// A new proposal.
#[derive(Clone, Debug)]
pub struct NewProposal {
    /// The namespace.
    pub namespace: String,
    /// The name of the policy.
    pub name: String,
    /// The revision that the author read.
    pub base: i64,
    /// The proposed text.
    pub body: String,
    /// The apps of the policy; `None` for all.
    pub apps: Option<Vec<String>>,
}

/// Selects the listed proposals.
#[derive(Clone, Debug)]
pub struct ProposalFilter {
    /// True if decided proposals are left out.
    pub is_open: bool,
    /// The last proposal of the previous page.
    pub after: Option<StoredProposal>,
    /// The largest number of proposals.
    pub limit: i64,
}

const COLUMNS: &str =
    "id, namespace, name, base, body, apps, reason, author, created_at, state, decided_by, decided_at";

impl StoredProposal {
    fn read(row: &SqlRow) -> Result<Self, StoreError> {
        Ok(Self {
            id: row.text(0)?,
            namespace: row.text(1)?,
            name: row.text(2)?,
            base: row.int(3)?,
            body: row.text(4)?,
            apps: read_apps(row.optional_text(5)?.as_deref()),
            reason: row.optional_text(6)?,
            author: row.text(7)?,
            created_at: row.int(8)?,
            state: ProposalState::parse(&row.text(9)?),
            decided_by: row.optional_text(10)?,
            decided_at: row.optional_int(11)?,
        })
    }
}

impl Store {
    /// Returns the proposals of a namespace, the newest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn proposals(
        &self,
        namespace: &str,
        filter: &ProposalFilter,
    ) -> Result<Vec<StoredProposal>, StoreError> {
        let open = match filter.is_open {
            true => " AND state = 'open'",
            false => "",
        };
        let (time, id) = match &filter.after {
            None => (i64::MAX, ""),
            Some(last) => (last.created_at, last.id.as_str()),
        };
        let sql = format!(
            "SELECT {COLUMNS} FROM proposal WHERE namespace = ?{open} AND (created_at < ? OR (created_at = ? AND id > ?)) \
             ORDER BY created_at DESC, id LIMIT ?"
        );
        let binds = binds![namespace, time, time, id, filter.limit];
        let rows = self.pool.rows(&sql, binds).await?;
        rows.iter().map(StoredProposal::read).collect()
    }

    /// Returns a proposal.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn proposal(&self, namespace: &str, id: &str) -> Result<Option<StoredProposal>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM proposal WHERE namespace = ? AND id = ?");
        let row = self.pool.row(&sql, binds![namespace, id]).await?;
        row.as_ref().map(StoredProposal::read).transpose()
    }

    /// Adds a proposal and returns its identity.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn propose(&self, new: &NewProposal, author: &Author) -> Result<String, StoreError> {
        self.require_writable()?;
        let id = crate::secret::random_id();
        let mut transaction = self.pool.begin().await?;
        let sql = "INSERT INTO proposal (id, namespace, name, base, body, apps, reason, author, created_at, state) \
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'open')";
        let apps = write_apps(new.apps.as_deref());
        let binds = binds![
            &id,
            &new.namespace,
            &new.name,
            new.base,
            &new.body,
            apps.clone(),
            author.reason.clone(),
            &author.name,
            author.at,
        ];
        transaction.execute(sql, binds).await?;
        let entry = audit::NewEntry {
            namespace: &new.namespace,
            actor: &author.name,
            action: "proposal.create",
            object: &new.name,
            apps,
            detail: Some(format!("proposal {id}")),
            at: author.at,
        };
        audit::insert(&mut transaction, entry).await?;
        transaction.commit().await?;
        Ok(id)
    }

    /// Approves a proposal and saves it in one transaction, if the documents of the namespace pass
    /// a check.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] when the proposal is not open, [`StoreError::Conflict`] when the
    /// policy has changed since, [`StoreError::Inconsistent`] with the reason of the check.
    pub async fn approve(
        &self,
        id: &str,
        request: &SaveRequest,
        author: &Author,
        check: impl Fn(&[StoredDocument]) -> Result<(), String> + Send + Sync,
    ) -> Result<SavedDocument, StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        let before = lock_namespace(&mut transaction, &request.namespace).await?;
        decide(
            &mut transaction,
            (&request.namespace, id),
            ProposalState::Approved,
            author,
        )
        .await?;
        let saved = save_in(&mut transaction, request, author).await?;
        check(&before).map_err(StoreError::Inconsistent)?;
        transaction.commit().await?;
        Ok(saved)
    }

    /// Rejects a proposal.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] when the proposal is not open.
    pub async fn reject(&self, namespace: &str, id: &str, author: &Author) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        decide(&mut transaction, (namespace, id), ProposalState::Rejected, author).await?;
        transaction.commit().await
    }
}

async fn decide(
    transaction: &mut SqlTransaction,
    (namespace, id): (&str, &str),
    state: ProposalState,
    author: &Author,
) -> Result<(), StoreError> {
    let sql = "UPDATE proposal SET state = ?, decided_by = ?, decided_at = ? \
               WHERE namespace = ? AND id = ? AND state = 'open'";
    let binds = binds![state.name(), &author.name, author.at, namespace, id];
    if transaction.execute(sql, binds).await? == 0 {
        return Err(StoreError::NotFound);
    }
    let sql = "SELECT name, apps FROM proposal WHERE namespace = ? AND id = ?";
    let row = transaction.row(sql, binds![namespace, id]).await?;
    let row = row.ok_or(StoreError::NotFound)?;
    let reason = author.reason.as_ref().map(|reason| format!(": {reason}"));
    let entry = audit::NewEntry {
        namespace,
        actor: &author.name,
        action: match state {
            ProposalState::Rejected => "proposal.reject",
            ProposalState::Approved | ProposalState::Open => "proposal.approve",
        },
        object: &row.text(0)?,
        apps: row.optional_text(1)?,
        detail: Some(format!("proposal {id}{}", reason.unwrap_or_default())),
        at: author.at,
    };
    audit::insert(transaction, entry).await
}
