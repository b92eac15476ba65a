//! The parts that all pages share: the top bar with environment, sections, health and user.
//!
//! API routes: `GET /namespaces`, and below the namespace `GET status` and `GET suspensions`. A
//! notice is a sentence of a fixed list, selected by the query, so that a link cannot show another
//! text. Tests: `tests/browser/environments.rs`, `tests/pages/tasks.rs`, `tests/pages/replicas.rs`.

use crate::admin::numbers::count;
use crate::admin::pages::assets::{self, AssetLinks};
use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::links;
use crate::admin::pages::overlays::{self, SuspensionView};
use crate::admin::pages::status_views::StatusView;
use crate::admin::pages::views::{NamespaceListView, NamespaceView};

/// A section of the pages of an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Now,
    Apps,
    Customers,
    Rules,
    Explain,
    Changes,
    Suspended,
    Status,
    Search,
    Settings,
}

/// The sections of an environment in the order of the top bar: section, name, path.
const SECTIONS: [(Section, &str, &str); 8] = [
    (Section::Now, "Now", "now"),
    (Section::Apps, "Apps", "apps"),
    (Section::Customers, "Customers", "customers"),
    (Section::Rules, "Rules", "rules"),
    (Section::Explain, "Explain", "explain"),
    (Section::Changes, "Changes", "changes"),
    (Section::Suspended, "Suspended", "suspended"),
    (Section::Status, "Status", "status"),
];

/// The state of the server, as the top bar shows it.
#[derive(Debug)]
pub(super) struct Health {
    pub(super) class: &'static str,
    pub(super) text: String,
}

/// A link of the top bar.
#[derive(Clone, Debug)]
pub(super) struct NavLink {
    pub(super) href: String,
    pub(super) text: String,
    pub(super) is_current: bool,
}

/// The top bar and the title of a page.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) title: String,
    pub(super) assets: &'static AssetLinks,
    pub(super) user: String,
    pub(super) is_server_admin: bool,
    /// The environment of the page.
    pub(super) environment: Option<NamespaceView>,
    /// All environments that the user may read.
    pub(super) environments: Vec<NavLink>,
    pub(super) sections: Vec<NavLink>,
    pub(super) is_settings: bool,
    pub(super) health: Option<Health>,
    /// The state that `health` summarizes.
    pub(super) status: Option<StatusView>,
    /// The result of the form that led to this page.
    pub(super) notice: Option<String>,
    /// The active suspensions.
    pub(super) suspensions: Vec<SuspensionView>,
}

impl Health {
    pub(super) fn of(status: &StatusView) -> Self {
        let (class, text) = match status {
            of if of.read_only => ("bad", "Read-only: the database has a newer version".to_owned()),
            StatusView {
                publisher_error: Some(error),
                ..
            } => ("bad", format!("Cannot publish: {error}")),
            of if !of.alerts.is_empty() => ("bad", count(of.alerts.len(), "alert")),
            of if of.pending > 0 => {
                let pending = usize::try_from(of.pending).unwrap_or_default();
                (
                    "waiting",
                    format!("{} not in force yet", count(pending, "change")),
                )
            }
            _ => ("ok", "All changes in force".to_owned()),
        };
        Self { class, text }
    }
}

impl NamespaceView {
    /// Returns the name that the top bar shows.
    pub(super) fn shown_name(&self) -> &str {
        self.label
            .as_deref()
            .filter(|label| !label.is_empty())
            .unwrap_or(&self.name)
    }

    /// Returns whether the namespace has this colour; the default is grey.
    pub(super) fn has_colour(&self, colour: &str) -> bool {
        self.colour.as_deref().unwrap_or("grey") == colour
    }

    /// Returns the class of the colour.
    pub(super) fn colour_class(&self) -> &'static str {
        match self.colour.as_deref() {
            Some("red") => "env-red",
            Some("amber") => "env-amber",
            Some("green") => "env-green",
            Some("blue") => "env-blue",
            _ => "env-grey",
        }
    }
}

impl Layout {
    /// Returns a page of an environment. Fails for environments that the user may not read.
    pub(super) async fn of_environment(
        caller: &PageCaller,
        environment: &str,
        section: Section,
        title: impl Into<String>,
    ) -> Result<Self, PageFailure> {
        caller.require_environment(environment)?;
        let mut layout = Self::of_server(caller, title).await?;
        let status: StatusView = caller.api.get(&links::api(environment, &["status"])).await?;
        layout.health = Some(Health::of(&status));
        layout.status = Some(status);
        layout.suspensions = overlays::active(caller, environment).await?;
        for link in &mut layout.environments {
            link.is_current = link.href == links::page(environment, &[]);
        }
        layout.environment = caller
            .namespaces()
            .await?
            .into_iter()
            .find(|of| of.name == environment);
        layout.is_settings = section == Section::Settings;
        layout.sections = SECTIONS
            .iter()
            .map(|(of, text, path)| NavLink {
                href: links::page(environment, &[path]),
                text: (*text).to_owned(),
                is_current: *of == section,
            })
            .collect();
        Ok(layout)
    }

    /// Returns a page of the server.
    pub(super) async fn of_server(
        caller: &PageCaller,
        title: impl Into<String>,
    ) -> Result<Self, PageFailure> {
        let environments = caller.namespaces().await?;
        let environments = environments.iter().map(|of| NavLink {
            href: links::page(&of.name, &[]),
            text: of.shown_name().to_owned(),
            is_current: false,
        });
        Ok(Self {
            title: title.into(),
            assets: assets::links(),
            user: caller.actor.name.clone(),
            is_server_admin: caller.actor.is_server_admin,
            environment: None,
            environments: environments.collect(),
            sections: Vec::new(),
            is_settings: true,
            health: None,
            status: None,
            notice: None,
            suspensions: Vec::new(),
        })
    }

    /// Shows the result of the form that led to this page, by its code in the query.
    pub(super) fn with_notice(mut self, code: Option<&str>) -> Self {
        self.notice = code.and_then(notice).map(str::to_owned);
        self
    }

    /// Returns the path of the search.
    pub(super) fn search_href(&self) -> String {
        links::page(self.environment_name(), &["search"])
    }

    /// Returns the name of the environment as a segment of a path.
    pub(super) fn environment_path(&self) -> String {
        links::encode(self.environment_name())
    }

    /// Returns the path that extends a suspension shortly before its end, if the user may.
    pub(super) fn extension_href(&self, of: &SuspensionView) -> Option<String> {
        let suspended = links::page(self.environment_name(), &["suspended", &of.id, "extend"]);
        (of.may_change && of.ends_soon()).then_some(suspended)
    }

    /// Returns the path of a page of the environment.
    pub(super) fn page_href(&self, page: &str) -> String {
        links::page(self.environment_name(), &[page])
    }

    /// Returns the name of the environment; empty on pages of the server.
    pub(super) fn environment_name(&self) -> &str {
        self.environment.as_ref().map_or("", |of| of.name.as_str())
    }
}

/// Returns the sentence of a code. Other texts of a query are not shown.
fn notice(code: &str) -> Option<&'static str> {
    Some(match code {
        "saved" => "Saved.",
        "proposed" => "Proposed. An owner of the app approves or rejects the change.",
        "removed" => "Removed.",
        "restored" => "Restored.",
        "rejected" => "Rejected.",
        "revoked" => "Revoked.",
        "confirmed" => "Confirmed.",
        "suspended" => "Suspended. Every node applies it within a second.",
        "blocked" => "Blocked. Every node applies it within a second.",
        "ended" => "Ended.",
        "extended" => "The new end is saved.",
        "raised" => "Raised. The quota of the key is saved as a revision of the policy.",
        "trial" => "The trial has started. It does not affect calls.",
        "adopted" => "Adopted. The numbers of the trial are those of the policy.",
        "dropped" => "The trial is dropped.",
        "app" => "The app exists. Create its first policy.",
        "reset" => "The usage of the key is discarded.",
        _ => return None,
    })
}

impl PageCaller {
    /// Returns the environments that the user may read.
    pub(super) async fn namespaces(&self) -> Result<Vec<NamespaceView>, PageFailure> {
        let list: NamespaceListView = self.api.get("/namespaces").await?;
        Ok(list.namespaces)
    }
}
