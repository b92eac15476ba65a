//! All changes of an environment in one timeline, for administrators of the server with the changes
//! of users; also as lines of JSON.
//!
//! API route below the namespace: `GET audit`, filtered by object and author. The timeline omits
//! reads of keys, and the export contains them. Tests: `tests/pages/statements.rs`,
//! `tests/pages/people.rs`.

use std::io;
use std::sync::Arc;

use askama::Template;
use axum::body::Body;
use axum::extract::{Path, Query};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;
use serde_json::Value;

use crate::admin::pages::audit::{AuditView, ChangeRow};
use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::layout::{Layout, Section};
use crate::admin::pages::{links, render};

/// The number of entries of a page.
const PAGE: i64 = 50;
/// The number of entries of a part of an export.
const EXPORT_PAGE: i64 = 1_000;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ChangesQuery {
    object: String,
    actor: String,
    before: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct EntryListView {
    entries: Vec<Value>,
    next: Option<i64>,
}

#[derive(Template)]
#[template(path = "changes.html")]
struct ChangesTemplate {
    layout: Layout,
    href: String,
    query: ChangesQuery,
    rows: Vec<ChangeRow>,
    next: Option<String>,
    export: String,
}

impl ChangesQuery {
    /// Returns the filters as a query.
    fn filters(&self) -> String {
        let mut query = String::new();
        for (name, value) in [("object", &self.object), ("actor", &self.actor)] {
            if !value.trim().is_empty() {
                query.push_str(&format!("&{name}={}", links::encode(value.trim())));
            }
        }
        query
    }
}

async fn read(
    caller: &PageCaller,
    environment: &str,
    query: &ChangesQuery,
    (limit, filter): (i64, &str),
) -> Result<EntryListView, PageFailure> {
    let before = query.before.unwrap_or(i64::MAX);
    let path = links::api(environment, &["audit"]);
    let users = if caller.actor.is_server_admin {
        "&users=true"
    } else {
        ""
    };
    let path = format!(
        "{path}?limit={limit}&before={before}{users}{filter}{}",
        query.filters()
    );
    caller.api.get(&path).await
}

pub(super) async fn show(
    caller: PageCaller,
    Path(environment): Path<String>,
    Query(query): Query<ChangesQuery>,
) -> Result<Response, PageFailure> {
    let layout = Layout::of_environment(&caller, &environment, Section::Changes, "Changes").await?;
    // Reads of keys are in the export.
    let list = read(&caller, &environment, &query, (PAGE, "&changes=true")).await?;
    let href = links::page(&environment, &["changes"]);
    let entries = list.entries.into_iter();
    let entries = entries.filter_map(|of| serde_json::from_value::<AuditView>(of).ok());
    let rows = entries.map(|entry| ChangeRow::new(&environment, entry));
    Ok(render(&ChangesTemplate {
        rows: rows.collect(),
        next: list
            .next
            .map(|next| format!("{href}?before={next}{}", query.filters())),
        export: format!("{href}/export?{}", query.filters().trim_start_matches('&')),
        href,
        query,
        layout,
    }))
}

/// Returns the selected entries as lines of JSON, the newest first. An error after the first part
/// ends the response before its end, so a client does not take the file for a complete one.
pub(super) async fn export(
    caller: PageCaller,
    Path(environment): Path<String>,
    Query(query): Query<ChangesQuery>,
) -> Result<Response, PageFailure> {
    caller.require_environment(&environment)?;
    let first = read(&caller, &environment, &query, (EXPORT_PAGE, "")).await?;
    // In parts, since the history of years has any number of entries.
    let (caller, environment) = (Arc::new(caller), Arc::new(environment));
    let parts = stream::try_unfold((Some(first), query), move |(list, mut query)| {
        let (caller, environment) = (Arc::clone(&caller), Arc::clone(&environment));
        async move {
            let Some(list) = list else { return Ok(None) };
            let lines: String = list.entries.iter().map(|entry| format!("{entry}\n")).collect();
            let next = match list.next {
                Some(next) => {
                    query.before = Some(next);
                    let next = read(&caller, &environment, &query, (EXPORT_PAGE, "")).await;
                    Some(next.map_err(|_| io::Error::other("the history cannot be read"))?)
                }
                None => None,
            };
            Ok::<_, io::Error>(Some((lines, (next, query))))
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "application/jsonl; charset=utf-8"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"changes.jsonl\"",
        ),
    ];
    Ok((headers, Body::from_stream(parts)).into_response())
}
