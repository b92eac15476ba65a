//! The decision whether an actor may act on an object: one pure function, [`may`].
//!
//! A role holds in an app of a namespace; `*` is all apps. Each role includes those before it: a
//! viewer reads; an editor changes numbers, quotas and blocks within the bounds of the app; an
//! owner changes everything of the app; an administrator everything of the namespace. A policy of
//! several apps needs the role in all of them. Objects that the actor may not read are hidden.
//! Tests: `permissions/tests.rs`.

use std::collections::BTreeSet;

use crate::store::{GrantedRole, TokenIssuer};

/// The name that denotes all apps of a namespace.
pub const ALL_APPS: &str = "*";

/// A role. Each one includes those before it.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads.
    Viewer,
    /// Changes numbers within bounds.
    Editor,
    /// Changes everything of an app.
    Owner,
    /// Changes everything of a namespace.
    Admin,
}

impl Role {
    /// All roles, the weakest first.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Editor, Self::Owner, Self::Admin];

    /// Returns the name in the database and in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Editor => "editor",
            Self::Owner => "owner",
            Self::Admin => "admin",
        }
    }

    /// Returns the role of a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// A user or a token, with its roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actor {
    /// The name in the audit: the user, or `token:` and the label.
    pub name: String,
    /// The responsible user: for a token its creator, otherwise as `name`. Tokens that the actor
    /// issues end with this user.
    pub user: String,
    /// The credential, which must still be valid when a token is stored.
    pub issuer: TokenIssuer,
    /// True if the actor is an administrator of the server: of all namespaces, users and settings.
    pub is_server_admin: bool,
    /// The roles as (namespace, app, role).
    pub roles: Vec<(String, String, Role)>,
}

impl Actor {
    /// Creates an actor with the roles of the database. Unknown names of roles give no role.
    #[must_use]
    pub fn new(name: impl Into<String>, is_server_admin: bool, grants: &[GrantedRole]) -> Self {
        let roles = grants.iter().filter_map(|grant| {
            let role = Role::parse(&grant.role)?;
            Some((grant.namespace.clone(), grant.app.clone(), role))
        });
        let name = name.into();
        Self {
            user: name.clone(),
            name,
            issuer: TokenIssuer::default(),
            is_server_admin,
            roles: roles.collect(),
        }
    }

    /// Returns the highest role in an app; [`ALL_APPS`] for a role in all of them.
    #[must_use]
    pub fn role_in(&self, namespace: &str, app: &str) -> Option<Role> {
        if self.is_server_admin {
            return Some(Role::Admin);
        }
        let roles = self.roles.iter().filter(|(in_namespace, in_app, role)| {
            // An administrator of one app would be one of the namespace.
            in_namespace == namespace && (in_app == ALL_APPS || (in_app == app && *role < Role::Admin))
        });
        roles.map(|(_, _, role)| *role).max()
    }

    /// Returns the lowest of the roles in these apps; `None` denotes all apps.
    fn role_in_all(&self, namespace: &str, apps: Option<&[String]>) -> Option<Role> {
        match apps {
            None => self.role_in(namespace, ALL_APPS),
            Some(apps) => {
                let roles = apps.iter().map(|app| self.role_in(namespace, app));
                roles.min().flatten()
            }
        }
    }

    /// Returns whether the actor has any role in a namespace.
    #[must_use]
    pub fn has_namespace(&self, namespace: &str) -> bool {
        self.is_server_admin || self.roles.iter().any(|(of, _, _)| of == namespace)
    }

    /// Returns the apps of a namespace in which the actor has a role; `None` for all.
    #[must_use]
    pub fn apps_in(&self, namespace: &str) -> Option<BTreeSet<&str>> {
        if self.role_in(namespace, ALL_APPS).is_some() {
            return None;
        }
        let roles = self.roles.iter().filter(|(of, _, _)| of == namespace);
        Some(roles.map(|(_, app, _)| app.as_str()).collect())
    }
}

/// An action on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AdminAction {
    /// Read the object.
    Read,
    /// Change numbers, quotas of keys and blocks within the bounds.
    EditNumbers,
    /// Change numbers beyond the bounds.
    ExceedBounds,
    /// Change anything else of a policy, create, delete or restore it; decide on proposals.
    EditPolicy,
    /// Change the bounds of an app, and grant roles in it.
    ManageApp,
    /// Change rules, and tokens of the namespace.
    ManageNamespace,
    /// Change users and settings, and read the audit of users.
    ManageServer,
}

impl AdminAction {
    /// All actions.
    pub const ALL: [Self; 7] = [
        Self::Read,
        Self::EditNumbers,
        Self::ExceedBounds,
        Self::EditPolicy,
        Self::ManageApp,
        Self::ManageNamespace,
        Self::ManageServer,
    ];
}

/// The object of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object<'a> {
    /// A policy, its history and its proposals.
    Policy {
        /// The namespace.
        namespace: &'a str,
        /// The apps; `None` for all.
        apps: Option<&'a [String]>,
    },
    /// A namespace, with its rules, status and list of apps.
    Namespace(&'a str),
    /// The server.
    Server,
}

/// The result of [`may`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// The actor may act.
    Allowed,
    /// The actor may propose the change to an owner.
    Proposal,
    /// The actor may not act, and may know that the object exists.
    Forbidden,
    /// The actor may not know that the object exists.
    Hidden,
}

/// Decides whether an actor may act on an object.
#[must_use]
pub fn may(actor: &Actor, action: AdminAction, object: Object<'_>) -> Permission {
    let (role, is_visible) = match object {
        Object::Policy { namespace, apps } => {
            let is_visible = match apps {
                None => actor.has_namespace(namespace),
                Some(apps) => apps.iter().any(|app| actor.role_in(namespace, app).is_some()),
            };
            (actor.role_in_all(namespace, apps), is_visible)
        }
        Object::Namespace(namespace) => {
            let role = actor.role_in(namespace, ALL_APPS);
            (role, actor.has_namespace(namespace))
        }
        Object::Server => {
            let role = actor.is_server_admin.then_some(Role::Admin);
            (role, true)
        }
    };
    if !is_visible {
        return Permission::Hidden;
    }
    let needed = match action {
        AdminAction::Read => match object {
            Object::Policy { .. } | Object::Namespace(_) => return Permission::Allowed,
            Object::Server => Role::Admin,
        },
        AdminAction::EditNumbers => Role::Editor,
        AdminAction::ExceedBounds if role == Some(Role::Editor) => return Permission::Proposal,
        AdminAction::ExceedBounds | AdminAction::EditPolicy | AdminAction::ManageApp => Role::Owner,
        AdminAction::ManageNamespace => Role::Admin,
        AdminAction::ManageServer if actor.is_server_admin => return Permission::Allowed,
        AdminAction::ManageServer => return Permission::Forbidden,
    };
    match role >= Some(needed) {
        true => Permission::Allowed,
        false => Permission::Forbidden,
    }
}

/// Returns whether an actor may grant a role in an app: no more than the actor has.
#[must_use]
pub fn may_grant(actor: &Actor, role: Role, namespace: &str, app: &str) -> bool {
    let own = actor.role_in(namespace, app);
    let is_possible = role < Role::Admin || app == ALL_APPS;
    is_possible && own >= Some(Role::Owner) && own >= Some(role)
}

#[cfg(test)]
mod tests;
