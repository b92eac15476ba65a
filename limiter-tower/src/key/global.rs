//! One budget for everybody, by intention.

use http::Request;
use limiter_core::Key;

use super::extraction::Extraction;
use super::extractor::KeyExtractor;

/// Limits all requests by one budget: what the service can bear, whoever asks.
///
/// One caller can use it up for all others; it seldom is the only limit.
pub fn global() -> Global {
    Global(())
}

/// Gives every request the same key. Made by [`global`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an extractor is to be given to `RateLimitLayer::key`"]
pub struct Global(());

impl<B> KeyExtractor<B> for Global {
    fn extract<'a>(&'a self, _: &'a Request<B>) -> Extraction<'a> {
        Extraction::Key(Key::global())
    }
}
