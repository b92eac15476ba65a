//! Waiting for a permit: first come, first served, and only who is first in a line has the store
//! asked.

use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::algorithm::Mode;
use crate::check::Check;
use crate::decision::{Allowed, Decision, Rejection};
use crate::enforcement::EnforcementPlan;
use crate::error::ConfigError;
use crate::limiter::{Limiter, shut_down};
use crate::observe;
use crate::policy::OnStoreFailure;
use crate::request::DecisionRequest;
use crate::request::owned::OwnedRequest;
use crate::settlement::Reservation;
use crate::support::real_time;
use crate::units::{Amount, Timestamp};
use crate::waiting::LATE_TIMER;
use crate::waiting::WaitBudget;
use crate::waiting::backlog::{BacklogEstimate, BacklogScope};
use crate::waiting::pacing::PacingBudget;
use crate::waiting::queue::{Ticket, TicketState};
pub(crate) use crate::waiting::wait_limit::{WaitLimit, WaitSlot};

/// A wait for a permit, not yet begun: await it. Made by [`Limiter::acquire`] and
/// [`Limiter::acquire_all`].
#[derive(Clone, Debug)]
#[must_use = "nothing is asked or charged until this is awaited"]
pub struct Acquire<'a> {
    check: Check<'a>,
    timeout: Duration,
    /// What bounds that and knows nothing of the store.
    bound: Option<Duration>,
    /// In which it waits, where that is bounded.
    room: Option<&'a WaitLimit>,
    rejects_early: bool,
}

impl<'a> Acquire<'a> {
    /// How long a call waits at most, unless it says otherwise: a minute.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

    pub(crate) fn new(check: Check<'a>) -> Self {
        Self {
            check,
            timeout: Self::DEFAULT_TIMEOUT,
            bound: None,
            room: None,
            rejects_early: false,
        }
    }

    /// Rejects the call at once if its permit is known to be due after its time, even though
    /// permits might be refunded before.
    pub(crate) fn rejecting_early(self, rejects_early: bool) -> Self {
        Self {
            rejects_early,
            ..self
        }
    }

    /// Waits only if there is a seat; else it is denied at once.
    pub(crate) fn within(self, room: &'a WaitLimit) -> Self {
        let room = Some(room);
        Self { room, ..self }
    }

    /// Waits no longer than this for permits, and for its turn, though for an answer of the store
    /// as long as its policies say.
    pub(crate) fn bounded_by(self, bound: Option<Duration>) -> Self {
        Self { bound, ..self }
    }

    fn stay(&self) -> WaitBudget<'a> {
        let stay = WaitBudget::new(self.timeout, self.bound, self.check.deadline(), self.room);
        WaitBudget {
            rejects_early: self.rejects_early,
            ..stay
        }
    }

    /// What the call costs, as [`Check::cost`].
    pub fn cost<C>(self, cost: C) -> Self
    where
        C: TryInto<Amount, Error: Into<ConfigError>>,
    {
        Self {
            check: self.check.cost(cost),
            ..self
        }
    }

    /// How long to wait in total, the queue and every question to the store included. Default:
    /// [`DEFAULT_TIMEOUT`](Self::DEFAULT_TIMEOUT).
    ///
    /// A timeout of zero is a check, which the policy's deadline bounds: a denial is
    /// [`Rejection::Limited`], since the call has not waited. A call that has waited is
    /// [`Rejection::TimedOut`]. The same holds for [`Reserve::timeout`](crate::Reserve::timeout)
    /// and [`AcquireConcurrency::timeout`](crate::AcquireConcurrency::timeout).
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }
}

impl<'a> IntoFuture for Acquire<'a> {
    type Output = Result<Allowed, Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        observe::acquiring(self.check.first_policy(), async move {
            let stay = self.stay();
            if !self.check.is_plain() {
                return EnforcementPlan::new(self.check).acquire(stay).await;
            }
            let limiter = self.check.limiter;
            let request = self.check.request()?;
            limiter.wait(&request, stay).await
        })
    }
}

impl Limiter {
    /// Waits until a request is granted.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what is granted to one who has left goes to the next, or is given back.
    pub(crate) async fn wait(
        &self,
        request: &DecisionRequest<'_>,
        stay: WaitBudget<'_>,
    ) -> Result<Allowed, Rejection> {
        let answer = self.wait_uncounted(request, stay).await;
        observe::waited(request.policies(), request.mode, &answer);
        answer
    }

    /// The same where it is a part of what is counted.
    pub(crate) async fn wait_uncounted(
        &self,
        request: &DecisionRequest<'_>,
        stay: WaitBudget<'_>,
    ) -> Result<Allowed, Rejection> {
        if request.is_free() {
            let decision = self.decide(request, request.deadline()).await;
            decision.and_then(Decision::require)
        } else {
            let _waiting = observe::WaitingGauge::begin();
            let mut closing = self.inner.closing.subscribe();
            let patience = PacingBudget::from(&self.inner.clock, stay.timeout);
            let granted = async {
                let mut seat = WaitSlot::new(stay.room, || request.queue());
                let grant = self.wait_in_line(request, stay, patience.ends, &mut seat).await?;
                if grant.delay().is_zero() {
                    return Ok(grant);
                }
                // The place in the line is left by now, and the seat is kept.
                let grant = Reservation::of_request(self, request, grant);
                self.wait_for_turn(grant, Some(patience), seat).await
            };
            tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => Err(shut_down().into()),
                answer = granted => answer,
            }
        }
    }

    async fn wait_in_line(
        &self,
        request: &DecisionRequest<'_>,
        stay: WaitBudget<'_>,
        ends: Timestamp,
        seat: &mut WaitSlot<'_>,
    ) -> Result<Allowed, Rejection> {
        let (clock, queues) = (&self.inner.clock, &self.inner.queues);
        let timeout = stay.timeout;
        let asks_until = clock.now().after(stay.asks_up_to);
        let timed_out = |denied| no_permit_within(timeout, denied);
        // Where nobody waits, what takes no waiting takes no place either.
        let name = request.queue();
        if !queues.has_waiters(&name) {
            if let Some(answer) = self.decide_now(request) {
                match answer?.require() {
                    Err(Rejection::Limited(_)) => {}
                    answer => return answer,
                }
            }
        }
        let mut place = WaitingCall {
            place: queues.join(name, OwnedRequest::from_request(request))?,
            limiter: self,
            runtime: Handle::try_current().ok(),
        };
        let (mut last, mut seen) = (None, None);
        // There is a permit for each of those before it, and for this call.
        let mut needs_no_seat = false;
        let mut is_estimated = !stay.rejects_early;
        // A permit that is due after the call's time.
        let is_due_late = |denied: &Decision| {
            (denied.retry_after()).is_some_and(|after| clock.due(denied.decided_at(), after) > ends)
        };
        loop {
            let now = clock.now();
            match place.place.poll_state(queues, now) {
                TicketState::Over(answer) => return answer,
                TicketState::Behind if timeout.is_zero() => {
                    return Box::pin(self.check_behind(request, &place.place)).await;
                }
                TicketState::Behind => {
                    if !needs_no_seat && !seat.try_take() {
                        let left = self.patience(asks_until, timeout);
                        let told = self.after_others(request, &place.place, BacklogScope::Earlier, left);
                        turned_away(told.await, timed_out(None))?;
                        needs_no_seat = true;
                        continue;
                    }
                    if !is_estimated {
                        is_estimated = true;
                        let left = self.patience(asks_until, timeout);
                        let told = self.after_others(request, &place.place, BacklogScope::Earlier, left);
                        if let Some(Ok(Some(denied))) = told.await {
                            if is_due_late(&denied) {
                                return Err(Rejection::Limited(denied));
                            }
                        }
                        continue;
                    }
                    let look_again = now.after(place.place.patience());
                    tokio::select! {
                        biased;
                        () = place.place.called() => {}
                        () = seat.evicted() => {}
                        () = clock.sleep_until(ends.min(look_again)) => {
                            if clock.now() >= ends {
                                let denied = self.denial_after_wait(request, &place.place).await;
                                // It may have been served in that moment.
                                return match place.place.poll_state(queues, clock.now()) {
                                    TicketState::Over(answer) => answer,
                                    _ => Err(timed_out(denied)),
                                };
                            }
                            self.go_on_for(&place.place, request, &mut seen).await;
                        }
                    }
                }
                TicketState::Denied(decision, ask_again) => {
                    // Permits that were due too late may come back all the same, and a block does
                    // not end before its time.
                    if now >= ends || decision.is_blocked() {
                        return Err(timed_out(Some(decision)));
                    }
                    if stay.rejects_early && is_due_late(&decision) {
                        return Err(Rejection::Limited(decision));
                    }
                    if !needs_no_seat && !seat.try_take() {
                        if place.place.is_only_waiter(queues) {
                            return Err(Rejection::Limited(decision));
                        }
                        // Others have taken the seats while the store was asked.
                        let left = self.patience(asks_until, timeout);
                        let told = self.after_others(request, &place.place, BacklogScope::All, left);
                        turned_away(told.await, timed_out(None))?;
                        needs_no_seat = true;
                        continue;
                    }
                    last = Some(decision);
                    tokio::select! {
                        biased;
                        () = place.place.called() => {}
                        () = seat.evicted() => {}
                        () = clock.sleep_until(ask_again.min(ends)) => {}
                    }
                }
                TicketState::Own(returns) => {
                    // By whichever policy who came last wants it.
                    let wanted = place.place.request();
                    let request = wanted.request(Mode::Charge);
                    if let Some(answer) = self.decide_now(&request) {
                        match answer?.require() {
                            Err(Rejection::Limited(decision)) => {
                                let Some(ask_again) = self.asks_again_at(&decision) else {
                                    return Err(timed_out(Some(decision)));
                                };
                                place.place.denied(queues, decision, ask_again, returns);
                                continue;
                            }
                            // Allowed, or denied because the store is out: nobody knows when that
                            // ends.
                            answer => return answer,
                        }
                    }
                    self.poll_on_behalf_of(&place.place, &request);
                    continue;
                }
                TicketState::Asked(until) => {
                    // The caller's time may end before the question's does, which is asked for
                    // others, too: then it goes on without him, and what it grants is theirs.
                    let patience = self.patience(asks_until, timeout);
                    let now = Instant::now();
                    let left = until.saturating_duration_since(now);
                    let called = real_time::timeout(patience.min(left), place.place.called());
                    if called.await.is_ok() || left < patience {
                        continue;
                    }
                    if let TicketState::Over(answer) = place.place.poll_state(queues, clock.now()) {
                        return answer;
                    }
                    // That is the caller's timeout and no failure of the store, and only the
                    // insurance decides then, which errs on nobody's side.
                    let alone = match request.on_store_failure() {
                        OnStoreFailure::Local => self.decide_alone(request, patience, now),
                        _ => None,
                    };
                    return match alone.map(|answer| answer.and_then(Decision::require)) {
                        None => Err(timed_out(last)),
                        Some(Err(Rejection::Limited(denied))) => Err(timed_out(Some(denied))),
                        Some(answer) => answer,
                    };
                }
            }
        }
    }

    /// Decides a call that does not wait, though others wait for the same: it is denied unless
    /// there are permits for them and for it.
    async fn check_behind(
        &self,
        request: &DecisionRequest<'_>,
        place: &Ticket,
    ) -> Result<Allowed, Rejection> {
        let after_others = self.after_others(request, place, BacklogScope::Earlier, Duration::MAX);
        turned_away(after_others.await, no_permit_within(Duration::ZERO, None))?;
        let decision = match self.decide_now(request) {
            Some(answer) => answer?,
            None => self.decide(request, request.deadline()).await?,
        };
        decision.require()
    }

    /// What a call is told that has waited behind others to the end of its time, if a moment is
    /// enough to find out: each of those who give up at once is told of those before it, so that
    /// they do not all come back at once.
    async fn denial_after_wait(
        &self,
        request: &DecisionRequest<'_>,
        place: &Ticket,
    ) -> Option<Box<Decision>> {
        let moment = self.inner.clock.real(LATE_TIMER);
        let told = self
            .after_others(request, place, BacklogScope::Earlier, moment)
            .await;
        told?.ok().flatten()
    }

    /// How long a question may take, in real time. A wait of zero is a check; a timer that fired
    /// late leaves a moment for the question that it was set for.
    pub(crate) fn patience(&self, ends: Timestamp, timeout: Duration) -> Duration {
        let clock = &self.inner.clock;
        if timeout.is_zero() {
            Duration::MAX
        } else {
            clock.real(ends.since(clock.now()).max(LATE_TIMER))
        }
    }
}

/// The rejection of a call that got no permit within its timeout. A call with a timeout of zero has
/// not waited, so it is denied.
pub(crate) fn no_permit_within(timeout: Duration, denied: Option<Box<Decision>>) -> Rejection {
    match denied {
        Some(denied) if timeout.is_zero() => Rejection::Limited(denied),
        decision => Rejection::TimedOut {
            decision,
            limit: timeout,
        },
    }
}

/// What a call is told that finds no seat. Nothing where there is a permit for it, after those for
/// the others.
fn turned_away(told: BacklogEstimate, in_vain: Rejection) -> Result<(), Rejection> {
    match told {
        Some(Ok(None)) => Ok(()),
        Some(Ok(Some(denied))) => Err(Rejection::Limited(denied)),
        Some(Err(rejection)) => Err(rejection),
        None => Err(in_vain),
    }
}

/// One who waits, and leaves however that ends.
struct WaitingCall<'a> {
    place: Ticket,
    limiter: &'a Limiter,
    /// It may be dropped elsewhere than where it waits.
    runtime: Option<Handle>,
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        let untaken = self.place.remove(&self.limiter.inner.queues);
        if let (Some(untaken), Some(runtime)) = (untaken, &self.runtime) {
            let wanted = OwnedRequest::clone(&self.place.request());
            self.limiter.return_later(wanted, untaken, runtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::StoreErrorKind;
    use crate::waiting::acquire::*;

    #[tokio::test]
    async fn one_call_more_than_may_wait_is_told_so() {
        let policy = crate::Policy::token_bucket("p")
            .capacity(1)
            .rate(1)
            .build()
            .unwrap();
        let clock = crate::ManualClock::new();
        let limits = Limiter::in_process().clock(&clock).max_waiting(2).build();
        let mut first = limits.acquire(&policy, "a").cost(1).into_future();
        assert!(first.as_mut().await.is_ok());
        let mut waiting = [(); 2].map(|()| limits.acquire(&policy, "a").into_future());
        for wait in &mut waiting {
            assert!(tokio::time::timeout(Duration::ZERO, wait).await.is_err());
        }
        let told = limits.acquire(&policy, "b").cost(1).await;
        assert!(told.is_ok(), "it need not wait");
        let told = limits.acquire(&policy, "b").await;
        let Err(Rejection::Unavailable(error)) = told else {
            unreachable!("{told:?}")
        };
        assert_eq!(error.kind(), StoreErrorKind::Overloaded);
        drop(waiting);
        assert!(limits.acquire(&policy, "c").await.is_ok());
    }

    /// What is given back is the limit's; that a penalty may block its key beside is nothing to
    /// whoever gives it back.
    #[tokio::test]
    async fn who_waits_under_a_penalty_hears_what_comes_back() {
        let policy = crate::Policy::token_bucket("p").capacity(2).rate("1/h");
        let policy = policy.penalty("1000 in 1m: 1h").build().unwrap();
        let clock = crate::ManualClock::new();
        let limits = Limiter::in_process().clock(&clock).build();
        let reservation = limits.reserve(&policy, "a").cost(2).await.unwrap();
        let patience = Duration::from_secs(86_400);
        let mut waiting = limits.acquire(&policy, "a").timeout(patience).into_future();
        assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err());
        reservation.settle(1).await.unwrap();
        let told = tokio::time::timeout(Duration::from_secs(30), waiting).await;
        assert!(told.is_ok_and(|told| told.is_ok()));
        for give_back in [false, true] {
            let mut waiting = limits.acquire(&policy, "a").timeout(patience).into_future();
            assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err());
            if give_back {
                limits.refund(&policy, "a").await.unwrap();
            } else {
                limits.reset(&policy, "a").await.unwrap();
                assert!(limits.check(&policy, "a").await.unwrap().is_allowed());
            }
            let told = tokio::time::timeout(Duration::from_secs(30), waiting).await;
            assert!(told.is_ok_and(|told| told.is_ok()));
        }
    }
}
