//! Pages of lists that are read as a whole, because roles decide which entries are visible.

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use serde::Deserialize;
use serde_json::Value;
use utoipa::IntoParams;

use crate::admin::Admin;
use crate::admin::api::problem::AdminProblem;
use crate::admin::permissions::Actor;

/// The default and the largest number of entries of a page.
const PAGE: (i64, i64) = (100, 1_000);

/// Returns the number of entries of a page.
pub(super) fn page(limit: Option<i64>) -> i64 {
    limit.unwrap_or(PAGE.0).clamp(1, PAGE.1)
}

/// The parameters of a list.
#[derive(Debug, Deserialize, IntoParams)]
pub(super) struct ListPageQuery {
    /// The `next` of the previous page; absent for the first page.
    after: Option<String>,
    /// The largest number of entries. Default 100, at most 1,000.
    limit: Option<i64>,
}

/// The requested page of a list.
#[derive(Debug)]
pub(super) struct ListPage {
    after: Option<String>,
    limit: usize,
}

impl FromRequestParts<Admin> for ListPage {
    type Rejection = AdminProblem;

    async fn from_request_parts(parts: &mut Parts, admin: &Admin) -> Result<Self, Self::Rejection> {
        let query = Query::<ListPageQuery>::from_request_parts(parts, admin).await;
        let Query(query) = query.map_err(|error| AdminProblem::bad_request(error.body_text()))?;
        // The pages of the UI show whole lists.
        let is_of_ui = parts.extensions.get::<Actor>().is_some() && query.limit.is_none();
        let limit = usize::try_from(page(query.limit)).unwrap_or(usize::MAX);
        Ok(Self {
            after: query.after,
            limit: if is_of_ui { usize::MAX } else { limit },
        })
    }
}

impl ListPage {
    /// Returns the entries of the page, and the cursor of the next page. `id` identifies an entry
    /// by its number in the list and its content.
    ///
    /// # Errors
    ///
    /// A bad request if the last entry of the previous page does not exist any more.
    pub(super) fn select(
        self,
        entries: Vec<Value>,
        id: impl Fn(usize, &Value) -> String,
    ) -> Result<(Vec<Value>, Option<String>), AdminProblem> {
        let start = match &self.after {
            None => 0,
            Some(after) => {
                let mut numbered = entries.iter().enumerate();
                let last = numbered.find(|(number, entry)| id(*number, entry) == *after);
                let gone = "the entry of `after` does not exist any more: read the list from its start";
                last.ok_or_else(|| AdminProblem::bad_request(gone))?
                    .0
                    .saturating_add(1)
            }
        };
        let end = start.saturating_add(self.limit);
        let next = match end < entries.len() {
            true => end
                .checked_sub(1)
                .and_then(|last| Some(id(last, entries.get(last)?))),
            false => None,
        };
        let selected = entries.into_iter().skip(start).take(self.limit);
        Ok((selected.collect(), next))
    }
}

/// Returns the identity of an entry by a field.
pub(super) fn by_field(name: &'static str) -> impl Fn(usize, &Value) -> String {
    move |_, entry| entry[name].as_str().unwrap_or_default().to_owned()
}
