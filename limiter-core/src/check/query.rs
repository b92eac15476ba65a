//! The query of a check to the store: the request of its limits, and the future that awaits the
//! decision.
//!
//! A check is queried only if the attempt without waiting left it undecided. The request is
//! validated before any I/O; a rejection is counted for the limit that is invalid. Tests: below,
//! and `tests/entry_points.rs`.

use std::pin::Pin;
use std::time::Duration;

use crate::algorithm::Mode;
use crate::check::Check;
use crate::decision::{Decision, Rejection};
use crate::enforcement::EnforcementPlan;
use crate::limiter::Limiter;
use crate::observe;
use crate::permits::request::ConcurrencyRequest;
use crate::policy::{OnDenial, Policy};
use crate::request::{DecisionRequest, LimitCharge, LimitRequest};
use crate::support::one_or_many::OneOrMany;

/// The future of a query.
pub(crate) type PendingDecision<'a> = Pin<Box<dyn Future<Output = Result<Decision, Rejection>> + Send + 'a>>;

impl<'a> Check<'a> {
    /// Returns the future of a check that [`try_decide`](Check::try_decide) left undecided.
    pub(super) fn query(self, charge: Option<LimitCharge>) -> Result<PendingDecision<'a>, Rejection> {
        let (limiter, first) = (self.limiter, self.first_ref().map(Policy::name));
        let (is_plain, defaults) = (self.is_plain(), &limiter.inner.defaults);
        if let Some(limit) = self.permit_peek().filter(|_| !is_plain) {
            let limit = limit.clone().with_defaults(defaults);
            return Ok(Box::pin(limiter.peek_permits(limit)));
        }
        if !is_plain {
            let (limiter, limits, mode) = self.into_parts();
            let decided = EnforcementPlan::new(limiter, limits, mode).decide();
            return Ok(if limiter.is_in_process() {
                Box::pin(decided)
            } else {
                observe::deciding(first, decided)
            });
        }
        if let Some(limit) = self.permit_peek() {
            limiter.open()?;
            let limit = limit.clone().with_defaults(defaults);
            let request = ConcurrencyRequest::new(limit, self.mode)?;
            return Ok(Box::pin(async move {
                limiter.inner.backend.peek_permits(&request).await
            }));
        }
        let request = self.request(charge)?;
        let deadline = request.deadline();
        Ok(observe::deciding(first, async move {
            let backend = &limiter.inner.backend;
            let answer = backend.decide(&request, deadline).await;
            observe::record_request(backend.usage(), &request, &answer);
            answer
        }))
    }

    /// Skips the attempt to decide without waiting, because the caller has already made it.
    pub(crate) fn after_try(self) -> Self {
        Self {
            is_tried: true,
            ..self
        }
    }

    /// Returns the shortest deadline of the policies.
    pub(crate) fn deadline(&self) -> Duration {
        let limits = self.requests.iter().map(LimitRequest::borrowed);
        let each = limits.map(|limit| {
            limit
                .with_defaults(&self.limiter.inner.defaults)
                .policy()
                .deadline()
        });
        each.min().unwrap_or(Policy::DEFAULT_DEADLINE)
    }

    /// Returns the strictest reaction of the policies to a denial.
    pub(crate) fn on_denial(&self) -> OnDenial {
        let each = self.requests.iter().map(|request| request.policy().on_denial());
        each.reduce(OnDenial::stricter).unwrap_or_default()
    }

    pub(crate) fn limiter(&self) -> &'a Limiter {
        self.limiter
    }

    pub(crate) fn requests(&self) -> &[LimitRequest<'a>] {
        &self.requests
    }

    pub(crate) fn into_parts(self) -> (&'a Limiter, OneOrMany<LimitRequest<'a>>, Mode) {
        (self.limiter, self.requests, self.mode)
    }

    /// Returns the limit if this is a peek at concurrency permits, which are not part of a request.
    pub(super) fn permit_peek(&self) -> Option<&LimitRequest<'a>> {
        match &self.requests {
            OneOrMany::One(limit) if self.mode == Mode::Peek && limit.policy().is_concurrency() => {
                Some(limit)
            }
            _ => None,
        }
    }

    /// Validates the check and builds its request. `charge` is the identity and the cost of its
    /// only limit, if they are known.
    pub(crate) fn request(self, charge: Option<LimitCharge>) -> Result<DecisionRequest<'a>, Rejection> {
        match (self.requests, charge) {
            // The attempt that computed them has found the limiter open.
            (OneOrMany::One(limit), Some(charge)) => {
                let limit = limit.with_defaults(&self.limiter.inner.defaults);
                Ok(DecisionRequest::of_charged(limit, charge, self.mode))
            }
            (requests, _) => {
                self.limiter.open()?;
                request(self.limiter, requests.into_iter(), self.mode)
            }
        }
    }

    /// Validates the check and builds its request with borrowed keys.
    pub(super) fn borrowed_request(&self) -> Result<DecisionRequest<'_>, Rejection> {
        self.limiter.open()?;
        let limits = self.requests.iter().map(LimitRequest::borrowed);
        request(self.limiter, limits, self.mode)
    }
}

/// Builds a request of these limits. A rejection is counted for the limit that is invalid.
fn request<'a>(
    limiter: &Limiter,
    limits: impl Iterator<Item = LimitRequest<'a>>,
    mode: Mode,
) -> Result<DecisionRequest<'a>, Rejection> {
    let mut last = None;
    let limits = limits
        .map(|limit| limit.with_defaults(&limiter.inner.defaults))
        .inspect(|limit| last = Some(limit.policy()));
    DecisionRequest::new(limits, mode, limiter.inner.any_groups).inspect_err(|rejection| {
        if let Some(policy) = last {
            observe::record_rejection(limiter.inner.backend.usage(), policy, mode, rejection);
        }
    })
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use crate::check::query::*;

    /// The allocator of glibc keeps freed blocks of at most 1,032 bytes in a cache of the thread.
    /// The feature `metrics` adds 16 bytes to 1,024.
    const SMALL_ALLOCATION: usize = 1_024 + 16;

    #[tokio::test]
    async fn query_fits_small_allocation() {
        let limits = Limiter::redis("redis://127.0.0.1:1").namespace("size").build();
        let limits = limits.expect("valid");
        let policy = Policy::token_bucket("p").capacity(1).rate(1).build();
        let policy = policy.expect("valid");
        let query = limits.check(&policy, "key").query(None).expect("valid");
        let size = size_of_val(&*query);
        assert!(size <= SMALL_ALLOCATION, "{size} bytes");
    }
}
