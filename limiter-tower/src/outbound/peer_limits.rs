//! The limits of requests to a peer: the client's own policy, and the pauses that the peer
//! requests.
//!
//! A request is sent if its key is not paused and the policy admits it. A waiting request first
//! waits for the end of the pause and then for a permit; a pause that begins meanwhile removes it
//! from the queue of permits. If a pause begins during the query to the store, the permit is
//! refunded and the request waits again.
//!
//! Invariants: all waits of a request together end at the layer's maximum or the caller's timeout,
//! whichever is earlier; and a request that leaves the queue is not charged. Tests:
//! `tests/outbound/pauses.rs`, `tests/outbound/caller_timeout.rs`, `tests/outbound/redis.rs`.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::Response;
use limiter_core::__private::{
    Reporter, ResolvedPolicies, admit_waiting, calendar, give_back, named, never_waits, now, registered,
    sleep_as_waiter, try_decide,
};
use limiter_core::future::Check;
use limiter_core::{Amount, ConfigError, Decision, Key, Limiter, Policy, Rejection, Timestamp};

use super::pauses::Pauses;
use super::peer_quota;
use crate::rate::config::{PolicyKind, Verification};
use crate::rate::configured_cost::ConfiguredCost;
use crate::request_limits::RequestedPolicy;

/// The limits of a layer's requests.
#[derive(Clone, Debug)]
pub(crate) struct PeerLimits {
    limiter: Limiter,
    limit: PolicySource,
    pub(super) cost: Result<Amount, ConfigError>,
    /// In total; zero if requests do not wait.
    pub(super) wait: Duration,
    pub(super) longest_pause: Duration,
    pauses: Arc<Pauses>,
    reporter: Arc<Reporter>,
    verification: Arc<Verification>,
}

/// The source of the policy.
#[derive(Clone, Debug)]
pub enum PolicySource {
    Given(Policy),
    /// The policy of this name in the limiter's registry.
    Named(Box<str>),
}

impl PolicySource {
    fn to_requested(&self) -> RequestedPolicy {
        match self {
            Self::Given(policy) => RequestedPolicy::Given(policy.clone()),
            Self::Named(name) => RequestedPolicy::Named(Cow::Owned(name.to_string())),
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Given(policy) => policy.name(),
            Self::Named(name) => name,
        }
    }
}

/// A request that may be sent, with its policy; `None` if no policy is configured and the limiter
/// allows that.
struct Allowed {
    decision: Decision,
    policy: Option<Policy>,
}

impl PeerLimits {
    pub(super) fn new(limiter: Limiter, limit: PolicySource, longest_pause: Duration) -> Self {
        let reporter = Reporter::of_layer("OutboundLayer", [limit.name()]);
        let policies = [limit.to_requested()];
        let verification = Verification::new(PolicyKind::Rate, &limiter, &policies);
        Self {
            limiter,
            limit,
            cost: Ok(Amount::ONE),
            wait: Duration::ZERO,
            longest_pause,
            pauses: Arc::default(),
            reporter: Arc::new(reporter),
            verification: Arc::new(verification),
        }
    }

    /// Fails if requests could not be decided as configured.
    pub(super) fn verify(&self) -> Result<(), ConfigError> {
        self.cost.clone()?;
        self.verification
            .verify(&self.limiter, &[self.limit.to_requested()])
    }

    /// Logs an error that [`verify`](Self::verify) would return, except for a missing name, which
    /// may still be added to the registry.
    pub(super) fn log_errors(&self) {
        let given = [self.limit.to_requested()];
        let verified = (self.cost.clone().map(drop))
            .and_then(|()| self.verification.verify_policies(&self.limiter, &given));
        self.verification.log("OutboundLayer", verified);
    }

    /// Maximum total wait of a request, shortened by the timeout that the request states.
    fn max_wait(&self, bound: Option<Duration>) -> Duration {
        bound.map_or(self.wait, |bound| bound.min(self.wait))
    }

    /// Decides whether a request may be sent, if that needs no waiting. The wait ends at the latest
    /// at the timeout that the request states.
    pub(super) fn try_decide(
        &self,
        key: &Key<'_>,
        bound: impl FnOnce() -> Option<Duration>,
    ) -> Poll<Result<Decision, Rejection>> {
        if let Some(end) = self.pause_end(key) {
            let retry_after = end.since(now(&self.limiter));
            return if retry_after > self.max_wait(bound()) {
                Poll::Ready(Err(Rejection::Paused { retry_after }))
            } else {
                Poll::Pending
            };
        }
        // A request that can wait does not overtake waiting requests.
        if !self.wait.is_zero() {
            return Poll::Pending;
        }
        let answer = match self.policy(key) {
            Ok(ResolvedPolicies::Policy(policy)) if never_waits(&policy) => {
                try_decide(&self.check(&policy, key))
            }
            Ok(ResolvedPolicies::Policy(_)) => Poll::Pending,
            Ok(ResolvedPolicies::Allowed(decision)) => Poll::Ready(Ok(decision)),
            Err(rejection) => Poll::Ready(Err(rejection)),
        };
        answer
            .map(|decided| require_allowed(decided).inspect_err(|rejection| self.reporter.report(rejection)))
    }

    /// Decides whether a request may be sent, and waits until the timeout of the request at most.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe while it waits; otherwise the request may be charged.
    pub(super) async fn decide(&self, key: &Key<'_>, bound: Option<Duration>) -> Result<Decision, Rejection> {
        let ends = now(&self.limiter).after(self.max_wait(bound));
        loop {
            self.wait_out(key, ends).await?;
            let allowed = if self.wait.is_zero() {
                self.decide_once(key, bound).await
            } else {
                tokio::select! {
                    biased;
                    // A request that leaves the queue is not charged.
                    () = self.longer_pause(key, None) => continue,
                    allowed = self.wait_for_permit(key, ends, bound) => allowed,
                }
            };
            let Allowed { decision, policy } =
                allowed.inspect_err(|rejection| self.reporter.report(rejection))?;
            if self.pause_end(key).is_none() {
                return Ok(decision);
            }
            // The peer requested the pause during the query to the store. If the permit cannot be
            // refunded, it stays charged; the request is not sent, and the client receives the
            // reason.
            if let (Some(policy), Ok(cost)) = (policy, &self.cost) {
                drop(give_back(&self.limiter, &policy, key, *cost, &decision).await);
            }
        }
    }

    /// Waits until the key is not paused, or until the timeout.
    async fn wait_out(&self, key: &Key<'_>, ends: Timestamp) -> Result<(), Rejection> {
        while let Some(end) = self.pause_end(key) {
            if end > ends {
                let retry_after = end.since(now(&self.limiter));
                return Err(Rejection::Paused { retry_after });
            }
            tokio::select! {
                biased;
                () = self.longer_pause(key, Some(end)) => {}
                rested = sleep_as_waiter(&self.limiter, end) => rested?,
            }
        }
        Ok(())
    }

    /// Waits until the key has a pause that ends later than the known one.
    async fn longer_pause(&self, key: &Key<'_>, known: Option<Timestamp>) {
        loop {
            let mut begun = pin!(self.pauses.begun());
            // From here on it receives notifications, also before its first poll.
            begun.as_mut().enable();
            if self.pause_end(key) > known {
                return;
            }
            begun.await;
        }
    }

    async fn decide_once(&self, key: &Key<'_>, bound: Option<Duration>) -> Result<Allowed, Rejection> {
        match self.policy(key)? {
            ResolvedPolicies::Policy(policy) => Ok(Allowed {
                decision: admit_waiting(self.check(&policy, key), None, bound).await?,
                policy: Some(policy),
            }),
            ResolvedPolicies::Allowed(decision) => Ok(Allowed {
                decision,
                policy: None,
            }),
        }
    }

    async fn wait_for_permit(
        &self,
        key: &Key<'_>,
        ends: Timestamp,
        bound: Option<Duration>,
    ) -> Result<Allowed, Rejection> {
        let policy = match self.policy(key)? {
            ResolvedPolicies::Policy(policy) => policy,
            ResolvedPolicies::Allowed(decision) => {
                return Ok(Allowed {
                    decision,
                    policy: None,
                });
            }
        };
        let left = ends.since(now(&self.limiter));
        let max_wait = self.max_wait(bound);
        let cost = ConfiguredCost(&self.cost);
        let permit = match &self.limit {
            PolicySource::Given(policy) => self.limiter.acquire(policy, key).cost(cost).timeout(left).await,
            // Follows the changes of the registry.
            PolicySource::Named(name) => {
                let permit = self.limiter.named(name).acquire(key);
                permit.cost(cost).timeout(left).await
            }
        };
        match permit {
            Ok(allowed) => Ok(Allowed {
                decision: allowed.into_decision(),
                policy: Some(policy),
            }),
            // A pause may have used a part of the time.
            Err(Rejection::TimedOut { decision, .. }) => Err(Rejection::TimedOut {
                decision,
                limit: max_wait,
            }),
            // A pause has used all of the time.
            Err(Rejection::Limited(denied)) if left.is_zero() && !max_wait.is_zero() => {
                Err(Rejection::TimedOut {
                    decision: Some(denied),
                    limit: max_wait,
                })
            }
            Err(rejection) => Err(rejection),
        }
    }

    /// Records the pause that a response requests.
    pub(super) fn observe_response<B>(&self, key: &Key<'static>, response: &Response<B>) {
        if self.longest_pause.is_zero() {
            return;
        }
        let own_time = || calendar(&self.limiter).into();
        let Some(requested) = peer_quota::pause(response.status(), response.headers(), &own_time) else {
            return;
        };
        let pause = requested.min(self.longest_pause);
        let now = now(&self.limiter);
        if self.pauses.begin(key.clone(), now.after(pause), now) {
            let policy = self.limit.name();
            tracing::debug!(policy, ?requested, ?pause, "peer requested a pause");
        }
    }

    fn pause_end(&self, key: &Key<'_>) -> Option<Timestamp> {
        self.pauses.end(key, || now(&self.limiter))
    }

    fn policy(&self, key: &Key<'_>) -> Result<ResolvedPolicies, Rejection> {
        match &self.limit {
            PolicySource::Given(policy) => Ok(ResolvedPolicies::Policy(policy.clone())),
            PolicySource::Named(name) => named(&self.limiter, name, key),
        }
    }

    fn check<'a>(&'a self, policy: &'a Policy, key: &'a Key<'_>) -> Check<'a> {
        let check = self.limiter.check(policy, key).cost(ConfiguredCost(&self.cost));
        registered(check, [matches!(self.limit, PolicySource::Named(_))])
    }
}

/// Converts a denial to an error of the service.
fn require_allowed(decided: Result<Decision, Rejection>) -> Result<Decision, Rejection> {
    decided?.require().map(limiter_core::Allowed::into_decision)
}
