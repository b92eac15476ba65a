//! What a request is in flight by.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::Request;
use limiter_core::__private::try_acquire_concurrency;
use limiter_core::concurrency::{AcquireConcurrency, ConcurrencyPermit};
use limiter_core::{Amount, ConfigError, Decision, OnDenial, Policy, Rejection};

use super::permit_handle::PermitHandle;
use crate::headers::Costs;
use crate::rate::action::{Deciding, Grant};
use crate::rate::config::{LayerConfig, RequestScope, Resolution, ResolvedLimit};
use crate::rate::configured_cost::ConfiguredCost;
use crate::rate::response_hooks::ResponseHooks;

/// What a layer admits requests by.
#[derive(Clone, Debug)]
pub(crate) struct AdmissionConfig {
    pub(super) limits: LayerConfig,
    /// How long a request waits. Zero: as its policy says.
    pub(super) timeout: Duration,
    /// Whether handlers have a share in the permit.
    pub(super) shares_permits: bool,
}

/// A request that may go on.
pub(super) enum Admitted {
    /// By so many permits.
    WithKey(ConcurrencyPermit, Amount),
    /// Nothing is configured for it, and that is allowed.
    Freely(Decision),
}

impl Admitted {
    fn with_permit(permit: ConcurrencyPermit, asked: &ResolvedLimit<'_>) -> Self {
        // One that cannot be used has no permits.
        Self::WithKey(permit, asked.cost.as_ref().map_or(Amount::ONE, |cost| *cost))
    }
}

impl AdmissionConfig {
    /// The answer, if it takes no waiting. A misconfiguration is logged, since the client is not
    /// told.
    pub(super) fn try_admit(&self, question: &RequestScope<'_>) -> Poll<Result<Admitted, Rejection>> {
        if !self.timeout.is_zero() {
            return Poll::Pending;
        }
        let answer = match self.resolve(question) {
            Ok(Ok(asked)) if !self.patience(&asked.policy).is_zero() => return Poll::Pending,
            Ok(Ok(asked)) => match try_acquire_concurrency(&self.enter(&asked)) {
                Poll::Ready(answer) => answer.map(|permit| Admitted::with_permit(permit, &asked)),
                Poll::Pending => return Poll::Pending,
            },
            Ok(Err(decision)) => Ok(Admitted::Freely(decision)),
            Err(rejection) => Err(rejection),
        };
        Poll::Ready(answer.map_err(|rejection| self.limits.log_rejection(Err(rejection))))
    }

    /// The answer, for which nothing is asked before the first poll. The request waits at most for
    /// the time that it says itself.
    pub(super) fn later(
        self: &Arc<Self>,
        question: RequestScope<'static>,
        bound: Option<Duration>,
    ) -> Deciding<Admitted> {
        let admission = Arc::clone(self);
        let answer = async move {
            let answer = match admission.resolve(&question) {
                Ok(Ok(asked)) => {
                    let patience = admission.patience(&asked.policy);
                    let timeout = bound.map_or(patience, |bound| bound.min(patience));
                    let permit = admission.enter(&asked).timeout(timeout).await;
                    permit.map(|permit| Admitted::with_permit(permit, &asked))
                }
                Ok(Err(decision)) => Ok(Admitted::Freely(decision)),
                Err(rejection) => Err(rejection),
            };
            answer.map_err(|rejection| admission.limits.log_rejection(Err(rejection)))
        };
        Box::pin(answer)
    }

    /// What is told and shown of a request that goes on, and what it holds.
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
        let afterwards = self.limits.response_hooks(granted, request);
        let held = match admitted {
            Admitted::WithKey(permit, _) if self.shares_permits => {
                let permit = Arc::new(permit);
                request.extensions_mut().insert(Arc::clone(&permit));
                Some(PermitHandle::shared(&permit))
            }
            Admitted::WithKey(permit, _) => Some(PermitHandle::new(permit)),
            Admitted::Freely(_) => None,
        };
        (afterwards, held)
    }

    /// How long a request waits under this policy: as the policy says, or the layer; where both do,
    /// for the shorter of both times.
    fn patience(&self, policy: &Policy) -> Duration {
        match policy.on_denial() {
            OnDenial::Wait(own) if self.timeout.is_zero() => own,
            OnDenial::Wait(own) => own.min(self.timeout),
            _ => self.timeout,
        }
    }

    fn enter<'a>(&'a self, asked: &'a ResolvedLimit<'_>) -> AcquireConcurrency<'a> {
        self.limits
            .limiter()
            .acquire_concurrency(&asked.policy, &asked.key)
            .cost(ConfiguredCost(asked.cost))
    }

    /// The one limit of a question, or the decision that it has none.
    fn resolve<'a>(
        &'a self,
        question: &'a RequestScope<'_>,
    ) -> Result<Result<ResolvedLimit<'a>, Decision>, Rejection> {
        let mut asked = match self.limits.resolve(question)? {
            Resolution::ResolvedLimit(asked) => asked,
            Resolution::Nothing(decision) => return Ok(Err(decision)),
        };
        match (asked.pop(), asked.len()) {
            (Some(alone), 0) => Ok(Ok(alone)),
            (_, others) => Err(several(others)),
        }
    }
}

#[cold]
fn several(others: usize) -> Rejection {
    Rejection::Config(ConfigError::Invalid {
        what: "number of policies for a request",
        value: if others == 0 { 0 } else { others + 1 }.to_string(),
        expected:
            "1, of concurrency: permits in flight are not taken together, so nest an `ConcurrencyLimitLayer` for each"
                .to_owned(),
    })
}
