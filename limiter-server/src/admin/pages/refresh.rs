//! Answers to the script that refreshes a page: nothing if the page has not changed.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;

use crate::admin::entity_tag;

/// The header of requests of the script.
const REFRESH: &str = "x-refresh";

/// Gives pages for the script an `ETag`, and answers 304 if the script has the same page.
pub(super) async fn with_tag(request: Request, next: Next) -> Response {
    match request.headers().contains_key(REFRESH) {
        true => entity_tag::answer(request, next).await,
        false => next.run(request).await,
    }
}
