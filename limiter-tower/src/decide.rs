//! The question that a request asks of the limiter.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use limiter_core::__private::{Reporter, at_once};
use limiter_core::{Allowed, Amount, Ask, Check, ConfigError, Decision, Key, Limiter, Policy, Rejection};

/// What a layer limits by: the limiter, the policies of one decision, and the cost.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    limiter: Limiter,
    policies: Vec<Policy>,
    cost: Result<Amount, ConfigError>,
    reporter: Arc<Reporter>,
}

impl Limits {
    pub(crate) fn new(limiter: Limiter, policy: Policy) -> Self {
        Self {
            limiter,
            policies: vec![policy],
            cost: Ok(Amount::ONE),
            reporter: Arc::new(Reporter::new("RateLimitLayer")),
        }
    }

    pub(crate) fn set_cost(&mut self, cost: Result<Amount, ConfigError>) {
        self.cost = cost;
    }

    /// Nothing is asked before the first poll. A misconfiguration is logged, since the client is not told.
    pub(crate) fn decide(self: Arc<Self>, key: Key<'static>) -> Deciding {
        Deciding(Progress::Unasked(Some((self, key))))
    }

    /// The answer, if it takes no waiting.
    fn at_once(&self, key: &Key<'static>) -> Option<Result<Decision, Rejection>> {
        let check = match self.check(key) {
            Ok(check) => check,
            Err(rejection) => return Some(self.answer(Err(rejection))),
        };
        at_once(&check).map(|answer| self.answer(answer))
    }

    async fn ask(self: Arc<Self>, key: Key<'static>) -> Result<Decision, Rejection> {
        let answer = match self.check(&key) {
            Ok(check) => check.await,
            Err(rejection) => Err(rejection),
        };
        self.answer(answer)
    }

    fn check<'a>(&'a self, key: &'a Key<'static>) -> Result<Check<'a>, Rejection> {
        let cost = self.cost.clone()?;
        Ok(match self.policies.as_slice() {
            [policy] if cost == Amount::ONE => self.limiter.check(policy, key),
            [policy] => self.limiter.check(policy, key).cost(cost),
            policies => {
                let asks = policies.iter().map(|policy| Ask::new(policy, key).cost(cost));
                self.limiter.check_all(asks)
            }
        })
    }

    fn answer(&self, decided: Result<Decision, Rejection>) -> Result<Decision, Rejection> {
        match decided {
            // As it is: a decision is large beside the time in which it is made.
            Ok(decision) if decision.is_allowed() => Ok(decision),
            other => self.rejected(other),
        }
    }

    #[cold]
    fn rejected(&self, decided: Result<Decision, Rejection>) -> Result<Decision, Rejection> {
        let answer = decided.and_then(|decision| decision.require().map(Allowed::into_decision));
        if let Err(rejection) = &answer {
            self.reporter.report(rejection);
        }
        answer
    }
}

/// An owned decision that becomes a rejection when it denies.
pub(crate) struct Deciding(Progress);

enum Progress {
    Unasked(Option<(Arc<Limits>, Key<'static>)>),
    /// The limiter's own future borrows the limiter, the policies and the key, and a `Service::Future` can borrow nothing:
    /// hence the box, where there is something to wait for.
    Asked(Pin<Box<dyn Future<Output = Result<Decision, Rejection>> + Send>>),
}

impl Future for Deciding {
    type Output = Result<Decision, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Progress::Unasked(question) = &mut self.0 {
            #[expect(clippy::expect_used, reason = "as every future, this one ends once")]
            let (limits, key) = question
                .take()
                .expect("a decision polled again after it was made");
            if let Some(answer) = limits.at_once(&key) {
                return Poll::Ready(answer);
            }
            self.0 = Progress::Asked(Box::pin(limits.ask(key)));
        }
        match &mut self.0 {
            Progress::Asked(answer) => answer.as_mut().poll(context),
            Progress::Unasked(_) => Poll::Pending,
        }
    }
}

impl fmt::Debug for Deciding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deciding")
    }
}
