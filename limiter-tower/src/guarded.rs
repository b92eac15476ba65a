//! A service behind a layer: the inner one, and what all clones have in common.

use std::fmt;
use std::mem;
use std::sync::Arc;

/// A service `S` behind one of this crate's layers, which guards it by `L` and tells requests apart by `E`.
///
/// Readiness and backpressure are those of the inner service, and the instance of it that was found ready is the one that is called.
/// It is cloned for each request by axum and others, so all that clones share is behind one pointer.
pub struct Guarded<S, L, E> {
    pub(crate) inner: S,
    pub(crate) guard: Arc<Guard<L, E>>,
}

/// What the clones of a guarded service share.
#[derive(Debug)]
pub(crate) struct Guard<L, E> {
    pub(crate) limits: Arc<L>,
    /// What finds a request's key, or its class.
    pub(crate) key: Arc<E>,
}

impl<S, L, E> Guarded<S, L, E> {
    pub(crate) fn new(inner: S, limits: Arc<L>, key: Arc<E>) -> Self {
        let guard = Arc::new(Guard { limits, key });
        Self { inner, guard }
    }

    /// The inner service.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// The inner service, to change it.
    pub fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service, with nothing before it.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Clone, L, E> Guarded<S, L, E> {
    /// The inner service that was found ready. A clone stays behind, which is not.
    pub(crate) fn take_ready(&mut self) -> S {
        let unready = self.inner.clone();
        mem::replace(&mut self.inner, unready)
    }

    /// Lets go of what the inner service has reserved to be ready, which others may need.
    pub(crate) fn release_ready(&mut self) {
        drop(self.take_ready());
    }
}

impl<S: Clone, L, E> Clone for Guarded<S, L, E> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            guard: Arc::clone(&self.guard),
        }
    }
}

impl<S: fmt::Debug, L: fmt::Debug, E> fmt::Debug for Guarded<S, L, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded")
            .field("inner", &self.inner)
            .field("limits", &self.guard.limits)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService, L, E> tonic::server::NamedService for Guarded<S, L, E> {
    const NAME: &'static str = S::NAME;
}
