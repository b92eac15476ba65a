//! The revisions of a policy or of the rules: pages of a list, a comparison, the one of a time.
//!
//! API routes below the namespace: `GET …/history` and `GET …/history/{number}` of
//! `policies/{name}` or `rules`. A revision that the user may not read is absent. Tests:
//! `tests/pages/tasks.rs`, `tests/pages/facts.rs`.

use axum::http::StatusCode;
use serde::Deserialize;

use crate::admin::pages::caller::PageCaller;
use crate::admin::pages::diff::{DiffLine, diff_lines};
use crate::admin::pages::failure::PageFailure;
use crate::admin::pages::links;
use crate::admin::pages::plot::PlotMark;
use crate::admin::pages::views::{RevisionListView, RevisionView};
use crate::admin::preview::unified_diff;

/// The number of revisions of a list.
const SHOWN: i64 = 20;

/// Reads the revisions of a document on behalf of the user of a page.
#[derive(Debug)]
pub(super) struct DocumentRevisions<'a> {
    caller: &'a PageCaller,
    environment: &'a str,
    /// The path below the environment, which is the same in the API and in the pages.
    document: Vec<&'a str>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ComparisonQuery {
    /// The revision to compare with. Without it, the newest one is compared with the one before
    /// it, and an older one with the newest.
    with: Option<i64>,
}

/// A revision and its differences from another one.
#[derive(Debug)]
pub(super) struct RevisionComparison {
    /// The page of the document.
    pub(super) href: String,
    pub(super) revision: RevisionView,
    /// The newest revision; `None` if the user may not read it.
    pub(super) newest: Option<RevisionView>,
    /// The revision with which this one is compared; `None` for the first one.
    pub(super) compared: Option<i64>,
    pub(super) diff: Vec<DiffLine>,
}

impl ComparisonQuery {
    /// Returns the revision with which revision `number` is compared; `None` for the first one.
    fn compared(&self, number: i64, newest: i64) -> Option<i64> {
        match self.with {
            Some(with) => Some(with),
            None if number == newest => Some(number - 1).filter(|before| *before > 0),
            None => Some(newest).filter(|newest| *newest > 0),
        }
    }
}

impl RevisionComparison {
    /// Returns the number of the newest revision; 0 if it is not known.
    pub(super) fn newest_number(&self) -> i64 {
        self.newest.as_ref().map_or(0, |newest| newest.number)
    }
}

impl<'a> DocumentRevisions<'a> {
    /// Returns the revisions of a policy.
    pub(super) fn of_policy(caller: &'a PageCaller, environment: &'a str, name: &'a str) -> Self {
        Self {
            caller,
            environment,
            document: vec!["policies", name],
        }
    }

    /// Returns the revisions of the rules.
    pub(super) fn of_rules(caller: &'a PageCaller, environment: &'a str) -> Self {
        Self {
            caller,
            environment,
            document: vec!["rules"],
        }
    }

    fn route(&self) -> String {
        links::api(self.environment, &self.document) + "/history"
    }

    /// Returns the page of the document.
    fn href(&self) -> String {
        links::page(self.environment, &self.document)
    }

    async fn list(&self, query: &str) -> Result<RevisionListView, PageFailure> {
        self.caller.api.get(&format!("{}?{query}", self.route())).await
    }

    /// Returns the newest revisions before a number.
    pub(super) async fn page(&self, before: Option<i64>) -> Result<RevisionListView, PageFailure> {
        let before = before.unwrap_or(i64::MAX);
        self.list(&format!("limit={SHOWN}&before={before}")).await
    }

    /// Returns one revision.
    async fn read(&self, number: i64) -> Result<RevisionView, PageFailure> {
        self.caller.api.get(&format!("{}/{number}", self.route())).await
    }

    /// Returns the newest revision that the user may read. Under the name of a deleted policy,
    /// newer ones can belong to another app.
    async fn newest(&self) -> Result<Option<RevisionView>, PageFailure> {
        let mut list = self.list("limit=1").await?;
        if list.revisions.is_empty() && list.next.is_some() {
            list = self.page(None).await?;
        }
        Ok(list.revisions.into_iter().next())
    }

    /// Returns the revision that was saved last until a time, without those that had a conflict.
    pub(super) async fn at(&self, at: i64) -> Result<Option<RevisionView>, PageFailure> {
        let list = self.list(&format!("at={at}")).await?;
        Ok(list.revisions.into_iter().next())
    }

    /// Returns the first revision that was saved after a time. `last` is the one of [`Self::at`].
    pub(super) async fn after(
        &self,
        last: Option<&RevisionView>,
        at: i64,
    ) -> Result<Option<RevisionView>, PageFailure> {
        let mut number = last.map_or(0, |last| last.number);
        loop {
            number += 1;
            let next = match self.read(number).await {
                Err(failure) if failure.status == StatusCode::NOT_FOUND => return Ok(None),
                next => next?,
            };
            match next.created_at.0 > at {
                true => return Ok(Some(next)),
                false if next.has_conflict() => {}
                false => return Ok(None),
            }
        }
    }

    /// Returns the marks of revisions in a plot.
    pub(super) fn marks(&self, revisions: &[RevisionView]) -> Vec<PlotMark> {
        let href = self.href();
        let marks = revisions.iter().map(|of| PlotMark {
            at: of.created_at.0,
            revision: of.number,
            href: format!("{href}/history/{}", of.number),
        });
        marks.collect()
    }

    /// Compares a revision with the one of a query. `content` returns the compared text.
    pub(super) async fn compare(
        &self,
        number: i64,
        query: &ComparisonQuery,
        content: impl Fn(&RevisionView) -> String,
    ) -> Result<RevisionComparison, PageFailure> {
        let revision = self.read(number).await?;
        let newest = self.newest().await?;
        let newest_number = newest.as_ref().map_or(0, |newest| newest.number);
        let compared = query.compared(number, newest_number);
        let before = match compared {
            Some(with) => content(&self.read(with).await?),
            None => String::new(),
        };
        Ok(RevisionComparison {
            href: self.href(),
            compared,
            diff: diff_lines(&unified_diff(&before, &content(&revision))),
            revision,
            newest,
        })
    }
}
