//! Users, their sessions, and the link of the first run. Sessions and links are stored as hashes.
//!
//! Invariants: a session starts only with the present password of its user; one enabled
//! administrator remains, under a lock of the administrators; a changed password and a disabled or
//! removed user end the sessions of the user; the tokens that a disabled user created wait for a
//! confirmation; a removed user has no grants and no valid tokens; a link of the first run works
//! once, and only without users.
//!
//! Tests: `users_sessions_and_setup` and `last_admin_remains` in `tests/support/store_suite.rs`,
//! `tests/issued_tokens/creators.rs`.

use crate::store::sql::{SqlRow, SqlTransaction, binds};
use crate::store::tokens::{self, CreatorChange};
use crate::store::{Store, StoreError, alerts, audit};

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The name.
    pub name: String,
    /// The hash of the password; `None` for users that sign in by a proxy.
    pub password: Option<String>,
    /// True if the user has the role admin in all namespaces.
    pub is_admin: bool,
    /// True if the user cannot sign in.
    pub is_disabled: bool,
    /// The author.
    pub created_by: String,
    /// The time of the creation.
    pub created_at: i64,
}

/// A new user.
#[derive(Clone, Debug)]
pub struct NewAccount {
    /// The name.
    pub name: String,
    /// The hash of the password.
    pub password: Option<String>,
    /// True if the user has the role admin in all namespaces.
    pub is_admin: bool,
}

/// A session of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigninSession {
    /// The name of the user.
    pub account: String,
    /// The time of the end.
    pub expires_at: i64,
}

const COLUMNS: &str = "name, password, is_admin, disabled, created_by, created_at";

impl Account {
    fn read(row: &SqlRow) -> Result<Self, StoreError> {
        Ok(Self {
            name: row.text(0)?,
            password: row.optional_text(1)?,
            is_admin: row.flag(2)?,
            is_disabled: row.flag(3)?,
            created_by: row.text(4)?,
            created_at: row.int(5)?,
        })
    }
}

impl Store {
    /// Returns a user.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn account(&self, name: &str) -> Result<Option<Account>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM account WHERE name = ?");
        let row = self.pool.row(&sql, binds![name]).await?;
        row.as_ref().map(Account::read).transpose()
    }

    /// Returns all users in the order of their names.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn accounts(&self) -> Result<Vec<Account>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM account ORDER BY name");
        let rows = self.pool.rows(&sql, Vec::new()).await?;
        rows.iter().map(Account::read).collect()
    }

    /// Adds a user.
    ///
    /// # Errors
    ///
    /// [`StoreError::Exists`] when there is a user of this name.
    pub async fn add_account(&self, new: &NewAccount, author: &str, at: i64) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        insert(&mut transaction, new, author, at).await?;
        transaction.commit().await
    }

    /// Replaces the password of a user and ends the user's sessions.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] when there is no such user.
    pub async fn set_password(
        &self,
        name: &str,
        password: &str,
        author: &str,
        at: i64,
    ) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        let sql = "UPDATE account SET password = ? WHERE name = ?";
        if transaction.execute(sql, binds![password, name]).await? == 0 {
            return Err(StoreError::NotFound);
        }
        transaction
            .execute("DELETE FROM signin WHERE account = ?", binds![name])
            .await?;
        record(&mut transaction, author, "user.password", name, at).await?;
        transaction.commit().await
    }

    /// Changes the role and the state of a user; `None` keeps one of them. A disabled user has no
    /// sessions, and the tokens that the user created are suspended when the user becomes disabled.
    /// Those for the admin API are also suspended when the user is no administrator any more.
    ///
    /// # Errors
    ///
    /// [`StoreError::LastAdmin`] when no other enabled administrator exists.
    pub async fn change_account(
        &self,
        name: &str,
        is_admin: impl Into<Option<bool>>,
        is_disabled: impl Into<Option<bool>>,
        author: &str,
        at: i64,
    ) -> Result<(), StoreError> {
        self.require_writable()?;
        let (is_admin, is_disabled) = (is_admin.into(), is_disabled.into());
        let mut transaction = self.pool.begin().await?;
        // A role of the user can be removed at once; both changes may end the last right.
        alerts::lock(&mut transaction).await?;
        if is_admin == Some(false) || is_disabled == Some(true) {
            require_another_admin(&mut transaction, name).await?;
        }
        let sql = format!(
            "SELECT is_admin, disabled FROM account WHERE name = ?{}",
            transaction.dialect().for_update()
        );
        let before = transaction.row(&sql, binds![name]).await?;
        let before = before.ok_or(StoreError::NotFound)?;
        let (was_admin, was_disabled) = (before.flag(0)?, before.flag(1)?);
        let is_admin = is_admin.unwrap_or(was_admin);
        let is_disabled = is_disabled.unwrap_or(was_disabled);
        let sql = "UPDATE account SET is_admin = ?, disabled = ? WHERE name = ?";
        transaction
            .execute(sql, binds![is_admin, is_disabled, name])
            .await?;
        if is_disabled {
            transaction
                .execute("DELETE FROM signin WHERE account = ?", binds![name])
                .await?;
        }
        let change = match (is_disabled && !was_disabled, was_admin && !is_admin) {
            (true, _) => Some(CreatorChange::Disabled),
            (false, true) => Some(CreatorChange::Demoted),
            (false, false) => None,
        };
        if let Some(change) = change {
            tokens::reject_of(&mut transaction, name, change, (author, at)).await?;
        }
        let detail = account_detail(is_admin, is_disabled);
        record_with(&mut transaction, author, ("user.change", name), Some(detail), at).await?;
        transaction.commit().await
    }

    /// Removes a user with the user's sessions and grants, and revokes the tokens that the user
    /// created.
    ///
    /// # Errors
    ///
    /// [`StoreError::LastAdmin`] when no other enabled administrator exists.
    pub async fn remove_account(&self, name: &str, author: &str, at: i64) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        require_another_admin(&mut transaction, name).await?;
        let removed = transaction.execute("DELETE FROM account WHERE name = ?", binds![name]);
        if removed.await? == 0 {
            return Err(StoreError::NotFound);
        }
        transaction
            .execute("DELETE FROM signin WHERE account = ?", binds![name])
            .await?;
        let sql = "DELETE FROM role_grant WHERE subject_kind = 'user' AND subject = ?";
        transaction.execute(sql, binds![name]).await?;
        tokens::reject_of(&mut transaction, name, CreatorChange::Removed, (author, at)).await?;
        record(&mut transaction, author, "user.remove", name, at).await?;
        transaction.commit().await
    }

    /// Starts a session of a user whose password was verified, also on the schema of a newer
    /// program: readers sign in.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] when the user was disabled or removed meanwhile, or has another
    /// password.
    pub async fn start_signin(
        &self,
        hash: &str,
        verified: &Account,
        at: i64,
        expires_at: i64,
    ) -> Result<(), StoreError> {
        let account = verified.name.as_str();
        let mut transaction = self.pool.begin().await?;
        // The changes that end sessions lock the user first, too.
        let sql = format!(
            "SELECT {COLUMNS} FROM account WHERE name = ?{}",
            transaction.dialect().for_update()
        );
        let current = transaction.row(&sql, binds![account]).await?;
        let current = current.as_ref().map(Account::read).transpose()?;
        let current = current.ok_or(StoreError::NotFound)?;
        if current.is_disabled || current.password != verified.password {
            return Err(StoreError::NotFound);
        }
        transaction
            .execute("DELETE FROM signin WHERE expires_at <= ?", binds![at])
            .await?;
        let sql = "INSERT INTO signin (hash, account, created_at, expires_at) VALUES (?, ?, ?, ?)";
        transaction
            .execute(sql, binds![hash, account, at, expires_at])
            .await?;
        record(&mut transaction, account, "user.signin", account, at).await?;
        transaction.commit().await
    }

    /// Returns the session of a hash, if it has not ended.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn signin(&self, hash: &str, now: i64) -> Result<Option<SigninSession>, StoreError> {
        let sql = "SELECT account, expires_at FROM signin WHERE hash = ? AND expires_at > ?";
        let row = self.pool.row(sql, binds![hash, now]).await?;
        let session = row.map(|row| -> Result<SigninSession, StoreError> {
            Ok(SigninSession {
                account: row.text(0)?,
                expires_at: row.int(1)?,
            })
        });
        session.transpose()
    }

    /// Ends a session, also on the schema of a newer program.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn end_signin(&self, hash: &str) -> Result<(), StoreError> {
        let sql = "DELETE FROM signin WHERE hash = ?";
        self.pool.execute(sql, binds![hash]).await.map(|_| ())
    }

    /// Replaces the link of the first run, if there is no user yet. Returns whether there is none.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn offer_setup(&self, hash: &str, expires_at: i64) -> Result<bool, StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        if has_accounts(&mut transaction).await? {
            return Ok(false);
        }
        let sql = "INSERT INTO setup_link (hash, expires_at) VALUES (?, ?)";
        transaction.execute(sql, binds![hash, expires_at]).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// Returns whether the link of the first run is valid.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn is_setup_link(&self, hash: &str, now: i64) -> Result<bool, StoreError> {
        let sql = "SELECT hash FROM setup_link WHERE hash = ? AND expires_at > ?";
        Ok(self.pool.row(sql, binds![hash, now]).await?.is_some())
    }

    /// Creates the first administrator and ends all links of the first run.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] when the link is not valid, or was used.
    pub async fn complete_setup(&self, hash: &str, admin: &NewAccount, at: i64) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        let sql = "DELETE FROM setup_link WHERE hash = ? AND expires_at > ?";
        let used = transaction.execute(sql, binds![hash, at]).await?;
        if used == 0 || has_accounts(&mut transaction).await? {
            return Err(StoreError::NotFound);
        }
        transaction.execute("DELETE FROM setup_link", Vec::new()).await?;
        insert(&mut transaction, admin, "setup", at).await?;
        transaction.commit().await
    }
}

async fn has_accounts(transaction: &mut SqlTransaction) -> Result<bool, StoreError> {
    let row = transaction
        .row("SELECT COUNT(*) FROM account", Vec::new())
        .await?;
    Ok(row.map_or(Ok(0), |row| row.int(0))? > 0)
}

async fn insert(
    transaction: &mut SqlTransaction,
    new: &NewAccount,
    author: &str,
    at: i64,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO account (name, password, is_admin, disabled, created_by, created_at) VALUES (?, ?, ?, 0, ?, ?)";
    let binds = binds![&new.name, new.password.clone(), new.is_admin, author, at];
    match transaction.execute(sql, binds).await {
        Err(error) if error.is_duplicate() => return Err(StoreError::Exists),
        result => result?,
    };
    let detail = account_detail(new.is_admin, false);
    record_with(transaction, author, ("user.create", &new.name), Some(detail), at).await
}

/// Fails if a user is the only enabled administrator. Locks the administrators.
async fn require_another_admin(transaction: &mut SqlTransaction, name: &str) -> Result<(), StoreError> {
    let sql = format!(
        "SELECT name FROM account WHERE is_admin = 1 AND disabled = 0{}",
        transaction.dialect().for_update()
    );
    let mut admins = Vec::new();
    for row in transaction.rows(&sql, Vec::new()).await? {
        admins.push(row.text(0)?);
    }
    match admins.as_slice() {
        [only] if only == name => Err(StoreError::LastAdmin),
        _ => Ok(()),
    }
}

pub(super) async fn record(
    transaction: &mut SqlTransaction,
    actor: &str,
    action: &str,
    object: &str,
    at: i64,
) -> Result<(), StoreError> {
    record_with(transaction, actor, (action, object), None, at).await
}

/// Returns the role and the state of a user in words.
fn account_detail(is_admin: bool, is_disabled: bool) -> String {
    let role = if is_admin { "administrator" } else { "user" };
    let state = if is_disabled { "disabled" } else { "enabled" };
    format!("{role}, {state}")
}

async fn record_with(
    transaction: &mut SqlTransaction,
    actor: &str,
    (action, object): (&str, &str),
    detail: Option<String>,
    at: i64,
) -> Result<(), StoreError> {
    let entry = audit::NewEntry {
        namespace: "",
        actor,
        action,
        object,
        apps: None,
        detail,
        at,
    };
    audit::insert(transaction, entry).await
}
