//! Users and environments, for administrators of the server; the own password for each user.
//!
//! API routes: `GET` and `POST /users`, `PUT` and `DELETE /users/{name}`,
//! `PUT /users/{name}/password`, `GET /retention`, `PUT /namespaces/{namespace}`. Test:
//! `tests/pages/people.rs`.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::Method;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admin::pages::apps::NoticeQuery;
use crate::admin::pages::caller::{PageCaller, PageForm};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::Layout;
use crate::admin::pages::views::{NamespaceView, UserListView, UserView};
use crate::admin::pages::{links, render, see};
use crate::admin::permissions::ALL_APPS;
use crate::store::NamespaceLook;

const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;

#[derive(Deserialize)]
pub(super) struct NewUserForm {
    name: String,
    password: String,
    admin: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct UserForm {
    admin: Option<String>,
    disabled: Option<String>,
    /// The role that the page has shown.
    was_admin: Option<String>,
    /// The state that the page has shown.
    was_disabled: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct PasswordForm {
    password: String,
    repeated: Option<String>,
    current: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct NamespaceForm {
    label: String,
    colour: String,
}

/// An environment with the pages of its settings.
#[derive(Debug)]
struct EnvironmentRow {
    namespace: NamespaceView,
    tokens: String,
    people: String,
    action: String,
}

/// A user with the path of its forms.
#[derive(Debug)]
struct UserRow {
    user: UserView,
    action: String,
}

/// The time for which records are kept, in seconds.
#[derive(Debug, Deserialize)]
struct RetentionView {
    usage_minutes: u64,
    usage_hours: u64,
    denials: u64,
    ended: u64,
    audit: u64,
    audit_is_exported: bool,
}

#[derive(Template)]
#[template(path = "settings.html")]
struct SettingsTemplate {
    layout: Layout,
    environments: Vec<EnvironmentRow>,
    colours: &'static [&'static str],
    users: Vec<UserRow>,
    retention: RetentionView,
}

impl RetentionView {
    /// Returns the kinds of records with their times in words.
    fn rows(&self) -> [(&'static str, String); 6] {
        let audit = match self.audit_is_exported {
            true => format!("{}, then exported to files", time_text(self.audit)),
            false => "no end, because the settings name no directory for its export".to_owned(),
        };
        let ended = "Quotas of keys, suspensions, blocks and tokens after their end";
        [
            ("Counts per minute", time_text(self.usage_minutes)),
            ("Counts per hour", time_text(self.usage_hours)),
            ("Samples of denials", time_text(self.denials)),
            (ended, time_text(self.ended)),
            ("Audit", audit),
            ("Revisions", "no end".to_owned()),
        ]
    }
}

/// Returns a time in words.
fn time_text(seconds: u64) -> String {
    match seconds {
        seconds if seconds < 3 * DAY => format!("{} hours", seconds / HOUR),
        seconds => format!("{} days", seconds / DAY),
    }
}

#[derive(Template)]
#[template(path = "account.html")]
struct AccountTemplate {
    layout: Layout,
}

pub(super) async fn show(
    caller: PageCaller,
    Query(query): Query<NoticeQuery>,
) -> Result<Response, PageFailure> {
    let users: UserListView = caller.api.get("/users").await?;
    let retention: RetentionView = caller.api.get("/retention").await?;
    let layout = Layout::of_server(&caller, "Settings").await?;
    let environments = caller
        .namespaces()
        .await?
        .into_iter()
        .map(|namespace| EnvironmentRow {
            tokens: links::page(&namespace.name, &["tokens"]),
            people: links::page(&namespace.name, &["apps", ALL_APPS, "people"]),
            action: links::path(&["settings", "environments", &namespace.name]),
            namespace,
        });
    let users = users.users.into_iter().map(|user| UserRow {
        action: links::path(&["settings", "users", &user.name]),
        user,
    });
    Ok(render(&SettingsTemplate {
        layout: layout.with_notice(query.notice.as_deref()),
        environments: environments.collect(),
        colours: &NamespaceLook::COLOURS,
        users: users.collect(),
        retention,
    }))
}

fn done(notice: &str) -> Response {
    see(&format!("/settings?notice={notice}"))
}

pub(super) async fn set_environment(
    caller: PageCaller,
    Path(name): Path<String>,
    PageForm(form): PageForm<NamespaceForm>,
) -> Result<Response, PageFailure> {
    let body = json!({ "label": form.label.trim(), "colour": form.colour });
    let path = links::path(&["namespaces", &name]);
    caller.api.send(Method::PUT, &path, &[], &body).await?;
    Ok(done("saved"))
}

pub(super) async fn create_user(
    caller: PageCaller,
    PageForm(form): PageForm<NewUserForm>,
) -> Result<Response, PageFailure> {
    // Users of a trusted proxy have no password.
    let password = Some(form.password).filter(|password| !password.is_empty());
    let body = json!({ "name": form.name.trim(), "password": password, "admin": form.admin.is_some() });
    caller.api.send(Method::POST, "/users", &[], &body).await?;
    Ok(done("saved"))
}

pub(super) async fn change_user(
    caller: PageCaller,
    Path(name): Path<String>,
    PageForm(form): PageForm<UserForm>,
) -> Result<Response, PageFailure> {
    // Another administrator can have changed the other property since the page was loaded.
    let mut body = serde_json::Map::new();
    for (property, is, was) in [
        ("admin", form.admin, form.was_admin),
        ("disabled", form.disabled, form.was_disabled),
    ] {
        if is.is_some() != was.is_some() {
            body.insert(property.to_owned(), json!(is.is_some()));
        }
    }
    if body.is_empty() {
        return Ok(done("saved"));
    }
    let body = Value::Object(body);
    let path = links::path(&["users", &name]);
    caller.api.send(Method::PUT, &path, &[], &body).await?;
    Ok(done("saved"))
}

pub(super) async fn remove_user(
    caller: PageCaller,
    Path(name): Path<String>,
) -> Result<Response, PageFailure> {
    let path = links::path(&["users", &name]);
    caller.api.send(Method::DELETE, &path, &[], &Value::Null).await?;
    Ok(done("removed"))
}

async fn set_password(caller: &PageCaller, name: &str, form: PasswordForm) -> Result<(), PageFailure> {
    if form.repeated.is_some_and(|repeated| repeated != form.password) {
        return Err(PageFailure::bad_request("The two passwords differ."));
    }
    let body = json!({ "password": form.password, "current": form.current });
    let path = links::path(&["users", name, "password"]);
    caller.api.send(Method::PUT, &path, &[], &body).await.map(|_| ())
}

pub(super) async fn reset_password(
    caller: PageCaller,
    Path(name): Path<String>,
    PageForm(form): PageForm<PasswordForm>,
) -> Result<Response, PageFailure> {
    set_password(&caller, &name, form).await?;
    Ok(done("saved"))
}

pub(super) async fn account(
    caller: PageCaller,
    Query(query): Query<NoticeQuery>,
) -> Result<Response, PageFailure> {
    let layout = Layout::of_server(&caller, "Your account").await?;
    Ok(render(&AccountTemplate {
        layout: layout.with_notice(query.notice.as_deref()),
    }))
}

/// Changes the own password, which ends all sessions of the user.
pub(super) async fn change_password(
    caller: PageCaller,
    PageForm(form): PageForm<PasswordForm>,
) -> Result<Response, PageFailure> {
    let name = caller.actor.name.clone();
    set_password(&caller, &name, form).await?;
    Ok(see("/signin"))
}
