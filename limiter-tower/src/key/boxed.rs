//! A key extractor with an erased type.

use std::fmt;
use std::sync::Arc;

use http::Request;

use super::extraction::Extraction;
use super::extractor::KeyExtractor;

/// A key extractor for requests with a body of type `B`, with its type erased. A struct field can
/// name the type of a layer with it: see [`RateLimitLayer::boxed`](crate::RateLimitLayer::boxed).
pub struct BoxKeyExtractor<B> {
    extractor: Arc<dyn KeyExtractor<B> + Send + Sync>,
}

impl<B> BoxKeyExtractor<B> {
    pub(crate) fn new<E: KeyExtractor<B> + Send + Sync + 'static>(extractor: Arc<E>) -> Self {
        Self { extractor }
    }
}

impl<B> KeyExtractor<B> for BoxKeyExtractor<B> {
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Extraction<'a> {
        self.extractor.extract(request)
    }
}

impl<B> Clone for BoxKeyExtractor<B> {
    fn clone(&self) -> Self {
        Self {
            extractor: Arc::clone(&self.extractor),
        }
    }
}

impl<B> fmt::Debug for BoxKeyExtractor<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxKeyExtractor")
    }
}
