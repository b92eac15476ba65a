//! The page of a policy: its sentence and state, plot, keys, quotas, trial, proposals and history.
//!
//! API routes below the namespace: `GET policies/{name}` with `history`, `usage` and `trial`,
//! `GET proposals`, `GET keys/activity`, `GET blocks`, `GET subscribers`. A deleted policy leads to
//! its deletion, which can be undone. Tests: `tests/pages/truth.rs`, `tests/pages/replicas.rs`,
//! `tests/pages/tasks.rs`.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;

use crate::admin::numbers::{count, grouped};
use crate::admin::pages::activity::KeyTables;
use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::ends::{OfferedEnd, offered_durations};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, NavLink, Section};
use crate::admin::pages::overlays::{BlockView, blocks_of_policy};
use crate::admin::pages::plot::{HOURS, PlotRange, PlotView, RANGES};
use crate::admin::pages::policy_fields::PolicyFields;
use crate::admin::pages::policy_list::read;
use crate::admin::pages::policy_mode::PolicyMode;
use crate::admin::pages::proposals;
use crate::admin::pages::quota_fields::QuotaFields;
use crate::admin::pages::revisions::DocumentRevisions;
use crate::admin::pages::status_views::{SubscriberListView, SubscriberView};
use crate::admin::pages::time::PageTime;
use crate::admin::pages::trials::{self, TrialView};
use crate::admin::pages::views::{PolicyView, ProposalView, RevisionView};
use crate::admin::pages::{links, render, see};
use crate::admin::permissions::{ALL_APPS, AdminAction};
use crate::store::now_micros;

/// The rights of the user on a policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct PolicyRights {
    pub(super) may_edit: bool,
    pub(super) is_owner: bool,
}

/// The paths of the pages of a policy.
#[derive(Clone, Debug)]
pub(super) struct PolicyLinks {
    pub(super) policy: String,
    pub(super) apps: Vec<NavLink>,
}

/// A quota of a key.
#[derive(Debug)]
pub(super) struct QuotaRow {
    id: String,
    key: String,
    sentence: String,
    until: String,
}

#[derive(Template)]
#[template(path = "policy.html")]
struct PolicyTemplate {
    layout: Layout,
    links: PolicyLinks,
    policy: PolicyView,
    mode: PolicyMode,
    /// The replicas that have the policy, such as `11 of 12 replicas`.
    reach: Option<String>,
    rights: PolicyRights,
    /// True if the text is edited in another place.
    is_managed_elsewhere: bool,
    quotas: Vec<QuotaRow>,
    /// The active blocks that apply to the policy.
    blocks: Vec<BlockView>,
    fields: PolicyFields,
    /// The declared names of the parts of keys.
    key_parts: Vec<String>,
    proposals: Vec<ProposalView>,
    proposals_href: String,
    /// The proposals that another change closes, as a sentence.
    closed_proposals: Option<String>,
    user: String,
    revisions: Vec<RevisionView>,
    older: Option<String>,
    plot: PlotView,
    /// The ranges of the plot.
    ranges: Vec<NavLink>,
    trial: Option<TrialView>,
    /// The ends that the form of a trial offers.
    ends: Vec<OfferedEnd>,
    keys: KeyTables,
    suspend_href: String,
    /// The page that connects the first app of the policy.
    connect_href: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct HistoryQuery {
    notice: Option<String>,
    before: Option<i64>,
    /// The hours of the plot.
    hours: Option<i64>,
    /// The results of test calls.
    allowed: Option<u8>,
    denied: Option<u8>,
    would_deny: Option<u8>,
}

impl HistoryQuery {
    /// Returns the result of test calls as a sentence.
    fn test_result(&self) -> Option<String> {
        let (allowed, denied) = (self.allowed?, self.denied?);
        let would_deny = match self.would_deny {
            None | Some(0) => String::new(),
            Some(count) => format!(", of which {count} would be denied if the policy were enforced"),
        };
        Some(format!(
            "Of {} test calls, {allowed} were allowed{would_deny} and {denied} denied.",
            u16::from(allowed) + u16::from(denied)
        ))
    }

    /// Returns the hours of the plot. Others than the offered ones are the default.
    fn hours(&self) -> i64 {
        let offered = |hours: &i64| RANGES.iter().any(|(of, _)| of == hours);
        self.hours.filter(offered).unwrap_or(HOURS)
    }
}

impl PolicyRights {
    pub(super) fn new(caller: &PageCaller, environment: &str, apps: Option<&[String]>) -> Self {
        Self {
            may_edit: caller.may_edit(environment, AdminAction::EditNumbers, apps),
            is_owner: caller.may_edit(environment, AdminAction::EditPolicy, apps),
        }
    }
}

impl PolicyLinks {
    pub(super) fn new(environment: &str, name: &str, apps: Option<&[String]>) -> Self {
        let apps = apps.unwrap_or_default().iter().map(|app| NavLink {
            href: links::page(environment, &["apps", app]),
            text: app.clone(),
            is_current: false,
        });
        Self {
            policy: links::page(environment, &["policies", name]),
            apps: apps.collect(),
        }
    }
}

impl PolicyTemplate {
    /// Returns the other proposals that an approval closes, as a sentence.
    fn closed_by_approval(&self, approved: &ProposalView) -> Option<String> {
        proposals::closed_by_approval(&self.proposals, approved)
    }
}

pub(super) async fn show(
    caller: PageCaller,
    Path((environment, name)): Path<(String, String)>,
    Query(query): Query<HistoryQuery>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let policy = match read(&caller, &environment, &name).await {
        // The last revision of a deleted policy is its deletion, which can be undone.
        Err(failure) if failure.status == StatusCode::NOT_FOUND => {
            let revisions = DocumentRevisions::of_policy(&caller, &environment, &name);
            let deletion = revisions.page(None).await?;
            let last = deletion.revisions.first().ok_or_else(PageFailure::not_found)?;
            let number = last.number.to_string();
            return Ok(see(&links::page(
                &environment,
                &["policies", &name, "history", &number],
            )));
        }
        policy => policy?,
    };
    let layout = Layout::of_environment(&caller, &environment, Section::Apps, &*policy.name).await?;
    let rights = PolicyRights::new(&caller, &environment, policy.apps.as_deref());
    let revisions = DocumentRevisions::of_policy(&caller, &environment, &name);
    let found = revisions.page(query.before).await?;
    let marks = revisions.marks(&found.revisions);
    let older = found.next.map(|before| format!("?before={before}#history"));
    let mut proposals = proposals::open(&caller, &environment).await?;
    proposals.retain(|of| of.name == name);
    let hours = query.hours();
    let plot = PlotView::read(&caller, &environment, &name, &marks, PlotRange::last(hours)).await?;
    let quotas = QuotaFields::all(&policy.toml);
    let quotas = quotas.into_iter().map(|of| QuotaRow {
        id: of.id,
        key: of.key,
        sentence: of.numbers.short_sentence(),
        until: of.until,
    });
    let fields = PolicyFields::of(&name, &policy.toml);
    let reach = reach(&caller, &environment, &policy, &layout).await;
    let links = PolicyLinks::new(&environment, &name, policy.apps.as_deref());
    let ranges = RANGES.iter().map(|(of, text)| NavLink {
        href: format!("{}?hours={of}", links.policy),
        text: (*text).to_owned(),
        is_current: *of == hours,
    });
    let mut layout = layout.with_notice(query.notice.as_deref());
    layout.notice = query.test_result().or(layout.notice);
    let suspended = links::page(&environment, &["suspended"]);
    Ok(render(&PolicyTemplate {
        ranges: ranges.collect(),
        ends: offered_durations(PageTime(now_micros()), 24),
        trial: trials::of(&caller, &environment, &name).await?,
        keys: KeyTables::recent(&caller, &environment, Some(&name)).await?,
        blocks: blocks_of_policy(&caller, &environment, policy.apps.as_deref()).await?,
        mode: PolicyMode::of(&policy, &layout.suspensions),
        suspend_href: format!(
            "{suspended}?scope={}#suspend",
            links::encode(&format!("policy:{name}"))
        ),
        connect_href: links.apps.first().map_or_else(
            || links::page(&environment, &["apps", ALL_APPS, "connect"]),
            |app| format!("{}/connect", app.href),
        ),
        layout,
        links,
        reach,
        rights,
        is_managed_elsewhere: policy.managed_by != crate::admin::edit::MANAGED_BY_UI,
        quotas: quotas.collect(),
        key_parts: fields.key_part_names(),
        fields,
        closed_proposals: proposals::closed_by_change(&proposals, &policy),
        proposals,
        proposals_href: links::page(&environment, &["proposals"]),
        user: caller.actor.name.clone(),
        revisions: found.revisions,
        older,
        plot,
        policy,
    }))
}

/// Returns the replicas of the apps of a policy that have adopted the published registry; `None` if
/// no replica follows it, or they are not known.
async fn reach(
    caller: &PageCaller,
    environment: &str,
    policy: &PolicyView,
    layout: &Layout,
) -> Option<String> {
    let published = layout.status.as_ref()?.registry_revision;
    let list = caller.api.get(&links::api(environment, &["subscribers"])).await;
    let list: SubscriberListView = list.ok().filter(|_| policy.is_in_force())?;
    let is_concerned = |of: &&SubscriberView| match (&policy.apps, &of.app) {
        (None, _) | (_, None) => true,
        (Some(apps), Some(app)) => app == ALL_APPS || apps.contains(app),
    };
    let concerned: Vec<_> = list.subscribers.iter().filter(is_concerned).collect();
    let adopted = concerned.iter().filter(|of| of.revision >= published).count();
    let all = concerned.len();
    (all > 0).then(|| format!("{} of {}", grouped(adopted), count(all, "replica")))
}
