//! Duties after a reply of Redis that are due only rarely: the end of an outage, and tasks that do
//! not run, because they were never started or their runtime has ended.
//!
//! Each duty would cost every reply a function call and a few loads. A reply therefore compares its
//! time with `upkeep_at` alone. A process with shares performs all duties at most once in
//! [`UPKEEP_INTERVAL`]; one without them at each reply, since it has fewer duties.
//!
//! Invariant: the time only limits how often the duties are examined. Each duty decides by its own
//! state, atomically, so concurrent upkeeps are as safe as concurrent replies. No event changes the
//! time, so no update can be missed: a duty is performed at most the interval late. The check for
//! unreported permits admits calls, tolerates no delay, and is therefore not a duty.
//!
//! Tests: below, `tests/faults/outage_log.rs`, `tests/local_fallback.rs` (counting task),
//! `tests/usage.rs` (reports).

use crate::algorithm::Mode;
use crate::policy::OnStoreFailure;
use crate::redis::RedisBackend;
use crate::request::DecisionRequest;
use crate::support::sync::atomic::Ordering;
use crate::units::Timestamp;

/// Microseconds between two upkeeps: a fraction of the times after which a task counts as abandoned
/// and an outage as ended.
pub(super) const UPKEEP_INTERVAL: u64 = 1_000_000;

impl RedisBackend {
    /// Ends an outage, and starts the tasks that do not run.
    // Not inlined, so that a reply executes the comparison alone.
    #[inline(never)]
    pub(super) fn perform_upkeep(&self, request: &DecisionRequest<'_>, mode: Mode, now: Timestamp) {
        self.outage.on_decision(now);
        if let Some(usage) = &self.usage {
            usage.keep_reporting();
        }
        // A limiter that only peeks admits nothing in an outage, so it has no share. Replies to
        // other requests do not postpone the upkeep that registers the share.
        if request.on_store_failure() == OnStoreFailure::Local && mode == Mode::Charge {
            self.replicas.keep_counting(now);
            let next = now.as_micros().saturating_add(UPKEEP_INTERVAL);
            self.upkeep_at.store(next, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use limiter_testing::RedisServer;

    use super::*;
    use crate::backend::Backend;
    use crate::{Limiter, ManualClock, Policy};

    #[tokio::test]
    async fn only_replies_to_sharing_calls_postpone_upkeep() {
        let (server, clock) = (RedisServer::start(), ManualClock::new());
        let limits = Limiter::redis(server.url()).namespace("upkeep").clock(&clock);
        let limits = limits.replicas(1).build().unwrap();
        let policy = |reaction| {
            let policy = Policy::token_bucket("p").capacity(10).rate(1);
            let policy = policy
                .deadline(Duration::from_secs(20))
                .on_store_failure(reaction);
            policy.build().unwrap()
        };
        let (open, sharing) = (policy(OnStoreFailure::FailOpen), policy(OnStoreFailure::Local));
        let Backend::Redis(redis) = &limits.inner.backend else {
            unreachable!("a limiter with Redis")
        };
        let due = || redis.upkeep_at.load(Ordering::Relaxed);
        let next = || clock.now().as_micros() + UPKEEP_INTERVAL;

        limits.check(&open, "k").await.unwrap().require().unwrap();
        limits.peek(&sharing, "k").await.unwrap().require().unwrap();
        assert_eq!(due(), 0);
        limits.check(&sharing, "k").await.unwrap().require().unwrap();
        let first = due();
        assert_eq!(first, next());
        clock.advance(Duration::from_micros(UPKEEP_INTERVAL - 1));
        limits.check(&sharing, "k").await.unwrap().require().unwrap();
        assert_eq!(due(), first, "it is not due yet");
        clock.advance(Duration::from_micros(1));
        limits.check(&sharing, "k").await.unwrap().require().unwrap();
        assert_eq!(due(), next());
        clock.step_back(Duration::from_secs(3_600));
        limits.check(&sharing, "k").await.unwrap().require().unwrap();
        assert_eq!(due(), next(), "the clock was set back");
    }
}
