//! An enter, from its words to a permit that is held.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, mem};

use crate::algorithm::Mode;
use crate::concurrency::deadline::AcquireDeadline;
#[cfg(feature = "redis")]
use crate::concurrency::distributed::wait_there;
#[cfg(feature = "redis")]
use crate::concurrency::permit::permitted;
use crate::concurrency::permit::{ConcurrencyPermit, PermitBacking};
use crate::concurrency::request::ConcurrencyRequest;
use crate::decision::{Decision, Rejection};
use crate::error::ConfigError;
use crate::limiter::{Backend, Limiter, shut_down};
use crate::observe;
use crate::policy::Policy;
use crate::request::LimitRequest;
pub(crate) use crate::units::Amount;

/// Permits of what is in flight, not asked for yet: await it. Made by
/// [`Limiter::acquire_concurrency`].
#[derive(Clone, Debug)]
#[must_use = "nothing is asked for until this is awaited"]
pub struct AcquireConcurrency<'a> {
    pub(crate) limiter: &'a Limiter,
    pub(crate) ask: LimitRequest<'a>,
    timeout: Duration,
}

impl<'a> AcquireConcurrency<'a> {
    pub(crate) fn new(limiter: &'a Limiter, ask: LimitRequest<'a>) -> Self {
        Self {
            limiter,
            ask,
            timeout: Duration::ZERO,
        }
    }

    /// How many permits are held: a whole number up to 1,024, and not above the policy's maximum.
    /// Default: 1. A cost of 0 holds nothing, and is always allowed.
    pub fn cost(mut self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.ask.set_cost(cost.try_into().map_err(Into::into));
        self
    }

    /// How long to wait in total, the queue and every question to the store included. Default: no
    /// time at all, so that a denial is [`Rejection::Limited`]; after a wait it is
    /// [`Rejection::TimedOut`].
    ///
    /// Those who wait in this process are served first come, first served. A permit that is given
    /// back here goes straight to who is next, if it is for as many permits, for up to a second in
    /// a row; then it goes back to Redis, so that other processes have their turn. Who is next in a
    /// process asks Redis again after pauses that double from 10 to 160 ms, longer by up to a
    /// quarter, or when the first lease ends. Between processes there is no order.
    ///
    /// A wait that ends before the policy's deadline for the store does is over, whatever the
    /// policy says of a store that is out: that no answer came in so short a time says nothing
    /// about the store.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The answer, where it takes no more than a look at the memory of this process.
    fn at_once(&self) -> Option<Result<ConcurrencyPermit, Rejection>> {
        // Who waits has to wait for his turn first.
        match &self.limiter.inner.backend {
            Backend::Memory(_) if self.timeout.is_zero() && self.is_plain() => Some(self.try_local()),
            _ => None,
        }
    }

    /// The same for who awaits nothing.
    pub(crate) fn answered_at_once(&self) -> Option<Result<ConcurrencyPermit, Rejection>> {
        let answer = self.at_once()?;
        observe::entered(self.ask.policy(), &answer);
        Some(answer)
    }

    fn try_local(&self) -> Result<ConcurrencyPermit, Rejection> {
        self.limiter.open()?;
        let asked = ConcurrencyRequest::new(self.ask.clone(), Mode::Charge)?;
        self.limiter.enter_here(&asked)
    }

    fn boxed(self) -> PendingAcquire<'a> {
        let policy = self.ask.policy();
        match (
            self.limiter.is_in_process() && self.timeout.is_zero(),
            self.is_plain(),
        ) {
            (true, true) => Box::pin(self.run()),
            (true, false) => Box::pin(self.run_excused()),
            (false, true) => observe::entering(Some(policy), self.run()),
            (false, false) => observe::entering(Some(policy), self.run_excused()),
        }
    }

    pub(crate) async fn run(self) -> Result<ConcurrencyPermit, Rejection> {
        let limiter = self.limiter;
        limiter.open()?;
        let asked = ConcurrencyRequest::new(self.ask, Mode::Charge)?;
        if asked.terms().cost == 0 {
            let decision = limiter.peek_in_flight(&asked).await?;
            return Ok(ConcurrencyPermit::new(decision, PermitBacking::Nothing));
        }
        if self.timeout.is_zero() {
            return limiter.enter_once(&asked, asked.request().deadline()).await;
        }
        let mut closing = limiter.inner.closing.subscribe();
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => Err(shut_down().into()),
            answer = limiter.enter_in_turn(&asked, self.timeout) => answer,
        }
    }
}

impl<'a> IntoFuture for AcquireConcurrency<'a> {
    type Output = Result<ConcurrencyPermit, Rejection>;
    type IntoFuture = ConcurrencyFuture<'a>;

    fn into_future(self) -> ConcurrencyFuture<'a> {
        ConcurrencyFuture {
            policy: self.ask.policy(),
            progress: AcquireProgress::Unasked(self),
        }
    }
}

/// The future of an [`AcquireConcurrency`]. In process, a call that need not wait is ready at the
/// first poll, without an allocation.
#[must_use = "futures do nothing unless polled"]
pub struct ConcurrencyFuture<'a> {
    policy: &'a Policy,
    progress: AcquireProgress<'a>,
}

enum AcquireProgress<'a> {
    Unasked(AcquireConcurrency<'a>),
    Asked(PendingAcquire<'a>),
    Answered,
}

type PendingAcquire<'a> = Pin<Box<dyn Future<Output = Result<ConcurrencyPermit, Rejection>> + Send + 'a>>;

impl Future for ConcurrencyFuture<'_> {
    type Output = Result<ConcurrencyPermit, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = self.progress.poll(context);
        if let Poll::Ready(answer) = &answer {
            observe::entered(self.policy, answer);
        }
        answer
    }
}

impl AcquireProgress<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<ConcurrencyPermit, Rejection>> {
        #[expect(clippy::panic, reason = "as every future, this one ends once")]
        let mut asked = match mem::replace(self, Self::Answered) {
            AcquireProgress::Unasked(enter) => match enter.at_once() {
                Some(answer) => return Poll::Ready(answer),
                None => enter.boxed(),
            },
            AcquireProgress::Asked(asked) => asked,
            AcquireProgress::Answered => panic!("an enter polled again after it was answered"),
        };
        let answer = asked.as_mut().poll(context);
        if answer.is_pending() {
            *self = AcquireProgress::Asked(asked);
        }
        answer
    }
}

impl fmt::Debug for ConcurrencyFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entering")
    }
}

impl Limiter {
    /// Asks the store once, at most until the deadline.
    #[cfg_attr(
        not(feature = "redis"),
        expect(
            unused_variables,
            clippy::unused_async,
            reason = "in process it takes no time"
        )
    )]
    async fn enter_once(
        &self,
        asked: &ConcurrencyRequest<'_>,
        deadline: Duration,
    ) -> Result<ConcurrencyPermit, Rejection> {
        match &self.inner.backend {
            Backend::Memory(_) => self.enter_here(asked),
            #[cfg(feature = "redis")]
            Backend::Redis(guard) => {
                // On the heap, so that the futures of those who wait stay small.
                let (decision, held) = Box::pin(guard.enter(asked, deadline)).await?;
                permitted(
                    decision,
                    held.map_or(PermitBacking::Nothing, PermitBacking::Leased),
                )
            }
        }
    }

    /// Waits for its turn, and then for permits.
    async fn enter_in_turn(
        &self,
        asked: &ConcurrencyRequest<'_>,
        timeout: Duration,
    ) -> Result<ConcurrencyPermit, Rejection> {
        let clock = &self.inner.clock;
        let wait = AcquireDeadline {
            started: clock.now(),
            timeout,
            clock,
        };
        match &self.inner.backend {
            Backend::Memory(_) => self.wait_here(asked, &wait).await,
            #[cfg(feature = "redis")]
            Backend::Redis(guard) => wait_there(guard, asked, &wait).await,
        }
    }

    /// Forgets who holds permits, of those that may be gone: in this process they are all here.
    #[cfg_attr(
        not(feature = "redis"),
        expect(clippy::unused_async, reason = "in process it takes no time")
    )]
    pub(crate) async fn reset_in_flight(&self, ask: LimitRequest<'_>) -> Result<(), Rejection> {
        let asked = ConcurrencyRequest::new(ask, Mode::Peek)?;
        match &self.inner.backend {
            Backend::Memory(_) => drop(asked),
            #[cfg(feature = "redis")]
            Backend::Redis(guard) => guard.reset_held(&asked).await?,
        }
        Ok(())
    }

    /// What an enter would be told.
    #[cfg_attr(
        not(feature = "redis"),
        expect(clippy::unused_async, reason = "in process it takes no time")
    )]
    pub(crate) async fn peek_in_flight(&self, asked: &ConcurrencyRequest<'_>) -> Result<Decision, Rejection> {
        match &self.inner.backend {
            Backend::Memory(_) => Ok(self.peek_local(asked)),
            #[cfg(feature = "redis")]
            Backend::Redis(guard) => guard.peek_held(asked, asked.request().deadline()).await,
        }
    }
}
