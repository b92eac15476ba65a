//! A key extractor whose type is erased.

use std::fmt;
use std::sync::Arc;

use http::Request;

use super::{Answer, ExtractKey};

/// A key extractor for requests with a body of type `B`, whose own type is erased. A layer with it can be named as a field's
/// type: see [`RateLimitLayer::boxed`](crate::RateLimitLayer::boxed).
pub struct BoxExtractor<B> {
    extractor: Arc<dyn ExtractKey<B> + Send + Sync>,
}

impl<B> BoxExtractor<B> {
    pub(crate) fn new<E: ExtractKey<B> + Send + Sync + 'static>(extractor: Arc<E>) -> Self {
        Self { extractor }
    }
}

impl<B> ExtractKey<B> for BoxExtractor<B> {
    fn extract<'a>(&'a self, request: &'a Request<B>) -> Answer<'a> {
        self.extractor.extract(request)
    }
}

impl<B> Clone for BoxExtractor<B> {
    fn clone(&self) -> Self {
        Self {
            extractor: Arc::clone(&self.extractor),
        }
    }
}

impl<B> fmt::Debug for BoxExtractor<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxExtractor")
    }
}
