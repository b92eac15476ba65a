//! One deadline for the sets of a request, which are decided one after another.
//!
//! Each set has the time that earlier sets have left of the longest deadline of the request.
//! Otherwise n sets would take n deadlines while the store does not answer. A reservation keeps the
//! longest deadline for its settlement: the rest can be too short for a refund, which would lose
//! the permits. Tests: `charge/tests.rs`, `tests/rate_limit_service.rs`, `tests/http_changes.rs`.

use std::time::{Duration, Instant};

use limiter_core::{Limiter, Rejection, Reservation};

use crate::gateway::charge::RequestedLimit;
use crate::gateway::charge::sets::AtomicSet;

/// The time of earlier sets that leaves the deadlines of later sets unchanged.
const NEGLIGIBLE: Duration = Duration::from_millis(1);

/// The limits of a request with the time since its start.
#[derive(Debug)]
pub(crate) struct TimedLimits<'a> {
    limits: &'a [RequestedLimit],
    started: Instant,
    longest: Duration,
    /// The limits with the deadlines of the next set, if they differ.
    bounded: Option<Vec<RequestedLimit>>,
}

impl<'a> TimedLimits<'a> {
    /// Creates limits whose time starts now.
    pub(crate) fn new(limits: &'a [RequestedLimit]) -> Self {
        let deadlines = limits.iter().map(|limit| limit.policy.deadline());
        Self {
            limits,
            started: Instant::now(),
            longest: deadlines.max().unwrap_or_default(),
            bounded: None,
        }
    }

    /// Returns the rest of the longest deadline.
    pub(crate) fn left(&self) -> Duration {
        self.longest.saturating_sub(self.started.elapsed())
    }

    /// Returns the limits with the deadlines of the next set.
    pub(crate) fn next(&mut self) -> &[RequestedLimit] {
        let is_late = self.started.elapsed() >= NEGLIGIBLE;
        let left = self.left();
        self.bounded = is_late.then(|| {
            let bounded = self.limits.iter().map(|limit| RequestedLimit {
                policy: limit.policy.with_max_deadline(left),
                ..limit.clone()
            });
            bounded.collect()
        });
        self.bounded.as_deref().unwrap_or(self.limits)
    }

    /// Reserves the limits of a set.
    pub(crate) async fn reserve(
        &mut self,
        limiter: &Limiter,
        set: &AtomicSet,
    ) -> Result<Reservation, Rejection> {
        let reserved = limiter.reserve_all(set.charges(self.next())).await?;
        Ok(match self.bounded {
            Some(_) => reserved.with_deadline(self.longest),
            None => reserved,
        })
    }
}
