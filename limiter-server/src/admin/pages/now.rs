//! The first page of an environment: denials, descriptors without a rule, and open decisions.
//!
//! API routes below the namespace: `GET usage`, `GET keys/activity`, `GET proposals`,
//! `GET policies`, `GET policies/{name}/trial`, `GET unmatched`. Tests: `tests/pages/tasks.rs`,
//! `tests/pages/replicas.rs`, `tests/pages/truth.rs`.

use askama::Template;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::Response;

use crate::admin::pages::activity::KeyTables;
use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::policy_list::all_policies;
use crate::admin::pages::proposals;
use crate::admin::pages::publication;
use crate::admin::pages::time::PageTime;
use crate::admin::pages::trials;
use crate::admin::pages::usage::{UsageListView, UsageView};
use crate::admin::pages::{links, render};

/// The number of policies in the list of denials.
const MAX_DENIED: usize = 10;
/// The number of descriptors in the list of those without a rule.
const MAX_UNMATCHED: usize = 20;

#[derive(Debug)]
struct DeniedRow {
    href: String,
    explain: String,
    usage: UsageView,
}

/// Something that waits for a user.
#[derive(Debug)]
struct WaitingRow {
    href: String,
    object: String,
    class: &'static str,
    state: &'static str,
    detail: String,
    at: PageTime,
}

#[derive(Debug)]
struct UnmatchedRow {
    descriptor: String,
    rules: String,
}

/// The requests without a rule or a policy.
#[derive(Debug)]
enum UnmatchedRows {
    /// The user may not read them.
    Hidden,
    /// This node sees no requests.
    NotKnown,
    Known(Vec<UnmatchedRow>),
}

#[derive(Template)]
#[template(path = "now.html")]
struct NowTemplate {
    layout: Layout,
    denied: Vec<DeniedRow>,
    calls: i64,
    keys: KeyTables,
    waiting: Vec<WaitingRow>,
    alerts: Vec<String>,
    status_href: String,
    unmatched: UnmatchedRows,
}

#[derive(Debug, serde::Deserialize)]
struct UnmatchedView {
    unmatched: Option<Vec<String>>,
}

impl UnmatchedRows {
    fn is_hidden(&self) -> bool {
        matches!(self, Self::Hidden)
    }
}

pub(super) async fn show(
    caller: PageCaller,
    Path(environment): Path<String>,
) -> Result<Response, PageFailure> {
    let layout = Layout::of_environment(&caller, &environment, Section::Now, "Now").await?;
    let usage: UsageListView = caller.api.get(&links::api(&environment, &["usage"])).await?;
    let calls = usage.policies.iter().map(|of| of.counts.calls()).sum();
    let mut denied = usage.policies;
    denied.retain(|of| of.counts.denied + of.counts.would_deny > 0);
    denied.sort_by_key(|of| std::cmp::Reverse((of.counts.denied, of.counts.would_deny)));
    denied.truncate(MAX_DENIED);
    let rows = denied.into_iter().map(|usage| DeniedRow {
        href: links::page(&environment, &["policies", &usage.policy]),
        explain: format!(
            "{}?policy={}",
            links::page(&environment, &["explain"]),
            links::encode(&usage.policy)
        ),
        usage,
    });
    let alerts = layout.status.iter().flat_map(|status| &status.alerts);
    let alerts = alerts.map(|of| of.detail.clone()).collect();
    Ok(render(&NowTemplate {
        denied: rows.collect(),
        calls,
        keys: KeyTables::recent(&caller, &environment, None).await?,
        waiting: waiting(&caller, &environment).await?,
        alerts,
        status_href: links::page(&environment, &["status"]),
        unmatched: unmatched(&caller, &environment).await?,
        layout,
    }))
}

/// Proposals, trials, and policies that are not in force.
async fn waiting(caller: &PageCaller, environment: &str) -> Result<Vec<WaitingRow>, PageFailure> {
    let mut rows: Vec<WaitingRow> = proposals::open(caller, environment)
        .await?
        .into_iter()
        .map(|of| WaitingRow {
            href: links::page(environment, &["policies", &of.name]),
            object: of.name,
            class: "waiting",
            state: "Proposed",
            detail: match of.reason {
                Some(reason) => format!("by {}: {reason}", of.author),
                None => format!("by {}", of.author),
            },
            at: of.created_at,
        })
        .collect();
    let policies = all_policies(caller, environment).await?;
    for of in policies.iter().filter(|of| of.has_trial) {
        if let Some(trial) = trials::of(caller, environment, &of.name).await? {
            rows.push(WaitingRow {
                href: links::page(environment, &["policies", &of.name]) + "#trial",
                object: of.name.clone(),
                class: trial.class(),
                state: trial.word(),
                detail: trial.comparison(),
                at: trial.since,
            });
        }
    }
    let pending = policies
        .into_iter()
        .filter(|of| !publication::is_in_force(&of.state));
    rows.extend(pending.map(|of| WaitingRow {
        href: links::page(environment, &["policies", &of.name]),
        class: publication::class(&of.state),
        state: publication::word(&of.state),
        detail: format!("changed by {}", of.updated_by),
        at: of.updated_at,
        object: of.name,
    }));
    Ok(rows)
}

async fn unmatched(caller: &PageCaller, environment: &str) -> Result<UnmatchedRows, PageFailure> {
    let path = links::api(environment, &["unmatched"]);
    let listed: UnmatchedView = match caller.api.get(&path).await {
        Err(failure) if failure.status == StatusCode::FORBIDDEN => return Ok(UnmatchedRows::Hidden),
        result => result?,
    };
    let Some(listed) = listed.unmatched else {
        return Ok(UnmatchedRows::NotKnown);
    };
    let newest = listed.into_iter().rev().take(MAX_UNMATCHED);
    let rows = newest.map(|descriptor| UnmatchedRow {
        rules: format!(
            "{}?descriptor={}#edit",
            links::page(environment, &["rules"]),
            links::encode(&descriptor)
        ),
        descriptor,
    });
    Ok(UnmatchedRows::Known(rows.collect()))
}
