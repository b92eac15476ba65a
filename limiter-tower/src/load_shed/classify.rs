//! How much a request matters, and whether it is counted at all.

use http::Request;

use super::priority::Priority;
use crate::skip::{SkipRequest, Unless};

/// Says of a request with a body of type `B` how much it matters. Closures implement it, which
/// answer a [`Priority`], or an [`Option`] of one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say how much a `Request<{B}>` matters",
    note = "give a closure that takes `&Request<{B}>` and returns a `Priority`, or an `Option<Priority>`"
)]
pub trait Classify<B> {
    /// Its class; `None` lets it pass, uncounted.
    fn classify(&self, request: &Request<B>) -> Option<Priority>;
}

#[diagnostic::do_not_recommend]
impl<F, B, T> Classify<B> for F
where
    F: Fn(&Request<B>) -> T,
    T: Into<Option<Priority>>,
{
    fn classify(&self, request: &Request<B>) -> Option<Priority> {
        self(request).into()
    }
}

/// All requests matter alike. What a [`LoadShedLayer`](crate::LoadShedLayer) begins with.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultPriority(());

impl DefaultPriority {
    pub(super) const fn new() -> Self {
        Self(())
    }
}

impl<B> Classify<B> for DefaultPriority {
    fn classify(&self, _: &Request<B>) -> Option<Priority> {
        Some(Priority::Normal)
    }
}

impl<B, S: SkipRequest<B>, C: Classify<B>> Classify<B> for Unless<S, C> {
    fn classify(&self, request: &Request<B>) -> Option<Priority> {
        self.unless_skipped(request, |classify| classify.classify(request))
            .flatten()
    }
}
