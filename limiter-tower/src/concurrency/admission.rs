//! Admits requests to a concurrency limit: resolves the policy, takes the permit, and prepares the
//! response.
//!
//! A request that needs neither a wait nor a query to Redis is decided by `try_admit` in the call
//! of the service. `pending` decides the others in a boxed future that waits for a permit.
//!
//! Invariants: a request has exactly one concurrency policy, or none if the limiter allows that or
//! no limit is enforced; and it waits no longer than the policy, the layer and its own timeout
//! allow. Tests: `tests/load/in_flight.rs`, `tests/load/max_wait.rs`.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::Request;
use limiter_core::__private::{named, registered_concurrency, try_acquire_concurrency, unlimited};
use limiter_core::concurrency::{AcquireConcurrency, ConcurrencyPermit};
use limiter_core::{Amount, ConfigError, Decision, Enforcement, OnDenial, Policy, Rejection};

use super::permit_handle::PermitHandle;
use crate::headers::Costs;
use crate::rate::config::{LayerConfig, RequestScope, Resolution, ResolvedLimit};
use crate::rate::configured_cost::ConfiguredCost;
use crate::rate::next_action::{Grant, PendingDecision};
use crate::rate::response_hooks::ResponseHooks;

/// The configuration by which a layer admits requests.
#[derive(Clone, Debug)]
pub(crate) struct AdmissionConfig {
    pub(super) limits: LayerConfig,
    /// Maximum wait of a request. Zero: the policy decides.
    pub(super) timeout: Duration,
    /// True if handlers receive a share of the permit.
    pub(super) shares_permits: bool,
}

/// An admitted request.
pub(super) enum Admitted {
    /// The permit, and the number of permits that it holds.
    WithKey(ConcurrencyPermit, Amount),
    /// No policy is configured for the request, and the limiter allows such requests.
    Freely(Decision),
}

impl Admitted {
    fn with_permit(permit: ConcurrencyPermit, resolved: &ResolvedLimit<'_>) -> Self {
        // An invalid cost holds no permits.
        Self::WithKey(permit, resolved.cost.as_ref().map_or(Amount::ONE, |cost| *cost))
    }
}

impl AdmissionConfig {
    /// Admits the request if that needs no waiting. A misconfiguration is logged, because the
    /// client does not learn of it.
    pub(super) fn try_admit(&self, scope: &RequestScope<'_>) -> Poll<Result<Admitted, Rejection>> {
        if !self.timeout.is_zero() {
            return Poll::Pending;
        }
        let answer = match self.resolve(scope) {
            Ok(Resolution::Limits(resolved)) if !self.max_wait(&resolved.policy).is_zero() => {
                return Poll::Pending;
            }
            Ok(Resolution::Limits(resolved)) => match try_acquire_concurrency(&self.enter(&resolved)) {
                Poll::Ready(answer) => answer.map(|permit| Admitted::with_permit(permit, &resolved)),
                Poll::Pending => return Poll::Pending,
            },
            Ok(Resolution::Nothing(decision)) => Ok(Admitted::Freely(decision)),
            Err(rejection) => Err(rejection),
        };
        Poll::Ready(answer.map_err(|rejection| self.limits.log_rejection(Err(rejection))))
    }

    /// Admits the request with a wait. Nothing is sent to the store before the first poll. The wait
    /// ends at the latest at the timeout that the request states.
    pub(super) fn pending(
        self: &Arc<Self>,
        scope: RequestScope<'static>,
        bound: Option<Duration>,
    ) -> PendingDecision<Admitted> {
        let admission = Arc::clone(self);
        let answer = async move {
            let answer = match admission.resolve(&scope) {
                Ok(Resolution::Limits(resolved)) => {
                    let max_wait = admission.max_wait(&resolved.policy);
                    let timeout = bound.map_or(max_wait, |bound| bound.min(max_wait));
                    let enter = admission.enter(&resolved).timeout(timeout);
                    let permit = registered_concurrency(enter, resolved.is_registered()).await;
                    permit.map(|permit| Admitted::with_permit(permit, &resolved))
                }
                Ok(Resolution::Nothing(decision)) => Ok(Admitted::Freely(decision)),
                Err(rejection) => Err(rejection),
            };
            answer.map_err(|rejection| admission.limits.log_rejection(Err(rejection)))
        };
        Box::pin(answer)
    }

    /// Attaches the decision to an admitted request, and returns the response hooks and the permit.
    pub(super) fn admitted<B>(
        &self,
        admitted: Admitted,
        request: &mut Request<B>,
    ) -> (ResponseHooks, Option<PermitHandle>) {
        let (decision, cost) = match &admitted {
            Admitted::WithKey(permit, cost) => (permit.decision(), *cost),
            Admitted::Freely(decision) => (decision, Amount::ONE),
        };
        let granted = Grant {
            decision: decision.clone(),
            settling: None,
            costs: Costs::Same(cost),
        };
        let response_hooks = self.limits.response_hooks(granted, request);
        let permit_handle = match admitted {
            Admitted::WithKey(permit, _) if self.shares_permits => {
                let permit = Arc::new(permit);
                request.extensions_mut().insert(Arc::clone(&permit));
                Some(PermitHandle::shared(&permit))
            }
            Admitted::WithKey(permit, _) => Some(PermitHandle::new(permit)),
            Admitted::Freely(_) => None,
        };
        let permit_handle = permit_handle.map(|handle| handle.for_method(request.method()));
        (response_hooks, permit_handle)
    }

    /// Maximum wait under this policy: the shorter one of the policy's and the layer's timeout, if
    /// both are set.
    fn max_wait(&self, policy: &Policy) -> Duration {
        match policy.on_denial() {
            OnDenial::Wait(own) if self.timeout.is_zero() => own,
            OnDenial::Wait(own) => own.min(self.timeout),
            _ => self.timeout,
        }
    }

    fn enter<'a>(&'a self, resolved: &'a ResolvedLimit<'_>) -> AcquireConcurrency<'a> {
        self.limits
            .limiter()
            .acquire_concurrency(&resolved.policy, &resolved.key)
            .cost(ConfiguredCost(resolved.cost))
    }

    /// Returns the limit of a request, or the decision for a request without limits.
    fn resolve<'a>(
        &'a self,
        scope: &'a RequestScope<'_>,
    ) -> Result<Resolution<ResolvedLimit<'a>>, Rejection> {
        let mut resolved = match self.limits.resolve(scope, named)? {
            Resolution::Limits(resolved) => resolved,
            Resolution::Nothing(decision) => return Ok(Resolution::Nothing(decision)),
        };
        let is_enforced = self.is_enforced(&resolved);
        match (resolved.pop(), resolved.len()) {
            (Some(alone), 0) => Ok(Resolution::Limits(alone)),
            (_, others) if is_enforced => Err(several(others)),
            _ => Ok(Resolution::Nothing(unlimited(self.limits.limiter()))),
        }
    }

    /// Returns whether a wrong number of policies rejects the request.
    fn is_enforced(&self, resolved: &[ResolvedLimit<'_>]) -> bool {
        let is_enforced = |limit: &ResolvedLimit<'_>| limit.policy.enforcement() == Enforcement::Enforce;
        self.limits.limiter().enforcement() == Enforcement::Enforce
            && (resolved.is_empty() || resolved.iter().any(is_enforced))
    }
}

#[cold]
fn several(others: usize) -> Rejection {
    Rejection::Config(ConfigError::Invalid {
        field: "number of policies for a request",
        value: if others == 0 { 0 } else { others + 1 }.to_string(),
        expected: "1 concurrency policy; nest one `ConcurrencyLimitLayer` for each policy".to_owned(),
    })
}
