//! For how long an enter waits.

use std::time::Duration;

use crate::decision::{Decision, Rejection};
use crate::support::clock::Clock;
use crate::units::Timestamp;

/// For how long somebody waits, since when.
pub(crate) struct AcquireDeadline<'a> {
    pub(crate) started: Timestamp,
    pub(crate) timeout: Duration,
    pub(crate) clock: &'a Clock,
}

impl AcquireDeadline<'_> {
    pub(crate) async fn is_over(&self) {
        self.clock.sleep(self.clock.now(), self.remaining()).await;
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.timeout.saturating_sub(self.clock.now().since(self.started))
    }

    pub(crate) fn timed_out(&self, denied: Option<Box<Decision>>) -> Rejection {
        Rejection::TimedOut {
            decision: denied,
            limit: self.timeout,
        }
    }
}
