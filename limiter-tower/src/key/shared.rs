//! One budget for everybody, by intention.

use http::Request;
use limiter_core::Key;

use super::ExtractKey;
use super::answer::Answer;

/// Limits all requests by one budget: what the service can bear, whoever asks.
///
/// One caller can use it up for all others; it seldom is the only limit.
pub fn shared() -> Shared {
    Shared(())
}

/// Gives every request the same key. Made by [`shared`].
#[derive(Clone, Copy, Debug)]
#[must_use = "an extractor is to be given to `RateLimitLayer::key`"]
pub struct Shared(());

impl<B> ExtractKey<B> for Shared {
    fn extract<'a>(&'a self, _: &'a Request<B>) -> Answer<'a> {
        Answer::Key(Key::shared())
    }
}
