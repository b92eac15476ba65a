//! The state that a client shares with its rate limiters.

use std::fmt;

use limiter_core::Limiter;
use limiter_core::registry::SharedRegistry;

pub(crate) struct ClientState {
    pub(crate) limits: Limiter,
    pub(crate) id: Box<str>,
    pub(crate) registry: SharedRegistry,
}

impl ClientState {
    pub(crate) fn new(limits: &Limiter, id: String) -> Self {
        Self {
            limits: limits.clone(),
            id: id.into(),
            registry: limits.shared_registry(),
        }
    }
}

impl fmt::Debug for ClientState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.id)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
