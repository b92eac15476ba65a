//! One key for all requests.

use http::Request;
use limiter_core::Key;

use super::extraction::Extraction;
use super::extractor::KeyExtractor;

/// Limits all requests by one budget: the total capacity of the service.
///
/// One caller can use it up for all others, so it is rarely the only limit.
pub fn global() -> Global {
    Global(())
}

/// Returns the same key for all requests. Created by [`global`].
#[derive(Clone, Copy, Debug)]
#[must_use = "pass the extractor to `RateLimitLayer::key`"]
pub struct Global(());

impl<B> KeyExtractor<B> for Global {
    fn extract<'a>(&'a self, _: &'a Request<B>) -> Extraction<'a> {
        Extraction::Key(Key::global())
    }
}
