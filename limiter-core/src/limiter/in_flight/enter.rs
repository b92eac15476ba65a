//! An enter, from its words to a permit that is held.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::permit::{Permit, Stand};
use crate::algorithm::{Mode, Outcome};
use crate::clock::Clock;
use crate::decision::{Decision, Origin, Rejection};
use crate::error::ConfigError;
use crate::limiter::{Backend, Limiter, shut_down};
use crate::request::{Ask, InFlight};
#[cfg(feature = "redis")]
use crate::store::holders::Held;
#[cfg(feature = "redis")]
use crate::store::redis::varied;
#[cfg(feature = "redis")]
use crate::tier::Guard;
#[cfg(feature = "redis")]
use crate::tier::holding::Lease;
use crate::tier::outage::without_store;
use crate::units::{Amount, Timestamp};

/// Who is next for permits in Redis asks again after a pause that doubles from the first to the last of these, longer by up to
/// a quarter; sooner when the first lease ends, and when a permit is given back here.
#[cfg(feature = "redis")]
const PAUSES: std::ops::RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_millis(160);

/// Permits of what is in flight, not asked for yet: await it. Made by [`Limiter::enter`].
#[derive(Clone, Debug)]
#[must_use = "nothing is asked for until this is awaited"]
pub struct Enter<'a> {
    pub(super) limiter: &'a Limiter,
    pub(super) ask: Ask<'a>,
    up_to: Duration,
}

impl<'a> Enter<'a> {
    pub(super) fn new(limiter: &'a Limiter, ask: Ask<'a>) -> Self {
        Self {
            limiter,
            ask,
            up_to: Duration::ZERO,
        }
    }

    /// How many permits are held: a whole number up to 1,024, and not above the policy's maximum. Default: 1. A cost of 0 holds
    /// nothing, and is always allowed.
    pub fn cost(mut self, cost: impl TryInto<Amount, Error: Into<ConfigError>>) -> Self {
        self.ask.set_cost(cost.try_into().map_err(Into::into));
        self
    }

    /// How long to wait in total, the queue and every question to the store included. Default: no time at all.
    ///
    /// Those who wait in this process are served first come, first served. A permit that is given back here goes straight to
    /// who is next, if it is for as many permits, for up to a second in a row; then it goes back to Redis, so that other
    /// processes have their turn. Who is next in a process asks Redis again after pauses that double from 10 to 160 ms, longer
    /// by up to a quarter, or when the first lease ends. Between processes there is no order.
    ///
    /// A wait that ends before the policy's deadline for the store does is over, whatever the policy says of a store that is
    /// out: that no answer came in so short a time says nothing about the store.
    pub fn up_to(self, up_to: Duration) -> Self {
        Self { up_to, ..self }
    }

    /// The answer, where it takes no more than a look at the memory of this process.
    fn at_once(&self) -> Option<Result<Permit, Rejection>> {
        // Who waits has to wait for his turn first.
        match &self.limiter.inner.backend {
            Backend::Memory(_) if self.up_to.is_zero() && self.is_plain() => Some(self.ask_here()),
            _ => None,
        }
    }

    fn ask_here(&self) -> Result<Permit, Rejection> {
        self.limiter.open()?;
        let asked = InFlight::new(self.ask.clone(), Mode::Charge)?;
        self.limiter.enter_here(&asked)
    }

    fn boxed(self) -> Asked<'a> {
        if self.is_plain() {
            Box::pin(self.run())
        } else {
            Box::pin(self.run_excused())
        }
    }

    pub(super) async fn run(self) -> Result<Permit, Rejection> {
        let limiter = self.limiter;
        limiter.open()?;
        let asked = InFlight::new(self.ask, Mode::Charge)?;
        if asked.terms().cost == 0 {
            let decision = limiter.peek_in_flight(&asked).await?;
            return Ok(Permit::new(decision, Stand::Nothing));
        }
        if self.up_to.is_zero() {
            return limiter.enter_once(&asked, asked.request().deadline()).await;
        }
        let mut closing = limiter.inner.closing.subscribe();
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => Err(shut_down().into()),
            answer = limiter.enter_in_turn(&asked, self.up_to) => answer,
        }
    }
}

impl<'a> IntoFuture for Enter<'a> {
    type Output = Result<Permit, Rejection>;
    type IntoFuture = Entering<'a>;

    fn into_future(self) -> Entering<'a> {
        Entering(Progress::Unasked(self))
    }
}

/// The future of an [`Enter`]. In process, what need not wait is ready at the first poll, without an allocation.
#[must_use = "futures do nothing unless polled"]
pub struct Entering<'a>(Progress<'a>);

enum Progress<'a> {
    Unasked(Enter<'a>),
    Asked(Asked<'a>),
    Answered,
}

type Asked<'a> = Pin<Box<dyn Future<Output = Result<Permit, Rejection>> + Send + 'a>>;

impl Future for Entering<'_> {
    type Output = Result<Permit, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        #[expect(clippy::panic, reason = "as every future, this one ends once")]
        let mut asked = match mem::replace(&mut self.0, Progress::Answered) {
            Progress::Unasked(enter) => match enter.at_once() {
                Some(answer) => return Poll::Ready(answer),
                None => enter.boxed(),
            },
            Progress::Asked(asked) => asked,
            Progress::Answered => panic!("an enter polled again after it was answered"),
        };
        let answer = asked.as_mut().poll(context);
        if answer.is_pending() {
            self.0 = Progress::Asked(asked);
        }
        answer
    }
}

impl fmt::Debug for Entering<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entering")
    }
}

impl Limiter {
    /// Asks the store in this process, which needs no time.
    fn enter_here(&self, asked: &InFlight<'_>) -> Result<Permit, Rejection> {
        let (identity, terms) = (asked.limit().identity, asked.terms());
        let counted = if terms.cost == 0 {
            let held = self.inner.holders.number(identity);
            Ok(Ok(held))
        } else {
            self.inner.holders.count(identity, terms.cost, terms.max)
        };
        let (stand, held) = match counted {
            Ok(Ok(held)) if terms.cost == 0 => (Some(Stand::Nothing), held),
            Ok(Ok(held)) => (
                Some(Stand::Here(self.inner.holders.held(identity, terms, ()))),
                held,
            ),
            Ok(Err(held)) => (None, held),
            Err(error) => {
                let decision = without_store(asked.request(), error, self.inner.clock.now())?;
                return permitted(decision, Stand::Nothing);
            }
        };
        let decision = self.decision_here(asked, stand.is_some(), held);
        permitted(decision, stand.unwrap_or(Stand::Nothing))
    }

    /// The decision in this process, with so many permits held after it.
    fn decision_here(&self, asked: &InFlight<'_>, fits: bool, held: u64) -> Decision {
        let terms = asked.terms();
        let lease = u64::from(terms.lease_ms) * 1_000;
        let reset_after = if held == 0 { 0 } else { lease };
        let outcome = Outcome {
            fits,
            remaining: terms.max.saturating_sub(held),
            retry_after: if fits { 0 } else { lease },
            reset_after,
            expires_after: reset_after,
            ..Outcome::default()
        };
        let now = self.inner.clock.now();
        asked.request().in_flight_decision(outcome, now, Origin::Memory)
    }

    /// Asks the store once, at most until the deadline.
    #[cfg_attr(
        not(feature = "redis"),
        expect(
            unused_variables,
            clippy::unused_async,
            reason = "in process it takes no time"
        )
    )]
    async fn enter_once(&self, asked: &InFlight<'_>, deadline: Duration) -> Result<Permit, Rejection> {
        match &self.inner.backend {
            Backend::Memory(_) => self.enter_here(asked),
            #[cfg(feature = "redis")]
            Backend::Redis(guard) => {
                // On the heap, so that the futures of those who wait stay small.
                let (decision, held) = Box::pin(guard.enter(asked, deadline)).await?;
                permitted(decision, held.map_or(Stand::Nothing, Stand::Leased))
            }
        }
    }

    /// The same, in this process, for a question that was not checked yet.
    pub(in crate::limiter) fn peek_here(&self, ask: Ask<'_>) -> Result<Decision, Rejection> {
        Ok(self.look_here(&InFlight::new(ask, Mode::Peek)?))
    }

    fn look_here(&self, asked: &InFlight<'_>) -> Decision {
        let (held, terms) = (self.inner.holders.number(asked.limit().identity), asked.terms());
        let fits = terms.cost == 0 || held.saturating_add(terms.cost) <= terms.max;
        self.decision_here(asked, fits, held)
    }

    /// Forgets who holds permits, of those that may be gone: in this process they are all here.
    #[cfg_attr(
        not(feature = "redis"),
        expect(clippy::unused_async, reason = "in process it takes no time")
    )]
    pub(in crate::limiter) async fn reset_in_flight(&self, ask: Ask<'_>) -> Result<(), Rejection> {
        let asked = InFlight::new(ask, Mode::Peek)?;
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
    pub(in crate::limiter) async fn peek_in_flight(
        &self,
        asked: &InFlight<'_>,
    ) -> Result<Decision, Rejection> {
        match &self.inner.backend {
            Backend::Memory(_) => Ok(self.look_here(asked)),
            #[cfg(feature = "redis")]
            Backend::Redis(guard) => guard.peek_held(asked, asked.request().deadline()).await,
        }
    }

    /// Waits for its turn, and then for permits.
    async fn enter_in_turn(&self, asked: &InFlight<'_>, up_to: Duration) -> Result<Permit, Rejection> {
        let clock = &self.inner.clock;
        let wait = Wait {
            started: clock.now(),
            up_to,
            clock,
        };
        match &self.inner.backend {
            Backend::Memory(_) => self.wait_here(asked, &wait).await,
            #[cfg(feature = "redis")]
            Backend::Redis(guard) => wait_there(guard, asked, &wait).await,
        }
    }

    /// Waits in process.
    async fn wait_here(&self, asked: &InFlight<'_>, wait: &Wait<'_>) -> Result<Permit, Rejection> {
        let (holders, identity) = (&self.inner.holders, asked.limit().identity);
        let waiter = holders.join(identity, asked.terms())?;
        let mut last = None;
        loop {
            if let Some(held) = waiter.passed() {
                let decision = self.decision_here(asked, true, holders.number(identity));
                return permitted(decision, Stand::Here(held));
            }
            if waiter.asks() {
                match self.enter_here(asked) {
                    Err(Rejection::Limited(denied)) => last = Some(denied),
                    answer => return answer,
                }
            }
            tokio::select! {
                biased;
                () = waiter.told() => {}
                () = wait.is_over() => return Err(wait.timed_out(last)),
            }
        }
    }
}

/// For how long somebody waits, since when.
struct Wait<'a> {
    started: Timestamp,
    up_to: Duration,
    clock: &'a Clock,
}

impl Wait<'_> {
    async fn is_over(&self) {
        self.clock.sleep(self.clock.now(), self.left()).await;
    }

    fn left(&self) -> Duration {
        self.up_to.saturating_sub(self.clock.now().since(self.started))
    }

    fn timed_out(&self, denied: Option<Box<Decision>>) -> Rejection {
        Rejection::TimedOut {
            decision: denied,
            limit: self.up_to,
        }
    }
}

fn permitted(decision: Decision, stand: Stand) -> Result<Permit, Rejection> {
    let allowed = decision.require()?;
    Ok(Permit::new(allowed.into_decision(), stand))
}

/// Waits for permits in Redis. Only who is first asks.
#[cfg(feature = "redis")]
async fn wait_there(guard: &Guard, asked: &InFlight<'_>, wait: &Wait<'_>) -> Result<Permit, Rejection> {
    let waiter = guard.held().join(asked.limit().identity, asked.terms())?;
    let (mut pause, mut last) = (*PAUSES.start(), None);
    let mut asks = waiter.asks();
    loop {
        if asks {
            last = match ask_in_time(guard, asked, wait, last).await {
                Err(Rejection::Limited(denied)) => Some(denied),
                answer => return answer,
            };
        }
        let left = wait.left();
        if left.is_zero() {
            return Err(wait.timed_out(last));
        }
        let until_asked = if waiter.is_first() {
            let first_lease_ends = last.as_ref().and_then(|denied| denied.retry_after());
            varied(pause).min(first_lease_ends.unwrap_or(left)).min(left)
        } else {
            left
        };
        tokio::select! {
            biased;
            () = waiter.told() => asks = waiter.asks(),
            () = wait.clock.sleep(wait.clock.now(), until_asked) => {
                asks = waiter.is_first();
                pause = (pause * 2).min(*PAUSES.end());
            }
        }
        if let Some(held) = waiter.passed() {
            return permitted(
                handed_on(asked, &held, last.as_deref(), wait.clock.now()),
                Stand::Leased(held),
            );
        }
    }
}

/// The decision about permits that another holder of this process has had before.
#[cfg(feature = "redis")]
fn handed_on(asked: &InFlight<'_>, held: &Held<Lease>, last: Option<&Decision>, now: Timestamp) -> Decision {
    let lease = u64::from(held.terms().lease_ms) * 1_000;
    let outcome = Outcome {
        fits: true,
        remaining: last.map_or(0, Decision::remaining),
        retry_after: 0,
        reset_after: lease,
        expires_after: lease,
        ..Outcome::default()
    };
    let origin = match held.carried() {
        Some(lease) if lease.is_insured() => Origin::Insurance,
        _ => Origin::Lease,
    };
    asked.request().in_flight_decision(outcome, now, origin)
}

/// Asks once. The caller's time may end before the store's deadline does, which is no failure of the store: this replica's
/// share decides only where the store has none, since the store may have said a moment ago that there is no room.
#[cfg(feature = "redis")]
async fn ask_in_time(
    guard: &Guard,
    asked: &InFlight<'_>,
    wait: &Wait<'_>,
    last: Option<Box<Decision>>,
) -> Result<Permit, Rejection> {
    /// By how much a timer may be late, and a little for the answer.
    const LATE_TIMER: Duration = Duration::from_millis(10);
    let request = asked.request();
    let patience = wait.clock.real(wait.left().max(LATE_TIMER));
    // What is admitted for a question that was given up goes back in the background.
    let answer = guard.enter(asked, request.deadline());
    let Ok(answer) = tokio::time::timeout(patience, answer).await else {
        return Err(wait.timed_out(last));
    };
    let (decision, held) = answer?;
    permitted(decision, held.map_or(Stand::Nothing, Stand::Leased))
}
