//! The policies of an app, and the tabs that all pages of an app share.
//!
//! API route below the namespace: `GET policies?app=…`, which contains policies of all apps as
//! well. Tests: `tests/pages.rs`, `tests/pages/tasks.rs`.

use askama::Template;
use axum::extract::{Path, Query};
use axum::response::Response;
use serde::Deserialize;

use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, NavLink, Section};
use crate::admin::pages::overlays::SuspensionView;
use crate::admin::pages::policy_mode::PolicyMode;
use crate::admin::pages::views::{PolicyListView, PolicyView};
use crate::admin::pages::{links, render};
use crate::admin::permissions::{ALL_APPS, AdminAction};

/// The pages of an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AppTab {
    Policies,
    Connect,
    People,
    Tokens,
    Changes,
}

const TABS: [(AppTab, &str, &str); 5] = [
    (AppTab::Policies, "Policies", ""),
    (AppTab::Connect, "Connect", "connect"),
    (AppTab::People, "People", "people"),
    (AppTab::Tokens, "Tokens", "tokens"),
    (AppTab::Changes, "Changes", "changes"),
];

/// The head of the pages of an app.
#[derive(Debug)]
pub(super) struct AppHead {
    pub(super) name: String,
    /// The title of the page.
    pub(super) title: String,
    pub(super) tabs: Vec<NavLink>,
    pub(super) apps_href: String,
    /// True if the page refreshes numbers.
    pub(super) is_live: bool,
}

/// A policy in a list.
#[derive(Debug)]
pub(super) struct PolicyRow {
    pub(super) href: String,
    pub(super) policy: PolicyView,
    pub(super) mode: PolicyMode,
}

#[derive(Template)]
#[template(path = "app.html")]
struct AppTemplate {
    layout: Layout,
    head: AppHead,
    rows: Vec<PolicyRow>,
    /// The page on which the user creates a policy; `None` if the user may not.
    new_policy: Option<String>,
    /// The next page of policies.
    next: Option<String>,
}

/// The policies of one page.
const PAGE: usize = 100;

#[derive(Debug, Deserialize)]
pub(super) struct AppQuery {
    notice: Option<String>,
    /// The last policy of the previous page.
    after: Option<String>,
}

impl AppHead {
    /// Fails for an app in which the user has no role.
    pub(super) fn new(
        caller: &PageCaller,
        environment: &str,
        app: &str,
        tab: AppTab,
    ) -> Result<Self, PageFailure> {
        caller.require_environment(environment)?;
        if app != ALL_APPS && caller.actor.role_in(environment, app).is_none() {
            return Err(PageFailure::not_found());
        }
        let has_role = caller.actor.role_in(environment, app).is_some();
        let is_admin = caller.is_admin_of(environment);
        let is_readable = |tab: AppTab| match tab {
            AppTab::Policies | AppTab::Connect | AppTab::Changes => true,
            AppTab::People => has_role,
            AppTab::Tokens => is_admin,
        };
        let readable = TABS.iter().filter(|(tab, _, _)| is_readable(*tab));
        let tabs = readable.map(|(of, text, path)| NavLink {
            href: match path.is_empty() {
                true => links::page(environment, &["apps", app]),
                false => links::page(environment, &["apps", app, path]),
            },
            text: (*text).to_owned(),
            is_current: *of == tab,
        });
        let name = match app {
            ALL_APPS => "All apps".to_owned(),
            app => app.to_owned(),
        };
        let tabs: Vec<NavLink> = tabs.collect();
        let current = tabs.iter().find(|of| of.is_current);
        Ok(Self {
            title: match current.filter(|_| tab != AppTab::Policies) {
                Some(of) => format!("{name}: {}", of.text),
                None => name.clone(),
            },
            name,
            tabs,
            is_live: matches!(tab, AppTab::Policies | AppTab::Connect),
            apps_href: links::page(environment, &["apps"]),
        })
    }
}

impl PolicyRow {
    /// Creates a policy with the active suspensions of its environment.
    pub(super) fn new(environment: &str, policy: PolicyView, suspensions: &[SuspensionView]) -> Self {
        Self {
            mode: PolicyMode::of(&policy, suspensions),
            href: links::page(environment, &["policies", &policy.name]),
            policy,
        }
    }
}

pub(super) async fn policies(
    caller: PageCaller,
    Path((environment, app)): Path<(String, String)>,
    Query(query): Query<AppQuery>,
) -> Result<Response, PageFailure> {
    let head = AppHead::new(&caller, &environment, &app, AppTab::Policies)?;
    let layout = Layout::of_environment(&caller, &environment, Section::Apps, &*head.title).await?;
    let mut path = links::api(&environment, &["policies"]) + &format!("?limit={PAGE}");
    // The page of all apps lists policies without a list of apps, which every app lists as well.
    let after = query.after.unwrap_or_default();
    for (name, value) in [("app", app.as_str()), ("after", &after)] {
        if !value.is_empty() {
            path.push_str(&format!("&{name}={}", links::encode(value)));
        }
    }
    let found: PolicyListView = caller.api.get(&path).await?;
    let here = links::page(&environment, &["apps", &app]);
    let next = found
        .next
        .map(|next| format!("{here}?after={}", links::encode(&next)));
    let rows = found.policies.into_iter();
    let rows = rows.map(|policy| PolicyRow::new(&environment, policy, &layout.suspensions));
    let rows = rows.collect();
    let of_app = [app.clone()];
    let apps = (app != ALL_APPS).then_some(of_app.as_slice());
    let is_owner = caller.may_edit(&environment, AdminAction::EditPolicy, apps);
    let new = links::page(&environment, &["new"]);
    Ok(render(&AppTemplate {
        layout: layout.with_notice(query.notice.as_deref()),
        rows,
        new_policy: is_owner.then(|| format!("{new}?app={}", links::encode(&app))),
        next,
        head,
    }))
}
