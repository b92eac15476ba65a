//! The configuration of a layer, and its decisions about requests.
//!
//! All clones of a service share one configuration. A request has a key for the policies of the
//! layer, or limits of its own ([`RequestScope`]). Decisions have three steps, the cheapest first:
//! [`try_pass`](LayerConfig::try_pass) writes no decision for an allowed request,
//! [`try_decide`](LayerConfig::try_decide) decides without waiting, and
//! [`decide`](LayerConfig::decide) queries the store or waits.
//!
//! Invariants: a step that returns `Undecided` or `Pending` has charged nothing. Rarely used
//! settings are behind one pointer, so that a request of a simple layer tests it alone. A request
//! without policies is rejected, unless its limits state that it is unlimited.
//!
//! Tests: `tests/contract/paths.rs` sends each request through all steps; `tests/decisions`.

mod costs;
mod log;
mod resolution;
mod verify;

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::Request;
use limiter_core::__private::{
    LayerWait, OneOrMany, Passage, Reporter, ResolvedPolicies, admit_waiting, after_try, named, named_again,
    never_waits, registered, try_acquire, try_decide, try_pass, unlimited,
};
use limiter_core::future::Check;
use limiter_core::{Amount, ConfigError, Decision, Key, LimitRequest, Limiter, Policy, Rejection};
use smallvec::SmallVec;

pub(crate) use resolution::{Resolution, ResolvedLimit};
pub(crate) use verify::{PolicyKind, Verification};

use crate::key::{Prefixes, prefixes_of};
use crate::rate::configured_cost::ConfiguredCost;
use crate::rate::wait::WaitConfig;
use crate::request_limits::{PolicySet, RequestLimits, RequestedPolicy};
use crate::responses::Responder;
use crate::settlement::{Settle, Settling};

/// The configuration of a layer: the limiter, and the policies and the cost of requests that state
/// no limits of their own.
#[derive(Clone, Debug)]
pub(crate) struct LayerConfig {
    limiter: Limiter,
    policies: OneOrMany<RequestedPolicy>,
    cost: Result<Amount, ConfigError>,
    /// Rarely used settings, so that the common request tests one pointer.
    options: Option<Box<LayerOptions>>,
    reporter: Arc<Reporter>,
    responder: Responder,
    verification: Arc<Verification>,
    /// The prefixes of address keys, if the extractor states them.
    prefixes: Option<Prefixes>,
}

/// Settings of a layer beyond its policies, cost and responses.
#[derive(Clone, Debug, Default)]
struct LayerOptions {
    /// Inserts decisions that allow a request into the extensions.
    shows_decisions: bool,
    wait: Option<WaitConfig>,
    settle: Option<Arc<Settle>>,
}

/// The key or the limits of a request.
#[derive(Debug)]
pub(crate) enum RequestScope<'a> {
    Key(Key<'a>),
    RequestLimits(RequestLimits<'a>),
}

impl LayerConfig {
    /// Creates the limits of a layer that applies policies of this kind.
    pub(crate) fn new(kind: PolicyKind, limiter: Limiter, policies: PolicySet) -> Self {
        let layer = kind.layer();
        let verification = Verification::new(kind, &limiter, &policies.policies);
        let reporter = Reporter::of_layer(layer, policies.policies.iter().filter_map(RequestedPolicy::name));
        Self {
            limiter,
            policies: policies.policies,
            cost: Ok(Amount::ONE),
            options: None,
            reporter: Arc::new(reporter),
            responder: Responder::default(),
            verification: Arc::new(verification),
            prefixes: None,
        }
    }

    /// Records the prefixes of the key extractor.
    pub(crate) fn set_extractor(&mut self, extractor: &dyn Any) {
        self.prefixes = prefixes_of(extractor);
    }

    pub(crate) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    pub(crate) fn responder(&self) -> &Responder {
        &self.responder
    }

    pub(crate) fn responder_mut(&mut self) -> &mut Responder {
        &mut self.responder
    }

    pub(crate) fn set_cost(&mut self, cost: Result<Amount, ConfigError>) {
        self.cost = cost;
    }

    pub(crate) fn show_decisions(&mut self) {
        self.options_mut().shows_decisions = true;
    }

    pub(crate) fn wait_mut(&mut self) -> &mut WaitConfig {
        self.options_mut().wait.get_or_insert_default()
    }

    pub(crate) fn settle_mut(&mut self) -> &mut Settle {
        Arc::make_mut(self.options_mut().settle.get_or_insert_default())
    }

    fn options_mut(&mut self) -> &mut LayerOptions {
        self.options.get_or_insert_default()
    }

    fn shows_decisions(&self) -> bool {
        self.options
            .as_ref()
            .is_some_and(|options| options.shows_decisions)
    }

    fn wait(&self) -> Option<&WaitConfig> {
        self.options.as_ref().and_then(|options| options.wait.as_ref())
    }

    fn settle(&self) -> Option<&Arc<Settle>> {
        self.options.as_ref().and_then(|options| options.settle.as_ref())
    }

    /// Attaches the decision that allows a request to the request, if configured, and returns the
    /// fields of the response. A decision that was made without the store, or that would differ
    /// when enforced, is always attached to the response.
    #[inline]
    pub(crate) fn attach_decision<B>(
        &self,
        decision: Decision,
        request: &mut Request<B>,
    ) -> Option<Box<Decision>> {
        // A handler that degrades its response needs the decision.
        let is_usual = decision.store_error().is_none() && !decision.would_deny() && !decision.is_degraded();
        if is_usual && !self.shows_decisions() {
            return None;
        }
        if !is_usual {
            log::log_degraded(&decision);
        }
        let extensions = request.extensions_mut();
        // The handler has to degrade its response although this layer allows the request.
        let outer_degrades = || extensions.get::<Decision>().is_some_and(Decision::is_degraded);
        if decision.is_degraded() || self.shows_decisions() && !outer_degrades() {
            extensions.insert(decision.clone());
        }
        Some(Box::new(decision))
    }

    /// Decides a request with this key if an allowed request needs no report and no settlement,
    /// which is the common case. An allowed request then has no `Decision`.
    #[inline]
    pub(crate) fn try_pass(&self, key: &Key<'_>) -> Passage {
        match (&self.policies, &self.cost) {
            (OneOrMany::One(RequestedPolicy::Given(policy)), Ok(cost))
                if self.is_silent() && never_waits(policy) =>
            {
                try_pass(&self.limiter, policy, key, *cost)
            }
            _ => Passage::Undecided,
        }
    }

    /// Returns whether an allowed decision is not reported anywhere.
    #[inline]
    fn is_silent(&self) -> bool {
        self.is_simple() && self.responder.is_silent()
    }

    /// Decides the request, if that needs no waiting. Stores a pending settlement in `settling`.
    #[inline]
    pub(crate) fn try_decide(
        &self,
        scope: &RequestScope<'_>,
        settling: &mut Option<Box<Settling>>,
    ) -> Poll<Result<Decision, Rejection>> {
        match (scope, &self.policies) {
            (RequestScope::Key(key), OneOrMany::One(RequestedPolicy::Given(policy))) if self.is_simple() => {
                if !never_waits(policy) {
                    return Poll::Pending;
                }
                try_decide(&self.check(policy, key, &self.cost))
            }
            _ => self.try_decide_limits(scope, settling),
        }
    }

    /// Returns whether the response to an allowed request needs no further work.
    #[inline]
    fn is_simple(&self) -> bool {
        self.options.is_none()
    }

    #[inline(never)]
    fn try_decide_limits(
        &self,
        scope: &RequestScope<'_>,
        settling: &mut Option<Box<Settling>>,
    ) -> Poll<Result<Decision, Rejection>> {
        let resolved = match self.resolve(scope, named) {
            Ok(Resolution::Limits(resolved)) => resolved,
            Ok(Resolution::Nothing(decision)) => return Poll::Ready(Ok(decision)),
            Err(rejection) => return Poll::Ready(Err(rejection)),
        };
        if !resolved.iter().all(|resolved| never_waits(&resolved.policy)) {
            return Poll::Pending;
        }
        let check = self.check_all(&resolved);
        let answer = match self.wait() {
            Some(_) => try_acquire(&check),
            None => try_decide(&check),
        };
        if let Poll::Ready(Ok(decision)) = &answer {
            if decision.is_allowed() {
                *settling = self.settling(&check, decision, &resolved);
            }
        }
        answer
    }

    /// Decides a request for which [`try_decide`](Self::try_decide) has returned `Pending`, and
    /// waits if its policies or the layer are configured to wait, at most until the timeout that
    /// the request states. A misconfiguration is logged, because the client does not learn of it.
    pub(crate) async fn decide(
        &self,
        scope: &RequestScope<'_>,
        bound: Option<Duration>,
    ) -> Result<(Decision, Option<Box<Settling>>), Rejection> {
        let resolved = match self.resolve(scope, named_again) {
            Ok(Resolution::Limits(resolved)) => resolved,
            Ok(Resolution::Nothing(decision)) => return Ok((decision, None)),
            Err(rejection) => return Err(self.log_rejection(Err(rejection))),
        };
        let waits = self.wait().map(|wait| LayerWait {
            expects_refunds: self.settle().is_some(),
            ..wait.for_request()
        });
        let are_registered = resolved.iter().map(ResolvedLimit::is_registered);
        let check = registered(self.check_all(&resolved), are_registered);
        let is_tried = waits.is_none() && resolved.iter().all(|resolved| never_waits(&resolved.policy));
        let first = match is_tried {
            true => after_try(check.clone()),
            false => check.clone(),
        };
        match admit_waiting(first, waits, bound).await {
            Ok(decision) if decision.is_allowed() => {
                let settling = self.settling(&check, &decision, &resolved);
                Ok((decision, settling))
            }
            denied => Err(self.log_rejection(denied)),
        }
    }

    /// Resolves the policies of a request; `named` looks names up in the registry.
    pub(crate) fn resolve<'a>(
        &'a self,
        scope: &'a RequestScope<'_>,
        named: fn(&Limiter, &str, &Key<'_>) -> Result<ResolvedPolicies, Rejection>,
    ) -> Result<Resolution<SmallVec<[ResolvedLimit<'a>; 1]>>, Rejection> {
        let mut resolved = SmallVec::new();
        let (mut nothing, mut mistaken) = (None, false);
        let mut add =
            |which: &'a RequestedPolicy, key: &'a Key<'_>, cost: Option<&'a Result<_, _>>, keeps_cost| {
                let policy = match which {
                    RequestedPolicy::Given(policy) => Cow::Borrowed(policy),
                    RequestedPolicy::Named(name) => match named(&self.limiter, name, key)? {
                        ResolvedPolicies::Policy(policy) => Cow::Owned(policy),
                        ResolvedPolicies::Allowed(decision) => {
                            nothing = Some(decision);
                            return Ok(());
                        }
                    },
                    RequestedPolicy::Layers => return Ok(()),
                    RequestedPolicy::Missing => {
                        mistaken = true;
                        return Ok(());
                    }
                };
                resolved.push(ResolvedLimit {
                    policy,
                    key: key.into(),
                    cost: cost.unwrap_or(&self.cost),
                    keeps_cost,
                });
                Ok::<(), Rejection>(())
            };
        match scope {
            RequestScope::Key(key) => {
                for which in self.policies.iter() {
                    add(which, key, None, false)?;
                }
            }
            RequestScope::RequestLimits(request_limits) => {
                for limit in request_limits.limits.iter() {
                    let which = match &limit.which {
                        RequestedPolicy::Layers => &*self.policies,
                        which => std::slice::from_ref(which),
                    };
                    for which in which {
                        add(which, &limit.key, limit.cost.as_ref(), limit.keeps_cost)?;
                    }
                }
            }
        }
        // An empty list is a configuration error that the limiter reports, also in combination with
        // others.
        if mistaken {
            resolved.clear();
        }
        Ok(if resolved.is_empty() && !mistaken {
            Resolution::Nothing(nothing.unwrap_or_else(|| unlimited(&self.limiter)))
        } else {
            Resolution::Limits(resolved)
        })
    }

    #[inline]
    fn check<'a>(
        &'a self,
        policy: &'a Policy,
        key: &'a Key<'_>,
        cost: &Result<Amount, ConfigError>,
    ) -> Check<'a> {
        let check = self.limiter.check(policy, key);
        match cost {
            Ok(cost) if *cost == Amount::ONE => check,
            cost => check.cost(ConfiguredCost(cost)),
        }
    }

    fn check_all<'a>(&'a self, resolved: &'a [ResolvedLimit<'_>]) -> Check<'a> {
        match resolved {
            [alone] => self.check(&alone.policy, &alone.key, alone.cost),
            resolved => {
                let asks = resolved.iter().map(|resolved| {
                    LimitRequest::new(&resolved.policy, &resolved.key).cost(ConfiguredCost(resolved.cost))
                });
                self.limiter.check_all(asks)
            }
        }
    }

    /// Returns the settlement of a request that this decision allows.
    fn settling(
        &self,
        check: &Check<'_>,
        decision: &Decision,
        resolved: &[ResolvedLimit<'_>],
    ) -> Option<Box<Settling>> {
        let settle = self.settle()?;
        // An invalid cost was not charged, so there is nothing to settle.
        let cost = |resolved: &ResolvedLimit<'_>| resolved.cost.as_ref().copied().unwrap_or(Amount::ZERO);
        let costs = resolved
            .iter()
            .map(|resolved| (cost(resolved), resolved.keeps_cost));
        Settling::new(settle, check, decision, costs, &self.reporter).map(Box::new)
    }
}

impl RequestScope<'_> {
    pub(crate) fn into_owned(self) -> RequestScope<'static> {
        match self {
            Self::Key(key) => RequestScope::Key(key.into_owned()),
            Self::RequestLimits(request_limits) => RequestScope::RequestLimits(request_limits.into_owned()),
        }
    }
}
