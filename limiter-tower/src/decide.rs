//! The question that a request asks of the limiter.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use limiter_core::__private::{Reporter, Resolved, admit, at_once, is_answered_at_once, named};
use limiter_core::{Amount, Check, ConfigError, Decision, Key, Limiter, Policy, Rejection};

use crate::respond::Responder;

/// What a layer limits by: the limiter, the policy, and the cost.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    limiter: Limiter,
    limit: Limit,
    cost: Result<Amount, ConfigError>,
    /// Whether handlers and layers further out see the decision that allows a request.
    shows_decisions: bool,
    reporter: Arc<Reporter>,
    responder: Responder,
}

/// By which policy.
#[derive(Clone, Debug)]
pub(crate) enum Limit {
    Given(Policy),
    /// The one that stands under this name in the limiter's book.
    Named(Box<str>),
}

impl Limits {
    pub(crate) fn new(limiter: Limiter, limit: Limit) -> Self {
        Self {
            limiter,
            limit,
            cost: Ok(Amount::ONE),
            shows_decisions: false,
            reporter: Arc::new(Reporter::new("RateLimitLayer")),
            responder: Responder::default(),
        }
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
        self.shows_decisions = true;
    }

    /// Shows the handler the decision that allows its request, if it is to see it, and says what the response shows. That is
    /// also a decision that was made without the store.
    #[inline]
    pub(crate) fn show<B>(&self, decision: Decision, request: &mut Request<B>) -> Option<Box<Decision>> {
        // A handler that is to serve something cheaper has to know.
        if self.shows_decisions || decision.is_degraded() {
            request.extensions_mut().insert(decision.clone());
        } else if decision.store_error().is_none() {
            return None;
        }
        Some(Box::new(decision))
    }

    /// Nothing is asked before the first poll. A misconfiguration is logged, since the client is not told.
    pub(crate) fn decide(self: Arc<Self>, key: Key<'static>) -> Deciding {
        Deciding {
            answer: Box::pin(Arc::clone(&self).ask(key)),
            limits: self,
        }
    }

    /// The answer, if it takes no waiting.
    #[inline]
    pub(crate) fn at_once(&self, key: &Key<'_>) -> Poll<Result<Decision, Rejection>> {
        match &self.limit {
            Limit::Given(policy) => self.at_once_by(policy, key),
            Limit::Named(name) => match named(&self.limiter, name, key) {
                Ok(Resolved::Policy(policy)) => self.at_once_by(&policy, key),
                Ok(Resolved::Allowed(decision)) => Poll::Ready(Ok(decision)),
                Err(rejection) => Poll::Ready(Err(rejection)),
            },
        }
    }

    #[inline]
    fn at_once_by(&self, policy: &Policy, key: &Key<'_>) -> Poll<Result<Decision, Rejection>> {
        if !is_answered_at_once(policy) {
            return Poll::Pending;
        }
        match self.check(policy, key) {
            Ok(check) => at_once(&check),
            Err(rejection) => Poll::Ready(Err(rejection)),
        }
    }

    async fn ask(self: Arc<Self>, key: Key<'static>) -> Result<Decision, Rejection> {
        let answer = match &self.limit {
            Limit::Given(policy) => self.ask_by(policy, &key).await,
            Limit::Named(name) => match named(&self.limiter, name, &key) {
                Ok(Resolved::Policy(policy)) => self.ask_by(&policy, &key).await,
                Ok(Resolved::Allowed(decision)) => Ok(decision),
                Err(rejection) => Err(rejection),
            },
        };
        self.answer(answer)
    }

    async fn ask_by(&self, policy: &Policy, key: &Key<'_>) -> Result<Decision, Rejection> {
        admit(self.check(policy, key)?).await
    }

    #[inline]
    fn check<'a>(&'a self, policy: &'a Policy, key: &'a Key<'_>) -> Result<Check<'a>, Rejection> {
        let cost = match &self.cost {
            Ok(cost) => *cost,
            Err(error) => return Err(error.clone().into()),
        };
        let check = self.limiter.check(policy, key);
        Ok(if cost == Amount::ONE {
            check
        } else {
            check.cost(cost)
        })
    }

    fn answer(&self, decided: Result<Decision, Rejection>) -> Result<Decision, Rejection> {
        match decided {
            Ok(decision) if decision.is_allowed() => Ok(decision),
            denied => Err(self.why(denied)),
        }
    }

    /// Why a request is rejected.
    #[cold]
    pub(crate) fn why(&self, denied: Result<Decision, Rejection>) -> Rejection {
        let rejection = match denied.and_then(Decision::require) {
            Err(rejection) => rejection,
            // What is allowed is not asked why.
            Ok(allowed) => Rejection::Limited(Box::new(allowed.into_decision())),
        };
        self.reporter.report(&rejection);
        rejection
    }
}

/// An owned decision that becomes a rejection when it denies.
pub(crate) struct Deciding {
    limits: Arc<Limits>,
    /// The limiter's own future borrows the limiter, the policy and the key, and a `Service::Future` can borrow nothing: hence
    /// the box.
    answer: Pin<Box<dyn Future<Output = Result<Decision, Rejection>> + Send>>,
}

impl Deciding {
    pub(crate) fn limits(&self) -> &Arc<Limits> {
        &self.limits
    }
}

impl Future for Deciding {
    type Output = Result<Decision, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.answer.as_mut().poll(context)
    }
}

impl fmt::Debug for Deciding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deciding")
    }
}
