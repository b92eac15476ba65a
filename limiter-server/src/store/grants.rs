//! Apps with their bounds, and the roles of users and groups.
//!
//! A grant is a role of a user or of a group in one app, or with `*` in all apps of the namespace.
//! A change of a grant or of an app and its audit entry are one transaction, which also suspends
//! the tokens for the admin API of a user that is no administrator any more.
//!
//! Invariant: a user or group has at most one role in an app. Test: `grants_are_replaced` in
//! `tests/support/store_suite.rs`.

use crate::store::sql::{SqlRow, SqlTransaction, binds};
use crate::store::tokens::{self, CreatorChange};
use crate::store::{Store, StoreError, alerts, audit};

/// A kind of holder of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SubjectKind {
    /// A user.
    User,
    /// A group of a trusted proxy's header.
    Group,
}

impl SubjectKind {
    /// Returns the name in the database and in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
        }
    }

    /// Returns the kind of a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "user" => Some(Self::User),
            "group" => Some(Self::Group),
            _ => None,
        }
    }
}

/// A role of a user or group in an app; `*` for all apps of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredGrant {
    /// The namespace.
    pub namespace: String,
    /// The kind of the holder.
    pub subject_kind: SubjectKind,
    /// The name of the user or group.
    pub subject: String,
    /// The app.
    pub app: String,
    /// The name of the role.
    pub role: String,
    /// The author.
    pub created_by: String,
    /// The time of the grant.
    pub created_at: i64,
}

/// A role in an app of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedRole {
    /// The namespace.
    pub namespace: String,
    /// The app; `*` for all.
    pub app: String,
    /// The name of the role.
    pub role: String,
}

/// An app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredApp {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The bounds of editors as JSON; `None` for no bounds.
    pub bounds: Option<String>,
    /// The author.
    pub created_by: String,
    /// The time of the creation.
    pub created_at: i64,
}

const COLUMNS: &str = "namespace, subject_kind, subject, app, role, created_by, created_at";

impl StoredGrant {
    fn read(row: &SqlRow) -> Result<Self, StoreError> {
        Ok(Self {
            namespace: row.text(0)?,
            subject_kind: SubjectKind::parse(&row.text(1)?).unwrap_or(SubjectKind::User),
            subject: row.text(2)?,
            app: row.text(3)?,
            role: row.text(4)?,
            created_by: row.text(5)?,
            created_at: row.int(6)?,
        })
    }
}

impl Store {
    /// Returns the grants of a namespace.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn grants(&self, namespace: &str) -> Result<Vec<StoredGrant>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM role_grant WHERE namespace = ? ORDER BY app, subject_kind, subject"
        );
        let rows = self.pool.rows(&sql, binds![namespace]).await?;
        rows.iter().map(StoredGrant::read).collect()
    }

    /// Returns the roles of a user with these groups in all namespaces.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn roles_of(&self, user: &str, groups: &[String]) -> Result<Vec<GrantedRole>, StoreError> {
        let mut sql =
            "SELECT namespace, app, role FROM role_grant WHERE (subject_kind = 'user' AND subject = ?)"
                .to_owned();
        let mut values = binds![user];
        for group in groups {
            sql.push_str(" OR (subject_kind = 'group' AND subject = ?)");
            values.push(group.into());
        }
        let rows = self.pool.rows(&sql, values).await?;
        let roles = rows.iter().map(|row| {
            Ok(GrantedRole {
                namespace: row.text(0)?,
                app: row.text(1)?,
                role: row.text(2)?,
            })
        });
        roles.collect()
    }

    /// Gives a user or group a role in an app, in place of its previous role there.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn set_grant(&self, grant: &StoredGrant) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        // Two administrators can add it at once.
        alerts::lock(&mut transaction).await?;
        let kind = grant.subject_kind.name();
        let holder = (grant.subject_kind, grant.subject.as_str());
        let was_admin = is_admin_role(&mut transaction, &grant.namespace, holder, &grant.app).await?;
        let sql =
            "DELETE FROM role_grant WHERE namespace = ? AND subject_kind = ? AND subject = ? AND app = ?";
        let key = binds![&grant.namespace, kind, &grant.subject, &grant.app];
        transaction.execute(sql, key).await?;
        let sql = "INSERT INTO role_grant (namespace, subject_kind, subject, app, role, created_by, created_at) \
                   VALUES (?, ?, ?, ?, ?, ?, ?)";
        let binds = binds![
            &grant.namespace,
            kind,
            &grant.subject,
            &grant.app,
            &grant.role,
            &grant.created_by,
            grant.created_at,
        ];
        transaction.execute(sql, binds).await?;
        let entry = audit::NewEntry {
            namespace: &grant.namespace,
            actor: &grant.created_by,
            action: "grant.set",
            object: &grant.subject,
            apps: Some(serde_json::json!([grant.app]).to_string()),
            detail: Some(format!(
                "{kind} {}: {} of {}",
                grant.subject, grant.role, grant.app
            )),
            at: grant.created_at,
        };
        audit::insert(&mut transaction, entry).await?;
        if was_admin {
            let by = (grant.created_by.as_str(), grant.created_at);
            tokens::reject_of(&mut transaction, &grant.subject, CreatorChange::Demoted, by).await?;
        }
        transaction.commit().await
    }

    /// Takes a role away.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] when there is no such grant.
    pub async fn remove_grant(
        &self,
        namespace: &str,
        (subject_kind, subject): (SubjectKind, &str),
        app: &str,
        author: &str,
        at: i64,
    ) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        // The account of the user can be changed at once; both changes may end the last right.
        alerts::lock(&mut transaction).await?;
        let kind = subject_kind.name();
        let was_admin = is_admin_role(&mut transaction, namespace, (subject_kind, subject), app).await?;
        let sql =
            "DELETE FROM role_grant WHERE namespace = ? AND subject_kind = ? AND subject = ? AND app = ?";
        let removed = transaction.execute(sql, binds![namespace, kind, subject, app]);
        if removed.await? == 0 {
            return Err(StoreError::NotFound);
        }
        let entry = audit::NewEntry {
            namespace,
            actor: author,
            action: "grant.remove",
            object: subject,
            apps: Some(serde_json::json!([app]).to_string()),
            detail: Some(format!("{kind} {subject} of {app}")),
            at,
        };
        audit::insert(&mut transaction, entry).await?;
        if was_admin {
            tokens::reject_of(&mut transaction, subject, CreatorChange::Demoted, (author, at)).await?;
        }
        transaction.commit().await
    }

    /// Returns the apps of a namespace in the order of their names.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn apps(&self, namespace: &str) -> Result<Vec<StoredApp>, StoreError> {
        let sql = "SELECT namespace, name, bounds, created_by, created_at FROM app WHERE namespace = ? ORDER BY name";
        let rows = self.pool.rows(sql, binds![namespace]).await?;
        let apps = rows.iter().map(|row| {
            Ok(StoredApp {
                namespace: row.text(0)?,
                name: row.text(1)?,
                bounds: row.optional_text(2)?,
                created_by: row.text(3)?,
                created_at: row.int(4)?,
            })
        });
        apps.collect()
    }

    /// Creates an app or replaces its bounds.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database does not answer.
    pub async fn set_app(&self, app: &StoredApp) -> Result<(), StoreError> {
        self.change_app(app, |_| true).await
    }

    /// Creates an app or replaces its bounds, if the present ones are those that the author read.
    ///
    /// # Errors
    ///
    /// [`StoreError::Changed`] if they are others.
    pub async fn change_app(
        &self,
        app: &StoredApp,
        is_expected: impl Fn(Option<&str>) -> bool,
    ) -> Result<(), StoreError> {
        self.require_writable()?;
        let mut transaction = self.pool.begin().await?;
        // Two administrators can add it at once.
        alerts::lock(&mut transaction).await?;
        let sql = "SELECT bounds FROM app WHERE namespace = ? AND name = ?";
        let present = transaction.row(sql, binds![&app.namespace, &app.name]).await?;
        let present = present.map_or(Ok(None), |row| row.optional_text(0))?;
        if !is_expected(present.as_deref()) {
            return Err(StoreError::Changed);
        }
        let sql = "UPDATE app SET bounds = ? WHERE namespace = ? AND name = ?";
        let changed = transaction.execute(sql, binds![app.bounds.clone(), &app.namespace, &app.name]);
        if changed.await? == 0 {
            let sql =
                "INSERT INTO app (namespace, name, bounds, created_by, created_at) VALUES (?, ?, ?, ?, ?)";
            let binds = binds![
                &app.namespace,
                &app.name,
                app.bounds.clone(),
                &app.created_by,
                app.created_at
            ];
            transaction.execute(sql, binds).await?;
        }
        let entry = audit::NewEntry {
            namespace: &app.namespace,
            actor: &app.created_by,
            action: "app.set",
            object: &app.name,
            apps: Some(serde_json::json!([app.name]).to_string()),
            detail: app.bounds.clone(),
            at: app.created_at,
        };
        audit::insert(&mut transaction, entry).await?;
        transaction.commit().await
    }
}

/// Returns whether a user has the role admin of a namespace by this grant.
async fn is_admin_role(
    transaction: &mut SqlTransaction,
    namespace: &str,
    (kind, subject): (SubjectKind, &str),
    app: &str,
) -> Result<bool, StoreError> {
    let sql =
        "SELECT role FROM role_grant WHERE namespace = ? AND subject_kind = ? AND subject = ? AND app = ?";
    let binds = binds![namespace, kind.name(), subject, app];
    let role = transaction.row(sql, binds).await?;
    let role = role.map_or(Ok(String::new()), |row| row.text(0))?;
    Ok(kind == SubjectKind::User && app == "*" && role == "admin")
}
