//! Users, apps with their bounds, and grants: the routes and their permissions.
//!
//! Users belong to the server, and apps and grants to a namespace. A user changes the own password
//! with the current one; an administrator of the server changes every password.
//!
//! Invariants: a change of a grant needs the right to grant both the new and the replaced role; a
//! list of apps or grants contains only apps in which the caller has a role. Tests:
//! `tests/routes_by_role.rs`, `tests/pages/people.rs`, `tests/admin_attacks.rs`.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody};
use crate::admin::api::paging::{ListPage, by_field};
use crate::admin::api::problem::AdminProblem;
use crate::admin::auth::AuthError;
use crate::admin::bounds::Bounds;
use crate::admin::permissions::{ALL_APPS, AdminAction, Object, Role, may, may_grant};
use crate::admin::tokens::{check_group_name, check_name};
use crate::store::{Account, NewAccount, StoredApp, StoredGrant, SubjectKind, now_micros};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewUserBody {
    name: String,
    password: Option<String>,
    #[serde(default)]
    admin: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UserBody {
    /// Absent to keep the role.
    admin: Option<bool>,
    /// Absent to keep the state.
    disabled: Option<bool>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PasswordBody {
    password: String,
    /// The current password, which users must know to change their own.
    current: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AppBody {
    #[serde(default)]
    bounds: Option<Bounds>,
    /// The bounds that the author read, `{}` for none. Other present bounds are a conflict. Absent
    /// to replace any.
    #[serde(default)]
    previous: Option<Bounds>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GrantBody {
    role: Role,
}

/// Fails for a name that cannot be stored, or could be taken for another kind of actor.
pub(super) fn require_name(name: &str) -> Result<(), AdminProblem> {
    check_name(name).map_err(unsuitable)
}

fn unsuitable(reason: &str) -> AdminProblem {
    AdminProblem::new(StatusCode::UNPROCESSABLE_ENTITY, reason)
}

fn account_json(account: &Account) -> Value {
    json!({
        "name": account.name,
        "admin": account.is_admin,
        "disabled": account.is_disabled,
        "has_password": account.password.is_some(),
        "created_by": account.created_by,
        "created_at": account.created_at,
    })
}

pub(super) async fn users(
    State(admin): State<Admin>,
    caller: AdminCaller,
    page: ListPage,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_server_admin()?;
    let accounts = admin.store().accounts().await?;
    let users = accounts.iter().map(account_json).collect();
    let (users, next) = page.select(users, by_field("name"))?;
    Ok(Json(json!({ "users": users, "next": next })))
}

pub(super) async fn create_user(
    State(admin): State<Admin>,
    caller: AdminCaller,
    JsonBody(body): JsonBody<NewUserBody>,
) -> Result<StatusCode, AdminProblem> {
    caller.require_server_admin()?;
    require_name(&body.name)?;
    let password = match body.password {
        Some(password) => Some(admin.passwords().hash(password).await.map_err(AuthError::from)?),
        None => None,
    };
    let new = NewAccount {
        name: body.name,
        password,
        is_admin: body.admin,
    };
    admin
        .store()
        .add_account(&new, &caller.0.name, now_micros())
        .await?;
    Ok(StatusCode::CREATED)
}

pub(super) async fn change_user(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(name): Path<String>,
    JsonBody(body): JsonBody<UserBody>,
) -> Result<StatusCode, AdminProblem> {
    caller.require_server_admin()?;
    if body.admin.is_none() && body.disabled.is_none() {
        return Err(AdminProblem::bad_request("expected `admin`, `disabled` or both"));
    }
    let store = admin.store();
    let changed = store.change_account(&name, body.admin, body.disabled, &caller.0.name, now_micros());
    changed.await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn remove_user(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(name): Path<String>,
) -> Result<StatusCode, AdminProblem> {
    caller.require_server_admin()?;
    let removed = admin.store().remove_account(&name, &caller.0.name, now_micros());
    removed.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Users change their own password if they know the current one; administrators every password.
pub(super) async fn set_password(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(name): Path<String>,
    JsonBody(body): JsonBody<PasswordBody>,
) -> Result<StatusCode, AdminProblem> {
    match body.current {
        Some(current) if caller.0.name == name => {
            admin.signin_limits().charge_password_change(&name).await?;
            let account = admin.store().account(&name).await?;
            let hash = account.and_then(|account| account.password);
            let verified = admin
                .passwords()
                .verify(current, hash)
                .await
                .map_err(AuthError::from)?;
            if !verified {
                return Err(AdminProblem::forbidden("the current password does not match"));
            }
        }
        _ => caller.require_server_admin()?,
    }
    let hash = admin
        .passwords()
        .hash(body.password)
        .await
        .map_err(AuthError::from)?;
    let changed = admin
        .store()
        .set_password(&name, &hash, &caller.0.name, now_micros());
    changed.await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn apps(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    page: ListPage,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let visible = caller.0.apps_in(&namespace);
    let apps = admin.store().apps(&namespace).await?;
    let apps = apps.iter().filter(|app| {
        visible
            .as_ref()
            .is_none_or(|names| names.contains(app.name.as_str()))
    });
    let apps: Vec<Value> = apps
        .map(|app| {
            let bounds = app.bounds.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
            let role = caller.0.role_in(&namespace, &app.name);
            json!({ "name": app.name, "bounds": bounds, "role": role, "created_by": app.created_by, "created_at": app.created_at })
        })
        .collect();
    let (apps, next) = page.select(apps, by_field("name"))?;
    Ok(Json(json!({ "apps": apps, "next": next })))
}

pub(super) async fn set_app(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    JsonBody(body): JsonBody<AppBody>,
) -> Result<StatusCode, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    if name == ALL_APPS {
        return Err(AdminProblem::bad_request(
            "`*` denotes all apps and is no name of an app",
        ));
    }
    require_name(&name)?;
    let app = [name.clone()];
    let object = Object::Policy {
        namespace: &namespace,
        apps: Some(&app),
    };
    AdminProblem::unless(
        may(&caller.0, AdminAction::ManageApp, object),
        "bounds need the role owner of the app",
    )?;
    let bounds = match body.bounds {
        Some(bounds) => {
            bounds
                .validate()
                .map_err(|reason| AdminProblem::new(StatusCode::UNPROCESSABLE_ENTITY, reason))?;
            serde_json::to_string(&bounds).ok()
        }
        None => None,
    };
    let app = StoredApp {
        namespace,
        name,
        bounds,
        created_by: caller.0.name,
        created_at: now_micros(),
    };
    let is_expected = |present: Option<&str>| {
        let present = present.and_then(|text| serde_json::from_str::<Bounds>(text).ok());
        let present = present.unwrap_or_default();
        body.previous.as_ref().is_none_or(|previous| *previous == present)
    };
    admin.store().change_app(&app, is_expected).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the grants of the apps in which the caller has a role.
pub(super) async fn grants(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    page: ListPage,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let visible = caller.0.apps_in(&namespace);
    let grants = admin.store().grants(&namespace).await?;
    let grants = grants.iter().filter(|grant| {
        visible
            .as_ref()
            .is_none_or(|names| names.contains(grant.app.as_str()))
    });
    let grants: Vec<Value> = grants
        .map(|grant| {
            json!({
                "subject_kind": grant.subject_kind.name(),
                "subject": grant.subject,
                "app": grant.app,
                "role": grant.role,
                "created_by": grant.created_by,
                "created_at": grant.created_at,
            })
        })
        .collect();
    let id = |_, of: &Value| {
        let field = |name: &str| of[name].as_str().unwrap_or_default().to_owned();
        // An app and a kind contain no colon.
        [field("app"), field("subject_kind"), field("subject")].join(":")
    };
    let (grants, next) = page.select(grants, id)?;
    Ok(Json(json!({ "grants": grants, "next": next })))
}

fn subject_kind(kind: &str) -> Result<SubjectKind, AdminProblem> {
    SubjectKind::parse(kind).ok_or_else(|| AdminProblem::bad_request("expected the kind `user` or `group`"))
}

pub(super) async fn set_grant(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, kind, subject, app)): Path<(String, String, String, String)>,
    JsonBody(body): JsonBody<GrantBody>,
) -> Result<StatusCode, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let subject_kind = subject_kind(&kind)?;
    match subject_kind {
        SubjectKind::User => require_name(&subject)?,
        SubjectKind::Group => check_group_name(&subject).map_err(unsuitable)?,
    }
    require_name(&app)?;
    let holder = (subject_kind, subject.as_str());
    require_grantable(&admin, &caller, &namespace, holder, &app, body.role).await?;
    let grant = StoredGrant {
        namespace,
        subject_kind,
        subject,
        app,
        role: body.role.name().to_owned(),
        created_by: caller.0.name,
        created_at: now_micros(),
    };
    admin.store().set_grant(&grant).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn remove_grant(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, kind, subject, app)): Path<(String, String, String, String)>,
) -> Result<StatusCode, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let holder = (subject_kind(&kind)?, subject.as_str());
    require_grantable(&admin, &caller, &namespace, holder, &app, Role::Viewer).await?;
    admin
        .store()
        .remove_grant(&namespace, holder, &app, &caller.0.name, now_micros())
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Fails if the caller lacks a role that is granted or taken away.
async fn require_grantable(
    admin: &Admin,
    caller: &AdminCaller,
    namespace: &str,
    (kind, subject): (SubjectKind, &str),
    app: &str,
    role: Role,
) -> Result<(), AdminProblem> {
    let grants = admin.store().grants(namespace).await?;
    let replaced = grants
        .iter()
        .find(|grant| grant.subject_kind == kind && grant.subject == subject && grant.app == app);
    let replaced = replaced
        .and_then(|grant| Role::parse(&grant.role))
        .unwrap_or(role);
    let may_both =
        may_grant(&caller.0, role, namespace, app) && may_grant(&caller.0, replaced, namespace, app);
    match may_both {
        true => Ok(()),
        false => Err(AdminProblem::forbidden(
            "you can grant and remove roles up to your own, as an owner of the app",
        )),
    }
}
