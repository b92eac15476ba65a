//! What is granted now and used later: a paced funnel tells each call how long it waits, so that calls leave evenly.

use std::time::Duration;

use tokio::runtime::Handle;

use super::wanted::Wanted;
use crate::decision::{Allowed, Rejection};
use crate::limiter::Limiter;
use crate::request::Request;
use crate::units::Timestamp;

/// A grant whose time has not come. One that is dropped is given back, in the background.
struct Early<'a> {
    limiter: &'a Limiter,
    wanted: Wanted,
    /// In which it waits, if it is one that can give it back.
    runtime: Option<Handle>,
    /// `None` once its time has come.
    grant: Option<Allowed>,
}

impl Limiter {
    /// Waits until a grant may be used. One that may be used too late is given back, so that others leave earlier.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a grant that nobody waits for any more is given back.
    pub(super) async fn wait_for_turn(
        &self,
        request: &Request<'_>,
        grant: Allowed,
        ends: Timestamp,
        up_to: Duration,
    ) -> Result<Allowed, Rejection> {
        let delay = grant.delay();
        if delay.is_zero() {
            return Ok(grant);
        }
        let clock = &self.inner.clock;
        let due = clock.due(grant.decided_at(), delay);
        let mut early = Early {
            limiter: self,
            wanted: Wanted::of(request),
            runtime: Handle::try_current().ok(),
            grant: Some(grant),
        };
        if due <= ends {
            clock.sleep_until(due).await;
            if let Some(grant) = early.grant.take() {
                return Ok(grant);
            }
        }
        Err(Rejection::TimedOut {
            decision: None,
            limit: up_to,
        })
    }
}

impl Drop for Early<'_> {
    fn drop(&mut self) {
        if let (Some(grant), Some(runtime)) = (self.grant.take(), &self.runtime) {
            self.limiter.return_later(self.wanted.clone(), grant, runtime);
        }
    }
}
