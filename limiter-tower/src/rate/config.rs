//! The question that a request asks of the limiter.

mod costs;
mod verify;

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::Request;
use limiter_core::__private::{
    OneOrMany, Passage, Reporter, ResolvedPolicies, admit_waiting, after_try, named, never_waits,
    try_acquire, try_decide, try_pass, unlimited,
};
use limiter_core::future::Check;
use limiter_core::{Amount, ConfigError, Decision, Key, LimitRequest, Limiter, Policy, Rejection};
use smallvec::SmallVec;

pub(crate) use verify::{PolicyKind, Verification};

use crate::key::{Prefixes, prefixes_of};
use crate::rate::configured_cost::ConfiguredCost;
use crate::rate::wait::WaitConfig;
use crate::request_limits::{PolicyRef, PolicySet, RequestLimits};
use crate::responses::Responder;
use crate::settlement::{Settle, Settling};

/// What a layer limits by: the limiter, the policies, and the cost, where a request's terms say
/// nothing else.
#[derive(Clone, Debug)]
pub(crate) struct LayerConfig {
    limiter: Limiter,
    policies: OneOrMany<PolicyRef>,
    cost: Result<Amount, ConfigError>,
    /// Rarely used settings, so that the common request tests one pointer.
    options: Option<Box<LayerOptions>>,
    reporter: Arc<Reporter>,
    responder: Responder,
    verification: Arc<Verification>,
    /// Of keys that are addresses, as far as the extractor tells.
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

/// Whose permits a request takes, or of what as well.
#[derive(Debug)]
pub(crate) enum RequestScope<'a> {
    Key(Key<'a>),
    RequestLimits(RequestLimits<'a>),
}

/// One limit of a question, with its policy found.
pub(crate) struct ResolvedLimit<'a> {
    pub(crate) policy: Cow<'a, Policy>,
    pub(crate) key: Key<'a>,
    /// One that cannot be used rejects the request, if anything does.
    pub(crate) cost: &'a Result<Amount, ConfigError>,
    keeps_cost: bool,
}

/// What a question comes to.
pub(crate) enum Resolution<'a> {
    ResolvedLimit(SmallVec<[ResolvedLimit<'a>; 1]>),
    /// Nothing is configured for it, and that is allowed; or it is to be unlimited.
    Nothing(Decision),
}

impl LayerConfig {
    /// The limits of a layer that applies policies of this kind.
    pub(crate) fn new(kind: PolicyKind, limiter: Limiter, tier: PolicySet) -> Self {
        let layer = kind.layer();
        let verification = Verification::new(kind, &limiter, &tier.policies);
        let reporter = Reporter::of_layer(layer, tier.policies.iter().filter_map(PolicyRef::name));
        Self {
            limiter,
            policies: tier.policies,
            cost: Ok(Amount::ONE),
            options: None,
            reporter: Arc::new(reporter),
            responder: Responder::default(),
            verification: Arc::new(verification),
            prefixes: None,
        }
    }

    /// Notes by which extractor keys are found.
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

    /// Shows the handler the decision that allows its request, if it is to see it, and says what
    /// the response shows. That is also a decision that was made without the store, and one that
    /// would be another if it were obeyed.
    #[inline]
    pub(crate) fn attach_decision<B>(
        &self,
        decision: Decision,
        request: &mut Request<B>,
    ) -> Option<Box<Decision>> {
        // A handler that is to serve something cheaper has to know.
        let is_usual = decision.store_error().is_none() && !decision.would_deny() && !decision.is_degraded();
        if is_usual && !self.shows_decisions() {
            return None;
        }
        if !is_usual {
            log_degraded(&decision);
        }
        if self.shows_decisions() || decision.is_degraded() {
            request.extensions_mut().insert(decision.clone());
        }
        Some(Box::new(decision))
    }

    /// Decides a request with this key if nothing is reported or settled of an allowed one, which
    /// is the usual case. No decision is written for a request that is allowed.
    #[inline]
    pub(crate) fn try_pass(&self, key: &Key<'_>) -> Passage {
        match (&self.policies, &self.cost) {
            (OneOrMany::One(PolicyRef::Given(policy)), Ok(cost))
                if self.is_silent() && never_waits(policy) =>
            {
                try_pass(&self.limiter, policy, key, *cost)
            }
            _ => Passage::Undecided,
        }
    }

    /// Whether nobody hears of a decision that allows a request.
    #[inline]
    fn is_silent(&self) -> bool {
        self.is_simple() && self.responder.is_silent()
    }

    /// The answer, if it takes no waiting. What is to be settled is put where it is said.
    #[inline]
    pub(crate) fn try_decide(
        &self,
        question: &RequestScope<'_>,
        settling: &mut Option<Box<Settling>>,
    ) -> Poll<Result<Decision, Rejection>> {
        match (question, &self.policies) {
            (RequestScope::Key(key), OneOrMany::One(PolicyRef::Given(policy))) if self.is_simple() => {
                if !never_waits(policy) {
                    return Poll::Pending;
                }
                try_decide(&self.check(policy, key, &self.cost))
            }
            _ => self.try_decide_limits(question, settling),
        }
    }

    /// Whether a request's answer is all that there is to it.
    #[inline]
    fn is_simple(&self) -> bool {
        self.options.is_none()
    }

    #[inline(never)]
    fn try_decide_limits(
        &self,
        question: &RequestScope<'_>,
        settling: &mut Option<Box<Settling>>,
    ) -> Poll<Result<Decision, Rejection>> {
        let asked = match self.resolve(question) {
            Ok(Resolution::ResolvedLimit(asked)) => asked,
            Ok(Resolution::Nothing(decision)) => return Poll::Ready(Ok(decision)),
            Err(rejection) => return Poll::Ready(Err(rejection)),
        };
        if !asked.iter().all(|asked| never_waits(&asked.policy)) {
            return Poll::Pending;
        }
        let check = self.check_all(&asked);
        let answer = match self.wait() {
            Some(_) => try_acquire(&check),
            None => try_decide(&check),
        };
        if let Poll::Ready(Ok(decision)) = &answer {
            if decision.is_allowed() {
                *settling = self.settling(&check, decision, &asked);
            }
        }
        answer
    }

    /// Decides a request for which [`try_decide`](Self::try_decide) has returned `Pending`, and
    /// waits if its policies or the layer say so, at most for the time that the request states. A
    /// misconfiguration is logged, since the client does not learn of it.
    pub(crate) async fn decide(
        &self,
        question: &RequestScope<'_>,
        bound: Option<Duration>,
    ) -> Result<(Decision, Option<Box<Settling>>), Rejection> {
        let asked = match self.resolve(question) {
            Ok(Resolution::ResolvedLimit(asked)) => asked,
            Ok(Resolution::Nothing(decision)) => return Ok((decision, None)),
            Err(rejection) => return Err(self.log_rejection(Err(rejection))),
        };
        let expects_refunds = self.settle().is_some();
        let waits = self.wait().map(|wait| wait.for_request(expects_refunds));
        let check = self.check_all(&asked);
        let is_tried = waits.is_none() && asked.iter().all(|asked| never_waits(&asked.policy));
        let first = match is_tried {
            true => after_try(check.clone()),
            false => check.clone(),
        };
        match admit_waiting(first, waits, bound).await {
            Ok(decision) if decision.is_allowed() => {
                let settling = self.settling(&check, &decision, &asked);
                Ok((decision, settling))
            }
            denied => Err(self.log_rejection(denied)),
        }
    }

    /// The policies of a question, those looked up that are only named.
    pub(crate) fn resolve<'a>(&'a self, question: &'a RequestScope<'_>) -> Result<Resolution<'a>, Rejection> {
        let mut asked = SmallVec::new();
        let (mut nothing, mut mistaken) = (None, false);
        let mut add = |which: &'a PolicyRef, key: &'a Key<'_>, cost: Option<&'a Result<_, _>>, keeps_cost| {
            let policy = match which {
                PolicyRef::Given(policy) => Cow::Borrowed(policy),
                PolicyRef::Named(name) => match named(&self.limiter, name, key)? {
                    ResolvedPolicies::Policy(policy) => Cow::Owned(policy),
                    ResolvedPolicies::Allowed(decision) => {
                        nothing = Some(decision);
                        return Ok(());
                    }
                },
                PolicyRef::Layers => return Ok(()),
                PolicyRef::Missing => {
                    mistaken = true;
                    return Ok(());
                }
            };
            asked.push(ResolvedLimit {
                policy,
                key: key.into(),
                cost: cost.unwrap_or(&self.cost),
                keeps_cost,
            });
            Ok::<(), Rejection>(())
        };
        match question {
            RequestScope::Key(key) => {
                for which in self.policies.iter() {
                    add(which, key, None, false)?;
                }
            }
            RequestScope::RequestLimits(terms) => {
                for term in terms.limits.iter() {
                    let which = match &term.which {
                        PolicyRef::Layers => &*self.policies,
                        which => std::slice::from_ref(which),
                    };
                    for which in which {
                        add(which, &term.key, term.cost.as_ref(), term.keeps_cost)?;
                    }
                }
            }
        }
        // An empty list is a mistake, which the limiter says, also where it stands beside others.
        if mistaken {
            asked.clear();
        }
        Ok(if asked.is_empty() && !mistaken {
            Resolution::Nothing(nothing.unwrap_or_else(|| unlimited(&self.limiter)))
        } else {
            Resolution::ResolvedLimit(asked)
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

    fn check_all<'a>(&'a self, asked: &'a [ResolvedLimit<'_>]) -> Check<'a> {
        match asked {
            [alone] => self.check(&alone.policy, &alone.key, alone.cost),
            asked => {
                let asks = asked.iter().map(|asked| {
                    LimitRequest::new(&asked.policy, &asked.key).cost(ConfiguredCost(asked.cost))
                });
                self.limiter.check_all(asks)
            }
        }
    }

    /// What is to be settled of a request that this decision allows.
    fn settling(
        &self,
        check: &Check<'_>,
        decision: &Decision,
        asked: &[ResolvedLimit<'_>],
    ) -> Option<Box<Settling>> {
        let settle = self.settle()?;
        // What cannot be used was not charged, so that there is nothing to be settled.
        let cost = |asked: &ResolvedLimit<'_>| asked.cost.as_ref().copied().unwrap_or(Amount::ZERO);
        let costs = asked.iter().map(|asked| (cost(asked), asked.keeps_cost));
        Settling::new(settle, check, decision, costs, &self.reporter).map(Box::new)
    }

    /// Why a request is rejected.
    #[cold]
    pub(crate) fn log_rejection(&self, denied: Result<Decision, Rejection>) -> Rejection {
        let rejection = match denied.and_then(Decision::require) {
            Err(rejection) => rejection,
            // What is allowed is not asked why.
            Ok(allowed) => Rejection::Limited(Box::new(allowed.into_decision())),
        };
        self.reporter.report(&rejection);
        let origin = rejection.decision().map(Decision::origin);
        tracing::debug!(rejection = %rejection.diagnostic(), ?origin, "request rejected");
        rejection
    }
}

/// Who looks into a single request finds why it went on though the store did not allow it.
#[cold]
fn log_degraded(decision: &Decision) {
    let (would_deny, degraded) = (decision.would_deny(), decision.is_degraded());
    let (origin, error) = (decision.origin(), decision.store_error());
    tracing::debug!(
        ?origin,
        would_deny,
        degraded,
        ?error,
        "request allowed without a store decision"
    );
}

impl RequestScope<'_> {
    pub(crate) fn into_owned(self) -> RequestScope<'static> {
        match self {
            Self::Key(key) => RequestScope::Key(key.into_owned()),
            Self::RequestLimits(terms) => RequestScope::RequestLimits(terms.into_owned()),
        }
    }
}
