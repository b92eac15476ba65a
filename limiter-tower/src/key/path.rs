//! The path as the key.

use http::Request;
use limiter_core::Key;

use super::extraction::Extraction;
use super::extractor::KeyExtractor;

/// Limits each path separately: `/search` and `/users/1` have separate budgets, each shared by all
/// callers.
///
/// The path is used as it was sent, without the query: `/search`, `/search/` and `/%73earch` are
/// three keys. If one handler serves several paths, a client has a separate budget for each of
/// them; use the route's template as key instead (`matched_path`, with the feature `axum`). Below
/// axum's `nest` the path lacks its prefix.
///
/// It is rarely the only limit: `(key::client_ip(key::TrustedProxies::hops(1)), key::path())` gives
/// each client a budget for each path.
///
/// ```
/// # use http::Request;
/// # use limiter_core::Key;
/// # use limiter_tower::key::{self, Extraction, KeyExtractor};
/// let request = Request::get("https://example.com/users/7?page=2").body(()).unwrap();
/// assert_eq!(key::path().extract(&request), Extraction::Key(Key::from("/users/7")));
/// ```
pub fn path() -> Path {
    Path(())
}

/// Returns the path as the key. Created by [`path`].
#[derive(Clone, Copy, Debug)]
#[must_use = "pass the extractor to `RateLimitLayer::key`"]
pub struct Path(());

impl<B> KeyExtractor<B> for Path {
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        Extraction::Key(Key::from(request.uri().path()))
    }
}
