//! For how long an enter waits.

use std::time::Duration;

use crate::clock::Clock;
use crate::decision::{Decision, Rejection};
use crate::units::Timestamp;

/// For how long somebody waits, since when.
pub(super) struct Wait<'a> {
    pub(super) started: Timestamp,
    pub(super) up_to: Duration,
    pub(super) clock: &'a Clock,
}

impl Wait<'_> {
    pub(super) async fn is_over(&self) {
        self.clock.sleep(self.clock.now(), self.left()).await;
    }

    pub(super) fn left(&self) -> Duration {
        self.up_to.saturating_sub(self.clock.now().since(self.started))
    }

    pub(super) fn timed_out(&self, denied: Option<Box<Decision>>) -> Rejection {
        Rejection::TimedOut {
            decision: denied,
            limit: self.up_to,
        }
    }
}
