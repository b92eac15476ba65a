//! Permits that are taken by an estimate, and settled when the true cost is known.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use crate::algorithm::{Change, Mode};
use crate::decision::{Allowed, Decision, Origin, Rejection};
use crate::error::ConfigError;
#[cfg(feature = "redis")]
use crate::error::{StoreError, StoreErrorKind};
use crate::limiter::beyond::Sorted;
use crate::limiter::waiting::Wanted;
use crate::limiter::{Backend, Check, Limiter};
use crate::observe;
use crate::policy::{Algorithm, Funnel, Policy, TokenBucket};
use crate::request::{Request, used_units};
use crate::units::Amount;

/// A reservation, not yet made: await it. Made by [`Limiter::reserve`] and [`Limiter::reserve_all`].
#[derive(Clone, Debug)]
#[must_use = "nothing is asked or charged until this is awaited"]
pub struct Reserve<'a> {
    check: Check<'a>,
    up_to: Option<Duration>,
}

impl<'a> Reserve<'a> {
    pub(in crate::limiter) fn new(check: Check<'a>) -> Self {
        Self { check, up_to: None }
    }

    /// The estimate, as [`Check::cost`]. Default: 1, or what each [`Ask`](crate::Ask) says. With an estimate of 0 nothing is taken
    /// beforehand, and all of the true cost is charged when it is settled.
    pub fn cost<C>(self, cost: C) -> Self
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        Self {
            check: self.check.cost(cost),
            ..self
        }
    }

    /// Waits for the permits, as [`Acquire::up_to`](crate::Acquire::up_to). Default: no wait.
    pub fn up_to(self, up_to: Duration) -> Self {
        Self {
            up_to: Some(up_to),
            ..self
        }
    }
}

impl<'a> IntoFuture for Reserve<'a> {
    type Output = Result<Reservation, Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            if !self.check.is_plain() {
                return reserve_sorted(self.check, self.up_to).await;
            }
            let limiter = self.check.limiter;
            let request = self.check.request()?;
            let allowed = match self.up_to {
                Some(up_to) => limiter.wait(&request, up_to).await?,
                None => {
                    let answer = match limiter.decide_now(&request) {
                        Some(answer) => answer,
                        None => limiter.decide(&request, request.deadline()).await,
                    };
                    observe::answered(request.policies(), request.mode, &answer);
                    answer?.require()?
                }
            };
            Ok(Reservation {
                limiter: limiter.clone(),
                wanted: Wanted::of(&request),
                decided: smallvec![true; request.limits.len()],
                allowed,
            })
        })
    }
}

/// The same where the policies, or the limiter, say more than a store knows.
async fn reserve_sorted(check: Check<'_>, up_to: Option<Duration>) -> Result<Reservation, Rejection> {
    let limiter = check.limiter.clone();
    let decided = check.asks().iter().map(|ask| limiter.charges(ask)).collect();
    // A cost that never fits is let through in shadow, and nothing of it is ever settled.
    let request = Request::new(check.asks().iter().cloned(), Mode::Peek, true);
    let wanted = request.as_ref().map(Wanted::of).unwrap_or_default();
    let sorted = Sorted::new(check.clone());
    let allowed = match up_to {
        Some(up_to) => sorted.acquire(up_to).await?,
        None => sorted.decide().await?.require()?,
    };
    Ok(Reservation {
        limiter,
        wanted,
        decided,
        allowed,
    })
}

/// Permits that were taken by an estimate. Owned: it may be kept in a task, a stream or a response until the true cost is known.
///
/// One that is dropped stays charged at its estimate.
#[must_use = "it stays charged at its estimate unless it is settled or cancelled"]
pub struct Reservation {
    limiter: Limiter,
    wanted: Wanted,
    /// Of which limits there is something in the decision: not of those that are off, or that a list of keys allows.
    decided: SmallVec<[bool; 1]>,
    allowed: Allowed,
}

impl Reservation {
    /// One by which nothing was taken, and nothing is settled.
    pub(in crate::limiter) fn of_nothing(limiter: &Limiter, allowed: Allowed) -> Self {
        Self {
            limiter: limiter.clone(),
            wanted: Wanted::default(),
            decided: smallvec![false],
            allowed,
        }
    }

    /// The decision by which it was granted.
    pub fn decision(&self) -> &Decision {
        &self.allowed
    }

    /// Has `actual` be charged in place of the estimate, under each of its limits: the difference is given back, or charged
    /// whatever is left. Where less is left, the limit is in debt, and later calls wait until that has come back.
    ///
    /// A settlement gives back no more than the reservation took, no more than is used, and nothing that had come back by itself:
    /// of a bucket or a funnel the difference comes back whole as long as less time has passed than the rest of what was used then
    /// takes to come back, so give calls that take long a capacity of at least the estimate and what comes back meanwhile; of a
    /// window until the permits have left it. So over any time T no more is admitted, by its true cost, than capacity + rate·T,
    /// beside debts and what is given back in T of estimates that were taken before it. A debt of a window lasts for one
    /// window, and beyond the limit nothing of it is remembered; one of a bucket or a funnel is at most 2^52 thousandths.
    ///
    /// What was allowed in place of the store ([`Origin::Insurance`], [`Origin::FailedOpen`]) was not charged there, so that
    /// nothing of it is given back.
    ///
    /// # Errors
    ///
    /// [`Rejection::Config`] for an amount that is none, or that the limit cannot count; [`Rejection::Unavailable`] when the store
    /// gives no answer. It may be settled all the same, and is not settled again.
    ///
    /// # Cancel safety
    ///
    /// In process it is settled at the first poll. With Redis it goes on in a task of its own when the future is dropped after that.
    /// It is never settled twice.
    pub async fn settle<C>(self, actual: C) -> Result<(), Rejection>
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        let actual = actual
            .try_into()
            .map_err(|error| Rejection::Config(error.into()))?;
        let actuals = (0..self.wanted.len()).map(|_| actual).collect();
        self.settle_at(actuals).await
    }

    /// The same with an amount for each limit, in the order of asking.
    ///
    /// # Errors
    ///
    /// As [`settle`](Self::settle), and [`Rejection::Config`] if there is not one amount for each limit.
    ///
    /// # Cancel safety
    ///
    /// As [`settle`](Self::settle).
    pub async fn settle_each<C>(self, actuals: impl IntoIterator<Item = C>) -> Result<(), Rejection>
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        let amounts = actuals.into_iter().map(C::try_into);
        let amounts: Result<SmallVec<[Amount; 1]>, _> = amounts.collect();
        let amounts = amounts.map_err(|error| Rejection::Config(error.into()))?;
        if amounts.len() != self.decided.len() {
            let expected = format!("{}, one for each limit", self.decided.len());
            let error = ConfigError::invalid("number of amounts", amounts.len(), expected);
            return Err(Rejection::Config(error));
        }
        self.settle_at(amounts).await
    }

    /// Gives all of it back, as [`settle`](Self::settle) with 0.
    ///
    /// # Errors
    ///
    /// [`Rejection::Unavailable`] when the store gives no answer. It may have been given back all the same.
    ///
    /// # Cancel safety
    ///
    /// As [`settle`](Self::settle).
    pub async fn cancel(self) -> Result<(), Rejection> {
        self.settle(0_u32).await
    }

    async fn settle_at(self, actuals: SmallVec<[Amount; 1]>) -> Result<(), Rejection> {
        // An amount that a limit cannot count leaves all limits as they are.
        let actuals = self.wanted.units(&actuals)?;
        match &self.limiter.inner.backend {
            Backend::Memory(_) => self.change(actuals).await,
            #[cfg(feature = "redis")]
            Backend::Redis(_) => {
                // Whoever shuts the limiter down waits for it, too.
                let open = self.limiter.inner.closing.subscribe();
                let settling = tokio::spawn(async move {
                    let settled = self.change(actuals).await;
                    drop(open);
                    settled
                });
                settling.await.unwrap_or_else(|_| {
                    let detail = "the runtime in which Redis was asked has ended";
                    Err(StoreError::new(StoreErrorKind::Connection, detail).into())
                })
            }
        }
    }

    /// Makes of each limit's estimate what was used.
    async fn change(self, actuals: SmallVec<[u64; 1]>) -> Result<(), Rejection> {
        // What shadow let through was not charged, or not all of it.
        let is_charged = !self.allowed.would_deny()
            && matches!(
                self.allowed.origin(),
                Origin::Redis | Origin::Lease | Origin::Memory
            );
        let mut settled = Ok(());
        let mut all_told = self.allowed.limits().iter();
        for ((mut request, actual), decided) in self.wanted.each(1).zip(actuals).zip(&self.decided) {
            if !decided {
                continue;
            }
            let told = all_told.next();
            let Some(limit) = request.limits.first_mut() else {
                continue;
            };
            let estimate = limit.cost;
            limit.cost = estimate.abs_diff(actual);
            let change = if actual > estimate {
                Change::Owe
            } else if is_charged && limit.cost > 0 {
                let whole_at = told.map_or(self.allowed.decided_at(), |told| {
                    let whole_after = told.reset_after().min(back_after(limit.policy, told.remaining()));
                    self.allowed.decided_at().after(whole_after)
                });
                Change::Refund {
                    whole_at: whole_at.as_micros().max(1),
                }
            } else {
                continue;
            };
            // One that fails keeps no other from being settled.
            let changed = self.limiter.change(&request, change).await;
            settled = settled.and(changed);
            self.limiter.inner.queues.came_back(&request.queue());
        }
        self.limiter.inner.queues.came_back(&self.wanted.queue());
        settled
    }
}

/// How long what is used of a limit, of which so much remains, takes to come back by itself. What is lent of it is not used, though
/// the limit is not whole before that has come back, too; no limit but a bucket or a funnel lends.
fn back_after(policy: &Policy, remaining: Amount) -> Duration {
    let algorithm = policy.algorithm();
    match algorithm {
        Algorithm::TokenBucket(TokenBucket { rate, .. }) | Algorithm::Funnel(Funnel { rate, .. })
            if policy.lease().is_some() =>
        {
            let used = used_units(policy, remaining).map_or(0, |left| algorithm.quota().saturating_sub(left));
            Duration::from_micros(rate.time_for(used, 0))
        }
        _ => Duration::MAX,
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("wanted", &self.wanted)
            .field("decision", self.decision())
            .finish_non_exhaustive()
    }
}
