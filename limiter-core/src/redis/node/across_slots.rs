//! Pauses of calls across slots, to a node that does not serve their keys or does not support them.

use std::time::{Duration, Instant};

use crate::support::sync::Mutex;

/// Pause after a reply that the node does not serve a key: its slots are being moved, or the map of
/// slots is outdated.
const PAUSE_WHILE_MOVING: Duration = Duration::from_secs(1);
/// Pause after a rejection. A server can be replaced by a later version.
const PAUSE_IF_UNSUPPORTED: Duration = Duration::from_secs(600);

/// A reason against calls across slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PauseReason {
    /// Slots are being moved, or the server rejects such calls for the moment.
    Moving,
    /// The server does not support such calls.
    Unsupported,
}

/// Calls across slots to one node.
#[derive(Debug, Default)]
pub(super) struct AcrossSlots {
    paused_until: Mutex<Option<Instant>>,
}

impl AcrossSlots {
    pub(super) fn are_allowed(&self, now: Instant) -> bool {
        self.paused_until.lock().is_none_or(|until| until <= now)
    }

    /// Pauses such calls for a reason.
    pub(super) fn pause(&self, reason: PauseReason, now: Instant) {
        let pause = match reason {
            PauseReason::Moving => PAUSE_WHILE_MOVING,
            PauseReason::Unsupported => PAUSE_IF_UNSUPPORTED,
        };
        let mut paused_until = self.paused_until.lock();
        *paused_until = (*paused_until).max(Some(now + pause));
    }
}
