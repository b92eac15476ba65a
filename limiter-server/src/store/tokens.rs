//! Bearer tokens of programs, as hashes.
//!
//! A token is valid until its end or its revocation, which can be in the future after a rotation.
//! Tokens of a restored database are suspended, because they may include revoked ones, and those of
//! a disabled user, until an administrator confirms them. So are those for the admin API of a user
//! that is no administrator any more. Each change and its audit entry are one transaction.
//!
//! Tests: `tokens_are_revoked_rotated_and_distrusted` in `tests/support/store_suite.rs`, and
//! `tests/issued_tokens.rs`.

use crate::store::sql::{SqlRow, SqlTransaction, binds};
use crate::store::{Store, StoreError, audit, now_micros};

/// A token. The secret itself is not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredToken {
    /// The identity, which is no secret.
    pub id: String,
    /// The SHA-256 of the secret.
    pub hash: String,
    /// The name that its creator gave.
    pub label: String,
    /// The namespace.
    pub namespace: String,
    /// The scopes, separated by spaces.
    pub scopes: String,
    /// The user that created it, also by another token. The token ends with this user.
    pub created_by: String,
    /// The time of the creation.
    pub created_at: i64,
    /// The time of the end.
    pub expires_at: i64,
    /// The time of the revocation.
    pub revoked_at: Option<i64>,
    /// True if an administrator must confirm the token, because the database was restored.
    pub is_suspended: bool,
    /// The day of the last use, in days since 1970.
    pub used_day: Option<i64>,
}

/// A new token.
#[derive(Clone, Debug)]
pub struct NewStoredToken {
    /// The identity.
    pub id: String,
    /// The SHA-256 of the secret.
    pub hash: String,
    /// The name.
    pub label: String,
    /// The namespace.
    pub namespace: String,
    /// The scopes, separated by spaces.
    pub scopes: String,
    /// The responsible user. The token ends with this user.
    pub created_by: String,
    /// The name in the audit: the creator, or a token of the creator.
    pub issued_by: String,
    /// The time of the creation.
    pub created_at: i64,
    /// The time of the end.
    pub expires_at: i64,
}

const COLUMNS: &str =
    "id, hash, label, namespace, scopes, created_by, created_at, expires_at, revoked_at, suspended, used_day";

impl StoredToken {
    fn read(row: &SqlRow) -> Result<Self, StoreError> {
        Ok(Self {
            id: row.text(0)?,
            hash: row.text(1)?,
            label: row.text(2)?,
            namespace: row.text(3)?,
            scopes: row.text(4)?,
            created_by: row.text(5)?,
            created_at: row.int(6)?,
            expires_at: row.int(7)?,
            revoked_at: row.optional_int(8)?,
            is_suspended: row.flag(9)?,
            used_day: row.optional_int(10)?,
        })
    }

    /// Returns whether the token is accepted.
    #[must_use]
    pub fn is_valid_at(&self, now: i64) -> bool {
        self.revoked_at.is_none_or(|at| at > now) && self.expires_at > now && !self.is_suspended
    }
}

/// The credential of a request for a token. It must be valid when the token is stored, because the
/// user can be removed between both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TokenIssuer {
    /// A command, or a user that a proxy names and that has no account.
    #[default]
    WithoutAccount,
    /// A session of a user with an account.
    Account,
    /// The token of this identity.
    Token(String),
}

/// A change of the state of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenChange {
    /// Ends a valid token.
    Revoke,
    /// Accepts a suspended token again.
    Confirm,
}

impl Store {
    /// Returns the tokens of a namespace, the newest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn tokens(&self, namespace: &str) -> Result<Vec<StoredToken>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM token WHERE namespace = ? ORDER BY created_at DESC, id");
        let rows = self.pool.rows(&sql, binds![namespace]).await?;
        rows.iter().map(StoredToken::read).collect()
    }

    /// Returns the token with this hash.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn token_by_hash(&self, hash: &str) -> Result<Option<StoredToken>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM token WHERE hash = ?");
        let row = self.pool.row(&sql, binds![hash]).await?;
        row.as_ref().map(StoredToken::read).transpose()
    }

    /// Returns the token with this identity.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn token(&self, namespace: &str, id: &str) -> Result<Option<StoredToken>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM token WHERE namespace = ? AND id = ?");
        let row = self.pool.row(&sql, binds![namespace, id]).await?;
        row.as_ref().map(StoredToken::read).transpose()
    }

    /// Adds a token that no request asks for, as [`issue_token`](Self::issue_token).
    ///
    /// # Errors
    ///
    /// As [`issue_token`](Self::issue_token).
    pub async fn add_token(
        &self,
        new: &NewStoredToken,
        replaced: Option<(&str, i64)>,
    ) -> Result<(), StoreError> {
        self.issue_token(new, replaced, &TokenIssuer::WithoutAccount)
            .await
    }

    /// Adds a token. If it replaces one, that token ends at the given time, or at the end of an
    /// earlier rotation if that is sooner. If the creator was disabled meanwhile, the token is
    /// suspended.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] when the replaced token has been revoked, or the issuer has been
    /// removed or revoked.
    pub async fn issue_token(
        &self,
        new: &NewStoredToken,
        replaced: Option<(&str, i64)>,
        issuer: &TokenIssuer,
    ) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        // A change of the user locks the row, too. Users of a proxy have none.
        let sql = format!(
            "SELECT disabled FROM account WHERE name = ?{}",
            transaction.dialect().for_update()
        );
        let creator = transaction.row(&sql, binds![&new.created_by]).await?;
        match issuer {
            TokenIssuer::WithoutAccount => {}
            TokenIssuer::Account if creator.is_some() => {}
            TokenIssuer::Account => return Err(StoreError::NotFound),
            TokenIssuer::Token(id) => {
                // A revocation since the start of the request has a later time than the new token.
                require_valid(&mut transaction, &new.namespace, id, now_micros()).await?;
            }
        }
        let is_suspended = creator.map_or(Ok(false), |row| row.flag(0))?;
        let sql = "INSERT INTO token (id, hash, label, namespace, scopes, created_by, created_at, expires_at, suspended) \
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
        let binds = binds![
            &new.id,
            &new.hash,
            &new.label,
            &new.namespace,
            &new.scopes,
            &new.created_by,
            new.created_at,
            new.expires_at,
            is_suspended,
        ];
        transaction.execute(sql, binds).await?;
        if let Some((id, ends_at)) = replaced {
            let sql = "UPDATE token SET revoked_at = \
                       CASE WHEN revoked_at IS NULL OR revoked_at > ? THEN ? ELSE revoked_at END \
                       WHERE namespace = ? AND id = ? AND (revoked_at IS NULL OR revoked_at > ?)";
            let binds = binds![ends_at, ends_at, &new.namespace, id, new.created_at];
            if transaction.execute(sql, binds).await? == 0 {
                return Err(StoreError::NotFound);
            }
        }
        let action = match replaced {
            Some(_) => "token.rotate",
            None => "token.create",
        };
        let entry = audit::NewEntry {
            namespace: &new.namespace,
            actor: &new.issued_by,
            action,
            object: &new.id,
            apps: None,
            detail: Some(format!("{}: {}", new.label, new.scopes)),
            at: new.created_at,
        };
        audit::insert(&mut transaction, entry).await?;
        transaction.commit().await
    }

    /// Changes the state of a token.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] when there is no such token.
    pub async fn change_token(
        &self,
        namespace: &str,
        id: &str,
        change: TokenChange,
        author: &str,
        at: i64,
    ) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        let (changed, action) = match change {
            TokenChange::Revoke => {
                let sql = "UPDATE token SET revoked_at = ? \
                           WHERE namespace = ? AND id = ? AND (revoked_at IS NULL OR revoked_at > ?)";
                let changed = transaction.execute(sql, binds![at, namespace, id, at]).await?;
                (changed, "token.revoke")
            }
            TokenChange::Confirm => {
                let sql = "UPDATE token SET suspended = 0 WHERE namespace = ? AND id = ? AND suspended = 1";
                let changed = transaction.execute(sql, binds![namespace, id]).await?;
                (changed, "token.confirm")
            }
        };
        if changed == 0 {
            return Err(StoreError::NotFound);
        }
        let entry = audit::NewEntry {
            namespace,
            actor: author,
            action,
            object: id,
            apps: None,
            detail: None,
            at,
        };
        audit::insert(&mut transaction, entry).await?;
        transaction.commit().await
    }

    /// Records the day of the last use.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn mark_token_used(&self, id: &str, day: i64) -> Result<(), StoreError> {
        self.require_writable()?;
        let sql = "UPDATE token SET used_day = ? WHERE id = ?";
        self.pool.execute(sql, binds![day, id]).await.map(|_| ())
    }
}

/// Fails if a token is not valid any more. Locks it until the end of the transaction.
async fn require_valid(
    transaction: &mut SqlTransaction,
    namespace: &str,
    id: &str,
    now: i64,
) -> Result<(), StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM token WHERE namespace = ? AND id = ?{}",
        transaction.dialect().for_update()
    );
    let row = transaction.row(&sql, binds![namespace, id]).await?;
    let token = row.as_ref().map(StoredToken::read).transpose()?;
    match token.is_some_and(|token| token.is_valid_at(now)) {
        true => Ok(()),
        false => Err(StoreError::NotFound),
    }
}

/// The beginning of the scopes of the admin API.
const ADMIN_SCOPE: &str = "admin:";

/// A change of a user that ends the tokens that the user created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CreatorChange {
    /// The tokens are suspended, because the user can be enabled again.
    Disabled,
    /// The tokens are revoked.
    Removed,
    /// The user is no administrator of a namespace any more. Tokens for the admin API are suspended
    /// in the namespaces that the user does not administrate.
    Demoted,
}

/// Rejects the tokens that a user created, also those of programs, each with an audit entry.
pub(super) async fn reject_of(
    transaction: &mut SqlTransaction,
    creator: &str,
    change: CreatorChange,
    (author, at): (&str, i64),
) -> Result<(), StoreError> {
    let (sql, action, reason) = match change {
        CreatorChange::Disabled => (
            "UPDATE token SET suspended = 1 WHERE id = ?",
            "token.suspend",
            "was disabled",
        ),
        CreatorChange::Removed => (
            "UPDATE token SET revoked_at = ? WHERE id = ?",
            "token.revoke",
            "was removed",
        ),
        CreatorChange::Demoted => (
            "UPDATE token SET suspended = 1 WHERE id = ?",
            "token.suspend",
            "is no administrator any more",
        ),
    };
    let valid = "SELECT namespace, id, label, scopes FROM token \
                 WHERE created_by = ? AND (revoked_at IS NULL OR revoked_at > ?)";
    for token in transaction.rows(valid, binds![creator, at]).await? {
        let (namespace, id, label) = (token.text(0)?, token.text(1)?, token.text(2)?);
        let scopes = token.text(3)?;
        let is_for_gateway = !scopes.split(' ').any(|scope| scope.starts_with(ADMIN_SCOPE));
        if change == CreatorChange::Demoted
            && (is_for_gateway || is_admin_of(transaction, creator, &namespace).await?)
        {
            continue;
        }
        let binds = match change {
            CreatorChange::Disabled | CreatorChange::Demoted => binds![&id],
            CreatorChange::Removed => binds![at, &id],
        };
        transaction.execute(sql, binds).await?;
        let entry = audit::NewEntry {
            namespace: &namespace,
            actor: author,
            action,
            object: &id,
            apps: None,
            detail: Some(format!("{label}: its creator {creator} {reason}")),
            at,
        };
        audit::insert(transaction, entry).await?;
    }
    Ok(())
}

/// Returns whether a user administrates a namespace, by the account or by a role.
async fn is_admin_of(
    transaction: &mut SqlTransaction,
    user: &str,
    namespace: &str,
) -> Result<bool, StoreError> {
    let sql = "SELECT name FROM account WHERE name = ? AND is_admin = 1";
    if transaction.row(sql, binds![user]).await?.is_some() {
        return Ok(true);
    }
    let sql = "SELECT role FROM role_grant WHERE namespace = ? AND subject_kind = 'user' AND subject = ? \
               AND app = '*' AND role = 'admin'";
    let role = transaction.row(sql, binds![namespace, user]).await?;
    Ok(role.is_some())
}
