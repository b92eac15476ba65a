//! Classifiers: the priority of a request, or none for requests that are not counted.

use http::Request;

use super::priority::Priority;
use crate::skip::{SkipRequest, UnlessSkipped};

/// Returns the priority of a request with a body of type `B`. Implemented by closures that return a
/// [`Priority`] or an [`Option`] of one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not return the priority of a `Request<{B}>`",
    note = "give a closure that takes `&Request<{B}>` and returns a `Priority`, or an `Option<Priority>`"
)]
pub trait Classify<B> {
    /// Returns the priority; `None` lets the request pass without counting it.
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

/// Gives all requests [`Priority::Normal`]. The default of [`LoadShedLayer`](crate::LoadShedLayer).
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

impl<B, S: SkipRequest<B>, C: Classify<B>> Classify<B> for UnlessSkipped<S, C> {
    fn classify(&self, request: &Request<B>) -> Option<Priority> {
        self.unless_skipped(request, |classify| classify.classify(request))
            .flatten()
    }
}
