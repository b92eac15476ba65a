//! The page of a policy: its sentence and state, quotas of keys, proposals and history.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::{Method, StatusCode, header};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admin::pages::apps::NoticeQuery;
use crate::admin::pages::caller::{PageCaller, PageForm};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, NavLink, Section, count};
use crate::admin::pages::policy_fields::{PolicyFields, QuotaFields};
use crate::admin::pages::usage::{PlotMark, PlotView};
use crate::admin::pages::views::{
    PolicyView, ProposalListView, ProposalView, RevisionListView, RevisionView, SubscriberListView,
    SubscriberView,
};
use crate::admin::pages::{links, render, see};
use crate::admin::permissions::{ALL_APPS, AdminAction};
use crate::admin::preview::unified_diff;
use crate::admin::sentence::sentence;
use crate::policy_text::PolicyText;

/// The number of revisions on the page of a policy.
const REVISIONS: i64 = 20;

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
    /// The replicas that have the policy, such as `11 of 12 replicas`.
    reach: Option<String>,
    rights: PolicyRights,
    /// Whether the text is edited in another place.
    is_managed_elsewhere: bool,
    quotas: Vec<QuotaRow>,
    fields: PolicyFields,
    proposals: Vec<ProposalView>,
    proposals_href: String,
    user: String,
    revisions: Vec<RevisionView>,
    older: Option<String>,
    plot: PlotView,
}

#[derive(Template)]
#[template(path = "revision.html")]
struct RevisionTemplate {
    layout: Layout,
    links: PolicyLinks,
    name: String,
    revision: RevisionView,
    sentence: Option<String>,
    /// The newest revision; 0 if it is not known.
    newest: i64,
    diff: Vec<DiffLine>,
    is_owner: bool,
}

#[derive(Template)]
#[template(path = "deletion.html")]
struct DeletionTemplate {
    layout: Layout,
    links: PolicyLinks,
    policy: PolicyView,
}

/// A line of a difference with its class.
#[derive(Debug)]
pub(super) struct DiffLine {
    pub(super) class: &'static str,
    pub(super) text: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct HistoryQuery {
    notice: Option<String>,
    before: Option<i64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct DeletionForm {
    revision: i64,
}

#[derive(Debug, Deserialize)]
pub(super) struct RestoreForm {
    /// The newest revision, which the user read.
    newest: i64,
    number: i64,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct DecisionForm {
    policy: String,
    reason: Option<String>,
}

/// The lines of a difference.
pub(super) fn diff_lines(diff: &str) -> Vec<DiffLine> {
    let lines = diff.lines().map(|line| DiffLine {
        class: match line.as_bytes().first() {
            Some(b'+') => "add",
            Some(b'-') => "del",
            Some(b'@') => "muted",
            _ => "same",
        },
        text: line.to_owned(),
    });
    lines.collect()
}

/// A text of a form; `None` if it is empty.
pub(super) fn optional(text: Option<String>) -> Option<String> {
    text.map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty())
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

/// Reads a policy that is not deleted.
pub(super) async fn read(
    caller: &PageCaller,
    environment: &str,
    name: &str,
) -> Result<PolicyView, PageFailure> {
    caller.require_environment(environment)?;
    caller
        .api
        .get(&links::api(environment, &["policies", name]))
        .await
}

async fn history(
    caller: &PageCaller,
    environment: &str,
    name: &str,
    before: Option<i64>,
) -> Result<RevisionListView, PageFailure> {
    let path = links::api(environment, &["policies", name, "history"]);
    let before = before.unwrap_or(i64::MAX);
    caller
        .api
        .get(&format!("{path}?limit={REVISIONS}&before={before}"))
        .await
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
            let deletion = history(&caller, &environment, &name, None).await?;
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
    let found = history(&caller, &environment, &name, query.before).await?;
    let older = found.next.map(|before| format!("?before={before}#history"));
    let proposals: ProposalListView = caller.api.get(&links::api(&environment, &["proposals"])).await?;
    let proposals = proposals.proposals.into_iter().filter(|of| of.name == name);
    let marks = found.revisions.iter().map(|of| PlotMark {
        at: of.created_at.0,
        revision: of.number,
        href: links::page(
            &environment,
            &["policies", &name, "history", &of.number.to_string()],
        ),
    });
    let marks: Vec<PlotMark> = marks.collect();
    let plot = PlotView::read(&caller, &environment, &name, &marks).await?;
    let quotas = QuotaFields::all(&policy.toml);
    let quotas = quotas.into_iter().map(|(key, numbers, until)| QuotaRow {
        key,
        sentence: numbers.short_sentence(),
        until,
    });
    let reach = reach(&caller, &environment, &policy, &layout).await;
    Ok(render(&PolicyTemplate {
        layout: layout.with_notice(query.notice.as_deref()),
        links: PolicyLinks::new(&environment, &name, policy.apps.as_deref()),
        reach,
        rights,
        is_managed_elsewhere: policy.managed_by != crate::admin::edit::MANAGED_BY_UI,
        quotas: quotas.collect(),
        fields: PolicyFields::of(&name, &policy.toml),
        proposals: proposals.collect(),
        proposals_href: links::page(&environment, &["proposals"]),
        user: caller.actor.name.clone(),
        revisions: found.revisions,
        older,
        plot,
        policy,
    }))
}

/// The replicas of the apps of a policy that have adopted the published registry; `None` if no
/// replica follows it, or they are not known.
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
    (all > 0).then(|| format!("{adopted} of {}", count(all, "replica")))
}

pub(super) async fn revision(
    caller: PageCaller,
    Path((environment, name, number)): Path<(String, String, i64)>,
    Query(query): Query<NoticeQuery>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let path = links::api(&environment, &["policies", &name, "history", &number.to_string()]);
    let revision: RevisionView = caller.api.get(&path).await?;
    let newest = history(&caller, &environment, &name, None).await?;
    let newest = newest.revisions.into_iter().next();
    let text = |of: &RevisionView| PolicyText::parse(&name, &of.toml).ok();
    let shown = text(&revision);
    let is_newest = newest.as_ref().is_some_and(|of| of.number == revision.number);
    // The newest revision is compared with the one before it, an older one with the newest.
    let (before, after) = match (is_newest, &newest) {
        (true, _) => {
            let previous = history(&caller, &environment, &name, Some(revision.number)).await?;
            (previous.revisions.first().and_then(&text), shown.clone())
        }
        (false, Some(newest)) => (text(newest), shown.clone()),
        (false, None) => (None, shown.clone()),
    };
    let content = |of: &Option<PolicyText>| of.as_ref().map(PolicyText::content).unwrap_or_default();
    let apps = shown.as_ref().and_then(PolicyText::apps);
    let rights = PolicyRights::new(&caller, &environment, apps.as_deref());
    let title = format!("{name}, revision {number}");
    let layout = Layout::of_environment(&caller, &environment, Section::Apps, title).await?;
    Ok(render(&RevisionTemplate {
        layout: layout.with_notice(query.notice.as_deref()),
        links: PolicyLinks::new(&environment, &name, apps.as_deref()),
        sentence: shown.as_ref().map(sentence),
        newest: newest.map_or(0, |of| of.number),
        diff: diff_lines(&unified_diff(&content(&before), &content(&after))),
        is_owner: rights.is_owner,
        name,
        revision,
    }))
}

pub(super) async fn restore(
    caller: PageCaller,
    Path((environment, name)): Path<(String, String)>,
    PageForm(form): PageForm<RestoreForm>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let body = json!({ "revision": form.number, "reason": optional(form.reason) });
    let path = links::api(&environment, &["policies", &name, "restore"]);
    let condition = [(header::IF_MATCH, form.newest.to_string())];
    caller.api.send(Method::POST, &path, &condition, &body).await?;
    Ok(see(
        &(links::page(&environment, &["policies", &name]) + "?notice=restored")
    ))
}

pub(super) async fn ask_deletion(
    caller: PageCaller,
    Path((environment, name)): Path<(String, String)>,
) -> Result<Response, PageFailure> {
    let policy = read(&caller, &environment, &name).await?;
    if !PolicyRights::new(&caller, &environment, policy.apps.as_deref()).is_owner {
        return Err(PageFailure::forbidden(
            "A deletion needs the role owner in all apps of the policy.",
        ));
    }
    let title = format!("Delete {name}");
    let layout = Layout::of_environment(&caller, &environment, Section::Apps, title).await?;
    Ok(render(&DeletionTemplate {
        layout,
        links: PolicyLinks::new(&environment, &name, policy.apps.as_deref()),
        policy,
    }))
}

pub(super) async fn delete(
    caller: PageCaller,
    Path((environment, name)): Path<(String, String)>,
    PageForm(form): PageForm<DeletionForm>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let path = links::api(&environment, &["policies", &name]);
    let condition = [(header::IF_MATCH, form.revision.to_string())];
    let sent = caller.api.send(Method::DELETE, &path, &condition, &Value::Null);
    sent.await?;
    Ok(see(&(links::page(&environment, &["apps"]) + "?notice=removed")))
}

pub(super) async fn approve(
    caller: PageCaller,
    Path((environment, id)): Path<(String, String)>,
    PageForm(form): PageForm<DecisionForm>,
) -> Result<Response, PageFailure> {
    decide(&caller, &environment, &id, "approve", form).await
}

pub(super) async fn reject(
    caller: PageCaller,
    Path((environment, id)): Path<(String, String)>,
    PageForm(form): PageForm<DecisionForm>,
) -> Result<Response, PageFailure> {
    decide(&caller, &environment, &id, "reject", form).await
}

async fn decide(
    caller: &PageCaller,
    environment: &str,
    id: &str,
    decision: &str,
    form: DecisionForm,
) -> Result<Response, PageFailure> {
    caller.require_environment(environment)?;
    let path = links::api(environment, &["proposals", id, decision]);
    let body = json!({ "reason": optional(form.reason) });
    caller.api.send(Method::POST, &path, &[], &body).await?;
    let notice = match decision {
        "approve" => "saved",
        _ => "rejected",
    };
    let page = links::page(environment, &["policies", &form.policy]);
    Ok(see(&format!("{page}?notice={notice}")))
}
