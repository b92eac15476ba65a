//! Decisions on limits whose refunds are on their way to Redis.
//!
//! Redis denies a call that fits only after a refund if the refund arrives later. A denied call
//! therefore waits for the refunds that were pending at its submission
//! (`redis/pending_refunds.rs`), and Redis decides it once more, within the deadline of the call.
//!
//! Invariants: after a denial by Redis, only another reply of Redis can admit the call, and a
//! denied call charges no share. Tests: below, `tests/reservations.rs`.

use std::time::{Duration, Instant};

use crate::algorithm::{Mode, UsageCorrection};
use crate::decision::Decisions;
use crate::decision::{Decision, Origin, Rejection};
use crate::identity::Identity;
use crate::redis::RedisBackend;
pub(crate) use crate::redis::pending_refunds::PendingAtSubmission;
use crate::request::DecisionRequest;
use crate::support::real_time::with_deadline;

impl RedisBackend {
    /// Announces a refund of these limits, before the task that sends it to Redis runs. Returns the
    /// ticket for [`finish_refund`](Self::finish_refund), which must be called however the refund
    /// ends.
    pub(crate) fn start_refund(&self, limits: &[Identity]) -> u64 {
        // First, since only calls for invalidated limits look for pending refunds.
        self.denials.begin_refund(limits);
        self.refunds.start(limits)
    }

    /// Ends a refund that [`start_refund`](Self::start_refund) has announced.
    pub(crate) fn finish_refund(&self, limits: &[Identity], ticket: u64) {
        self.denials.end_refund(limits);
        self.refunds.finish(limits, ticket);
    }

    /// Decides in Redis. If Redis denies the call, waits until the pending refunds are applied, and
    /// decides once more. Both take no longer than the deadline; without a second reply the denial
    /// is final.
    pub(crate) async fn decide_with_refunds(
        &self,
        request: &DecisionRequest<'_>,
        deadline: Duration,
        pending: PendingAtSubmission,
    ) -> Result<Decision, Rejection> {
        let started = Instant::now();
        let first = self.decide_once(request, deadline).await;
        if !is_denied_by_redis(&first) || !finished(pending, remaining(started, deadline)).await {
            return first;
        }
        let second = self.decide_once(request, remaining(started, deadline)).await;
        // Redis has denied this call: a local decision in place of its second answer could admit
        // it.
        if is_from_redis(&second) {
            return second;
        }
        self.return_to_share(request, &second);
        first
    }

    /// As [`decide_with_refunds`](Self::decide_with_refunds), for a run of calls of which Redis
    /// denies the first.
    pub(crate) async fn decide_run_with_refunds(
        &self,
        request: &DecisionRequest<'_>,
        times: usize,
        deadline: Duration,
        pending: PendingAtSubmission,
    ) -> Decisions {
        let started = Instant::now();
        let first = self.decide_run_once(request, times, deadline).await;
        let is_denied = first.first().is_some_and(is_denied_by_redis);
        if !is_denied || !finished(pending, remaining(started, deadline)).await {
            return first;
        }
        let second = self
            .decide_run_once(request, times, remaining(started, deadline))
            .await;
        if second.first().is_some_and(is_from_redis) {
            return second;
        }
        second
            .iter()
            .for_each(|unused| self.return_to_share(request, unused));
        first
    }

    /// Refunds the share and the unreported permits if this replica's share has granted a decision
    /// that is not used.
    fn return_to_share(&self, request: &DecisionRequest<'_>, unused: &Result<Decision, Rejection>) {
        let is_granted = |decision: &Decision| decision.allowed && decision.origin == Origin::LocalFallback;
        if request.mode == Mode::Charge && unused.as_ref().is_ok_and(is_granted) {
            let in_force = request.in_force_at(self.clock.now());
            let refund = UsageCorrection::Refund { whole_at: 0 };
            // A refund of the share does not fail.
            let _ = self.change_share(in_force.as_ref().unwrap_or(request), refund);
        }
    }
}

fn remaining(started: Instant, deadline: Duration) -> Duration {
    deadline.saturating_sub(started.elapsed())
}

/// Waits for the refunds. `false` if they take longer than `at_most`.
async fn finished(pending: PendingAtSubmission, at_most: Duration) -> bool {
    let finished = async {
        pending.finished().await;
        Ok(())
    };
    with_deadline(at_most, finished).await.is_ok()
}

fn is_from_redis(answer: &Result<Decision, Rejection>) -> bool {
    matches!(answer, Ok(decision) if decision.origin == Origin::Redis)
}

fn is_denied_by_redis(answer: &Result<Decision, Rejection>) -> bool {
    is_from_redis(answer) && matches!(answer, Ok(decision) if !decision.allowed)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use limiter_testing::{Proxy, RedisServer};

    use crate::backend::Backend;
    use crate::{Limiter, ManualClock, Origin, Policy};

    fn script_calls(server: &RedisServer) -> u64 {
        let stats = server.command(&["INFO", "commandstats"]).text();
        let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
        line.and_then(|line| line.split_once("calls=")?.1.split_once(',')?.0.parse().ok())
            .unwrap_or_default()
    }

    /// Redis denies a call, whose refund arrives, and does not reply to its second query. The call
    /// is denied, so neither the share nor a later report to Redis counts it.
    #[tokio::test]
    async fn denied_call_charges_no_share() {
        for times in [1, 2] {
            let (server, clock) = (RedisServer::start(), ManualClock::new());
            let proxy = Proxy::start(server.port());
            let limits = Limiter::redis(proxy.url()).namespace("refunds").clock(&clock);
            let limits = limits.replicas(1).build().unwrap();
            limits.ready().await.unwrap();
            let policy = Policy::token_bucket("p").capacity(10).rate("1/h");
            let policy = policy
                .deadline(std::time::Duration::from_secs(20))
                .build()
                .unwrap();
            assert!(limits.check(&policy, "k").cost(10).await.unwrap().is_allowed());

            let Backend::Redis(redis) = &limits.inner.backend else {
                unreachable!("a limiter with Redis")
            };
            let request = crate::LimitRequest::new(&policy, "k").cost(5);
            let request = crate::request::ValidatedLimit::of(request).unwrap();
            let mut request = request.alone();
            request.mode = crate::algorithm::Mode::Charge;
            let identities = [request.limits[0].identity];
            let ticket = redis.start_refund(&identities);
            let calls = script_calls(&server);
            let deadline = policy.deadline();
            let decided = async {
                match times {
                    1 => smallvec::smallvec![redis.decide(&request, deadline).await],
                    _ => redis.decide_run(&request, times, deadline).await,
                }
            };
            let continued = async {
                let started = Instant::now();
                while script_calls(&server) == calls {
                    assert!(started.elapsed() < deadline, "the call reaches Redis");
                    tokio::task::yield_now().await;
                }
                // The reply to the denied call is older, also if it is read after that to the
                // refund.
                clock.advance(std::time::Duration::from_micros(1));
                limits.refund(&policy, "k").cost(10).await.unwrap();
                proxy.refuse(true);
                proxy.drop_connections();
                redis.finish_refund(&identities, ticket);
            };
            let (decided, ()) = tokio::join!(decided, continued);
            let denied = decided[0].as_ref().unwrap();
            assert_eq!((denied.is_allowed(), denied.origin()), (false, Origin::Redis));
            let left = limits.peek(&policy, "k").await.unwrap();
            assert_eq!((left.origin(), left.remaining()), (Origin::LocalFallback, 10));
        }
    }
}
