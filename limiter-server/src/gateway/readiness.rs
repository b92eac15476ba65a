//! Readiness: the gateway has policies and is not shutting down.
//!
//! A gateway without policies must not decide: it would allow every call. Readiness does not depend
//! on Redis after the first answer, because the policies stay in force during an outage.

use std::sync::Arc;

use tokio::sync::watch;

/// The state of the gateway. Cheap to clone; clones share the state.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<watch::Sender<ReadinessState>>);

/// A state of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadinessState {
    /// No policy source has answered yet.
    WaitsForPolicies,
    /// Requests are decided.
    Ready,
    /// The process is shutting down.
    Ending,
}

impl Readiness {
    /// Creates the state at the start of the process.
    #[must_use]
    pub fn new(has_policies: bool) -> Self {
        let state = match has_policies {
            true => ReadinessState::Ready,
            false => ReadinessState::WaitsForPolicies,
        };
        Self(Arc::new(watch::Sender::new(state)))
    }

    /// Returns the current state.
    #[must_use]
    pub fn state(&self) -> ReadinessState {
        *self.0.borrow()
    }

    /// Returns whether requests are decided.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state() == ReadinessState::Ready
    }

    /// Returns a receiver of changes of the state.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<ReadinessState> {
        self.0.subscribe()
    }

    /// Records the first answer of a policy source.
    pub fn policies_received(&self) {
        self.0.send_if_modified(|state| {
            let changes = *state == ReadinessState::WaitsForPolicies;
            if changes {
                *state = ReadinessState::Ready;
            }
            changes
        });
    }

    /// Records the start of the shutdown.
    pub fn end(&self) {
        self.0.send_replace(ReadinessState::Ending);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_policies_do_not_revive_a_gateway_that_is_shutting_down() {
        let readiness = Readiness::new(false);
        assert!(!readiness.is_ready());
        readiness.policies_received();
        assert!(readiness.is_ready());
        readiness.end();
        readiness.policies_received();
        assert_eq!(readiness.state(), ReadinessState::Ending);
    }
}
