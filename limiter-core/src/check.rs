//! A check or a peek, from its words to its answer.

pub(crate) mod fast_path;
pub(crate) mod future;
pub(crate) mod named;

use std::mem;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use smallvec::smallvec;

use crate::algorithm::Mode;
use crate::algorithm::StepResult;
use crate::check::fast_path::Looked;
pub use crate::check::future::CheckFuture;
use crate::concurrency::request::ConcurrencyRequest;
use crate::decision::outage::without_store;
use crate::decision::{Decision, Origin, Rejection};
use crate::error::{ConfigError, StoreError};
use crate::identity::Identity;
use crate::key::Key;
use crate::limiter::{Backend, Limiter};
use crate::observe;
use crate::policy::{OnDenial, Policy};
use crate::request::{DecisionRequest, LimitRequest, charge};
use crate::store::MemoryStore;
use crate::support::one_or_many::OneOrMany;
pub(crate) use crate::units::Amount;

/// A question, not yet asked: await it. Made by [`Limiter::check`], [`Limiter::check_all`] and
/// [`Limiter::peek`].
#[derive(Clone, Debug)]
#[must_use = "nothing is asked or charged until this is awaited"]
pub struct Check<'a> {
    pub(crate) limiter: &'a Limiter,
    asks: OneOrMany<LimitRequest<'a>>,
    mode: Mode,
}

impl<'a> Check<'a> {
    pub(crate) fn new(
        limiter: &'a Limiter,
        asks: impl IntoIterator<Item = LimitRequest<'a>>,
        mode: Mode,
    ) -> Self {
        Self::of(limiter, asks.into_iter().collect(), mode)
    }

    #[inline]
    pub(crate) fn alone(limiter: &'a Limiter, ask: LimitRequest<'a>, mode: Mode) -> Self {
        Self::of(limiter, OneOrMany::One(ask), mode)
    }

    #[inline]
    pub(crate) fn of(limiter: &'a Limiter, asks: OneOrMany<LimitRequest<'a>>, mode: Mode) -> Self {
        Self { limiter, asks, mode }
    }

    /// Sets the cost of the call under each of its limits. Default: 1, or the cost of each
    /// [`LimitRequest`].
    ///
    /// A cost of 0 charges nothing and is always allowed; fractions to a thousandth are for buckets
    /// and funnels.
    #[inline]
    pub fn cost<C>(mut self, cost: C) -> Self
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        let cost = cost.try_into().map_err(Into::into);
        match &mut self.asks {
            OneOrMany::One(ask) => ask.set_cost(cost),
            OneOrMany::Several(asks) => asks.iter_mut().for_each(|ask| ask.set_cost(cost.clone())),
        }
        self
    }

    /// The answer, where it takes no more than a look at the memory of this process: nothing is
    /// boxed, and a question about one limit is neither collected nor moved.
    #[inline]
    pub(crate) fn at_once(&self) -> Poll<Result<Decision, Rejection>> {
        match self.alone_in_memory() {
            Some((store, ask)) if self.is_plain() => self.decide_alone(store, ask),
            Some(_) => Poll::Pending,
            None => self.several_at_once(),
        }
    }

    #[inline(never)]
    fn several_at_once(&self) -> Poll<Result<Decision, Rejection>> {
        match &self.limiter.inner.backend {
            Backend::Memory(_) if self.is_plain() => self.decide_collected(),
            _ => Poll::Pending,
        }
    }

    /// The same for a call that would wait: the permit, where it takes no waiting and nobody waits
    /// for it before. A denial is no answer yet; it has charged nothing, and is not counted.
    pub(crate) fn at_once_or_wait(&self) -> Poll<Result<Decision, Rejection>> {
        let Some((store, ask)) = self.alone_in_memory() else {
            return Poll::Pending;
        };
        if !self.is_plain() || ask.policy().is_scaled() {
            return Poll::Pending;
        }
        self.limiter.open()?;
        // What cannot be asked is said by whoever would wait.
        let Ok((identity, cost)) = ask.charge() else {
            return Poll::Pending;
        };
        if self.limiter.inner.queues.has_waiters(&smallvec![identity]) {
            return Poll::Pending;
        }
        match store.decide_one(identity, ask.policy().algorithm(), cost, self.mode) {
            Ok((decided_at, outcome)) if outcome.fits => {
                observe::decided(ask.policy(), self.mode, true, Origin::Memory);
                Poll::Ready(Ok(ask.decision(
                    decided_at,
                    StepResult::Computed(outcome),
                    Origin::Memory,
                )))
            }
            _ => Poll::Pending,
        }
    }

    /// The answer, where nobody has to be waited for: from the memory of this process, or the
    /// denial that Redis would answer.
    pub(crate) fn without_waiting(&self) -> Option<Result<Decision, Rejection>> {
        match (self.at_once(), self.look()) {
            (Poll::Ready(answer), _) | (Poll::Pending, Looked::Answered(answer)) => Some(answer),
            _ => None,
        }
    }

    #[inline]
    fn alone_in_memory(&self) -> Option<(&MemoryStore, &LimitRequest<'a>)> {
        match (&self.limiter.inner.backend, &self.asks) {
            (Backend::Memory(store), OneOrMany::One(ask)) => Some((store, ask)),
            _ => None,
        }
    }

    /// One function, all of which is compiled into it: what it computes then stays in registers
    /// until it is written into the caller's `Decision`. A copy of what was just written in smaller
    /// pieces waits for the pieces, some 4 ns each time. It is never pending; a caller that is
    /// polled passes the answer on as it is.
    #[inline(never)]
    fn decide_alone(&self, store: &MemoryStore, ask: &LimitRequest<'_>) -> Poll<Result<Decision, Rejection>> {
        self.limiter.open()?;
        let (identity, cost) = match self.charge(ask) {
            Ok(charge) => charge,
            Err(refused) => return self.refused(refused),
        };
        if ask.policy().is_scaled() {
            return self.decide_collected();
        }
        let algorithm = ask.policy().algorithm();
        if let Some((decided_at, left)) = store.decide_steadily(identity, algorithm, cost, self.mode) {
            let standing = StepResult::Level(left);
            observe::decided(ask.policy(), self.mode, standing.fits(), Origin::Memory);
            return Poll::Ready(Ok(ask.decision(decided_at, standing, Origin::Memory)));
        }
        self.decide_one(store, ask, identity, cost)
    }

    #[inline(never)]
    fn decide_one(
        &self,
        store: &MemoryStore,
        ask: &LimitRequest<'_>,
        identity: Identity,
        cost: u64,
    ) -> Poll<Result<Decision, Rejection>> {
        Poll::Ready(
            match store.decide_one(identity, ask.policy().algorithm(), cost, self.mode) {
                Ok((decided_at, outcome)) => {
                    observe::decided(ask.policy(), self.mode, outcome.fits, Origin::Memory);
                    Ok(ask.decision(decided_at, StepResult::Computed(outcome), Origin::Memory))
                }
                Err(error) => self.without_store(error),
            },
        )
    }

    /// About several limits, or under a policy that was another one not long ago.
    #[inline(never)]
    fn decide_collected(&self) -> Poll<Result<Decision, Rejection>> {
        let request = self.clone().request()?;
        let answer = self.limiter.decide_now(&request);
        Poll::Ready(match answer {
            Some(answer) => {
                observe::answered(request.policies(), request.mode, &answer);
                answer
            }
            // Memory always answers.
            None => Err(crate::limiter::shut_down().into()),
        })
    }

    /// What is in flight is no charge, but can be looked at.
    #[cold]
    fn refused(&self, refused: Rejection) -> Poll<Result<Decision, Rejection>> {
        let peek = self
            .peek_permits()
            .map(|ask| self.limiter.peek_local_request(ask.clone()));
        Poll::Ready(peek.unwrap_or(Err(refused)))
    }

    /// The ask, where it is a look at what is in flight.
    fn peek_permits(&self) -> Option<&LimitRequest<'a>> {
        match &self.asks {
            OneOrMany::One(ask) if self.mode == Mode::Peek && ask.policy().is_concurrency() => Some(ask),
            _ => None,
        }
    }

    #[cold]
    fn without_store(&self, error: StoreError) -> Result<Decision, Rejection> {
        let request = self.clone().request()?;
        let answer = without_store(&request, error, self.limiter.inner.clock.now());
        observe::answered(request.policies(), request.mode, &answer);
        answer
    }

    /// Who is to be charged, and how much, if that can ever be.
    #[inline]
    fn charge(&self, ask: &LimitRequest<'_>) -> Result<(Identity, u64), Rejection> {
        ask.charge()
            .inspect_err(|rejection| observe::rejected(ask.policy(), self.mode, rejection))
    }

    pub(crate) fn first_policy(&self) -> Option<&'a Policy> {
        self.asks.first().map(LimitRequest::policy)
    }

    /// Whether a store alone can tell what becomes of the call.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        let policies = match &self.asks {
            OneOrMany::One(ask) => ask.policy().is_store_only(),
            OneOrMany::Several(asks) => asks.iter().all(|ask| ask.policy().is_store_only()),
        };
        // One branch where both are looked at for every call.
        self.limiter.enforces() & policies
    }

    /// The shortest deadline of its policies.
    pub(crate) fn deadline(&self) -> Duration {
        let each = self.asks.iter().map(|ask| ask.policy().deadline());
        each.min().unwrap_or(Policy::DEFAULT_DEADLINE)
    }

    /// The strictest that its policies say of a denial.
    pub(crate) fn on_denial(&self) -> OnDenial {
        let each = self.asks.iter().map(|ask| ask.policy().on_denial());
        each.reduce(OnDenial::stricter).unwrap_or_default()
    }

    pub(crate) fn limiter(&self) -> &'a Limiter {
        self.limiter
    }

    pub(crate) fn asks(&self) -> &[LimitRequest<'a>] {
        &self.asks
    }

    /// Whose it is, what is asked, and how.
    pub(crate) fn into_parts(self) -> (&'a Limiter, OneOrMany<LimitRequest<'a>>, Mode) {
        (self.limiter, self.asks, self.mode)
    }

    /// All that was asked, which is then asked no more.
    fn take(&mut self) -> Self {
        Self {
            asks: mem::take(&mut self.asks),
            ..*self
        }
    }

    fn look_at_what_is_in_flight(self) -> Asked<'a> {
        Box::pin(async move {
            self.limiter.open()?;
            match self.asks {
                OneOrMany::One(ask) => {
                    self.limiter
                        .peek_permits(&ConcurrencyRequest::new(ask, self.mode)?)
                        .await
                }
                several @ OneOrMany::Several(_) => {
                    let request = DecisionRequest::new(several, self.mode, self.limiter.inner.any_groups)?;
                    self.limiter.decide(&request, request.deadline()).await
                }
            }
        })
    }

    pub(crate) fn request(self) -> Result<DecisionRequest<'a>, Rejection> {
        self.limiter.open()?;
        let mut looked_at = None;
        let asks = self
            .asks
            .into_iter()
            .inspect(|ask| looked_at = Some(ask.policy()));
        DecisionRequest::new(asks, self.mode, self.limiter.inner.any_groups).inspect_err(|rejection| {
            if let Some(policy) = looked_at {
                observe::rejected(policy, self.mode, rejection);
            }
        })
    }
}

impl Limiter {
    /// Whether a call may go on, for who asks no more than that: it is charged then, and neither a
    /// question is put together nor a decision written that nobody reads. `false` has charged
    /// nothing and is not counted; why, is to be asked.
    #[inline(never)]
    pub(crate) fn passes(&self, policy: &Policy, key: &Key<'_>, cost: Amount) -> bool {
        #[cfg_attr(
            not(feature = "redis"),
            expect(irrefutable_let_patterns, reason = "Redis is the other one")
        )]
        let Backend::Memory(store) = &self.inner.backend else {
            return false;
        };
        // One branch where all are looked at for every call.
        let is_usual = self.enforces() & policy.is_store_only() & !policy.is_scaled() & key.is_bounded();
        if !is_usual || self.open().is_err() {
            return false;
        }
        let Ok((identity, cost)) = charge(policy, key, cost) else {
            return false;
        };
        let (algorithm, mode) = (policy.algorithm(), Mode::Charge);
        let fits = match store.decide_steadily(identity, algorithm, cost, mode) {
            Some((_, left)) => StepResult::Level(left).fits(),
            None => {
                let answer = store.decide_one(identity, algorithm, cost, mode);
                answer.is_ok_and(|(_, outcome)| outcome.fits)
            }
        };
        if fits {
            observe::decided(policy, mode, true, Origin::Memory);
        }
        fits
    }
}

type Asked<'a> = Pin<Box<dyn Future<Output = Result<Decision, Rejection>> + Send + 'a>>;
