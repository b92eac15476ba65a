//! The path as the key.

use http::Request;
use limiter_core::Key;

use super::extraction::Extraction;
use super::extractor::KeyExtractor;

/// Limits each path by itself: `/search` and `/users/1` have budgets of their own, for all callers
/// together.
///
/// The path is taken as it was sent, without the query: `/search`, `/search/` and `/%73earch` are
/// three. Where one handler answers many of them, a client gets a fresh budget with each; then the
/// route's template is the key (`matched_path`, with the feature `axum`). Below axum's `nest` the
/// path lacks its prefix.
///
/// Seldom is it the only limit: `(key::client_ip(key::TrustedProxies::hops(1)), key::path())` gives
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

/// Takes the path as the key. Made by [`path`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an extractor is to be given to `RateLimitLayer::key`"]
pub struct Path(());

impl<B> KeyExtractor<B> for Path {
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        Extraction::Key(Key::from(request.uri().path()))
    }
}
