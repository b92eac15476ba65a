//! What a look at a question says before Redis is asked.

#[cfg(feature = "redis")]
use crate::algorithm::Mode;
use crate::check::Check;
use crate::decision::{Decision, Rejection};
#[cfg(feature = "redis")]
use crate::identity::Identity;
#[cfg(feature = "redis")]
use crate::limiter::Backend;
#[cfg(feature = "redis")]
use crate::observe;
#[cfg(feature = "redis")]
use crate::support::one_or_many::OneOrMany;

/// What a look at a question says, where it lies.
pub(crate) enum Looked {
    /// All that is to be said.
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "memory answers before"))]
    Answered(Result<Decision, Rejection>),
    /// Who is to be charged, and how much, by Redis.
    #[cfg(feature = "redis")]
    Charge((Identity, u64)),
    /// Nothing.
    Unknown,
}

impl Check<'_> {
    /// Looks up a question about one limit in the deny cache. It knows nothing of shadow mode, off
    /// mode, key lists and penalties, so only plain questions are looked up.
    #[cfg(feature = "redis")]
    #[inline]
    pub(crate) fn look(&self) -> Looked {
        if !self.is_plain() {
            return Looked::Unknown;
        }
        let (Backend::Redis(guard), OneOrMany::One(ask), Mode::Charge) =
            (&self.limiter.inner.backend, &self.asks, self.mode)
        else {
            return Looked::Unknown;
        };
        // What is borrowed is spent first.
        if ask.policy().lease().is_some() {
            return Looked::Unknown;
        }
        if let Err(error) = self.limiter.open() {
            return Looked::Answered(Err(error.into()));
        }
        let (identity, cost) = match self.charge(ask) {
            Ok(charge) => charge,
            Err(rejection) => return Looked::Answered(Err(rejection)),
        };
        match guard.deny_now(ask, identity, cost) {
            Some(decision) => {
                observe::decided(ask.policy(), self.mode, decision.allowed, decision.origin);
                Looked::Answered(Ok(decision))
            }
            None => Looked::Charge((identity, cost)),
        }
    }

    #[cfg(not(feature = "redis"))]
    pub(crate) fn look(&self) -> Looked {
        Looked::Unknown
    }
}
