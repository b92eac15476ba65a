//! Decisions on limits whose permits other replicas may have yet to report; see
//! `local_fallback/unreported.rs`.

use std::pin::pin;
use std::time::{Duration, Instant};

use crate::algorithm::{Mode, UsageCorrection};
use crate::decision::{Decision, DecisionFlags, Origin, Rejection};
use crate::error::{StoreError, StoreErrorKind};
use crate::observe;
use crate::policy::OnStoreFailure;
use crate::redis::RedisBackend;
use crate::redis::local_fallback::ShareCharge;
use crate::request::DecisionRequest;
use crate::support::real_time::CallDeadline;
use crate::units::Timestamp;

impl RedisBackend {
    /// Refunds or charges the share that admitted a call of this estimate besides Redis at
    /// `decided_at`. Redis receives the change too.
    pub(crate) fn correct_share(
        &self,
        request: &DecisionRequest<'_>,
        change: UsageCorrection,
        (decided_at, estimate): (Timestamp, u64),
    ) {
        let charge = ShareCharge {
            decided_at,
            estimate,
            replicas: self.replicas.count(),
        };
        self.fallback.correct(request, change, charge);
    }

    /// Allows a call if both the share and Redis allow it. Redis is queried only if the share
    /// allows it.
    pub(crate) async fn decide_reconciling(
        &self,
        request: &DecisionRequest<'_>,
        deadline: Duration,
    ) -> Result<Decision, Rejection> {
        let replicas = self.replicas.count();
        let by_share = match request.on_store_failure() {
            OnStoreFailure::Local => self.fallback.decide_besides_redis(request, replicas).ok(),
            _ => None,
        };
        // A policy that has no share, or a table that is full.
        let Some(by_share) = by_share else {
            return self.decide_once(request, deadline).await;
        };
        if !by_share.fits() {
            let detail = "denied by this replica's share of the policy, without a query to Redis: after an outage, \
                          other replicas may not have reported their permits yet";
            let error = StoreError::new(StoreErrorKind::Reconciling, detail);
            observe::store_failed(error.kind());
            let mut decision = request.decision(by_share, Origin::LocalFallback);
            decision.store_error = Some(Box::new(error));
            return Ok(decision);
        }
        let started = Instant::now();
        let in_flight = self.denials.in_flight_token(request, started);
        let decision = pin!(self.store.decide_since(started, request));
        let is_charged = request.mode == Mode::Charge;
        match CallDeadline::since(started, deadline).within(decision).await {
            Ok(verdict) => {
                self.on_verdict(request, &verdict, in_flight);
                if is_charged && !verdict.fits() {
                    self.fallback.refund(request, &by_share, replicas);
                }
                observe::record_query(started, Some(Origin::Redis));
                let mut decision = request.decision(verdict, Origin::Redis);
                if is_charged && decision.allowed {
                    decision.flags = decision.flags.and(DecisionFlags::IN_SHARE);
                }
                Ok(decision)
            }
            // The last reply of Redis reduces the share that decides alone.
            Err(error) => {
                if is_charged {
                    self.fallback.refund(request, &by_share, replicas);
                }
                self.decide_without(request, error, started)
            }
        }
    }
}
