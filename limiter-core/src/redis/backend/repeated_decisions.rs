//! Repeated decisions of one request, for callers that wait in a queue.

use std::pin::pin;
use std::time::{Duration, Instant};

use smallvec::smallvec;

use crate::decision::Decisions;
use crate::decision::Origin;
use crate::observe;
use crate::redis::RedisBackend;
use crate::request::DecisionRequest;
use crate::support::real_time::{CallDeadline, with_deadline};

impl RedisBackend {
    /// Decides a request `times` times in a row, and returns all decisions or the first ones. If
    /// Redis does not reply, the result is one decision without Redis. Leases are not used.
    pub(crate) async fn decide_run(
        &self,
        request: &DecisionRequest<'_>,
        times: usize,
        deadline: Duration,
    ) -> Decisions {
        if self.is_reconciling(request) {
            return smallvec![Box::pin(self.decide(request, deadline)).await];
        }
        match self.refunds_at_submission(request) {
            None => self.decide_run_once(request, times, deadline).await,
            Some(pending) => Box::pin(self.decide_run_with_refunds(request, times, deadline, pending)).await,
        }
    }

    pub(crate) async fn decide_run_once(
        &self,
        request: &DecisionRequest<'_>,
        times: usize,
        deadline: Duration,
    ) -> Decisions {
        let started = Instant::now();
        let inherited = match request.is_scaled() {
            true => Box::pin(with_deadline(deadline, self.inherit(request))).await,
            false => Ok(None),
        };
        let in_force = match inherited {
            Ok(in_force) => in_force,
            Err(error) => return smallvec![self.decide_without(request, error, started)],
        };
        let request = in_force.as_ref().unwrap_or(request);
        let in_flight = self.denials.in_flight_token(request, started);
        let decisions = pin!(self.store.decide_run_since(started, request, times));
        let wait = CallDeadline::since(started, deadline);
        let verdicts = match wait.within(decisions).await {
            Ok(verdicts) => verdicts,
            Err(error) => return smallvec![self.decide_without(request, error, started)],
        };
        observe::record_query(started, Some(Origin::Redis));
        // The last decision contains the latest state.
        if let Some(last) = verdicts.last() {
            self.on_verdict(request, last, in_flight);
        }
        let decisions = verdicts.into_iter();
        decisions
            .map(|verdict| Ok(request.decision(verdict, Origin::Redis)))
            .collect()
    }
}
