//! Maximum wait of an acquisition.

use std::time::Duration;

use crate::decision::{Decision, Rejection};
use crate::support::clock::Clock;
use crate::units::Timestamp;

/// The start and the maximum duration of one wait.
pub(crate) struct AcquireDeadline<'a> {
    pub(crate) started: Timestamp,
    pub(crate) timeout: Duration,
    pub(crate) clock: &'a Clock,
}

impl AcquireDeadline<'_> {
    pub(crate) async fn expired(&self) {
        self.clock.sleep(self.clock.now(), self.remaining()).await;
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.timeout.saturating_sub(self.clock.now().since(self.started))
    }

    pub(crate) fn timed_out(&self, decision: Option<Box<Decision>>) -> Rejection {
        Rejection::TimedOut {
            decision,
            limit: self.timeout,
        }
    }
}
