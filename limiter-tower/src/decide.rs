//! The question that a request asks of the limiter.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use limiter_core::__private::Reporter;
use limiter_core::{Allowed, Amount, Ask, ConfigError, Decision, Key, Limiter, Policy, Rejection};

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
        Deciding(Box::pin(async move {
            let answer = self.ask(&key).await;
            if let Err(rejection) = &answer {
                self.reporter.report(rejection);
            }
            answer
        }))
    }

    async fn ask(&self, key: &Key<'static>) -> Result<Decision, Rejection> {
        let cost = self.cost.clone()?;
        let asks = self
            .policies
            .iter()
            .map(|policy| Ask::new(policy, key).cost(cost));
        let decision = self.limiter.check_all(asks).await?;
        decision.require().map(Allowed::into_decision)
    }
}

/// An owned decision that becomes a rejection when it denies.
///
/// The limiter's own future borrows the limiter, the policies and the key, and a `Service::Future` can borrow nothing:
/// hence the box, one allocation a request. Nothing outside of this file knows of it.
pub(crate) struct Deciding(Pin<Box<dyn Future<Output = Result<Decision, Rejection>> + Send>>);

impl Future for Deciding {
    type Output = Result<Decision, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl fmt::Debug for Deciding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deciding")
    }
}
