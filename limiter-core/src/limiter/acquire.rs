//! Waiting for a permit: first come, first served, and only the head of a queue asks the store.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::PoisonError;
use std::time::Duration;

use smallvec::SmallVec;

use super::sorted::Sorted;
use super::{Check, Limiter, shut_down};
use crate::decision::{Allowed, Rejection};
use crate::error::{ConfigError, StoreError, StoreErrorKind};
use crate::identity::Identity;
use crate::policy::OnStoreFailure;
use crate::request::Request;
use crate::sync::{Arc, Mutex, MutexGuard};
use crate::units::Amount;

/// By how much a timer may be late, and a little for the answer.
const LATE_TIMER: Duration = Duration::from_millis(10);

/// A wait for a permit, not yet begun: await it. Made by [`Limiter::acquire`] and [`Limiter::acquire_all`].
#[derive(Clone, Debug)]
#[must_use = "nothing is asked or charged until this is awaited"]
pub struct Acquire<'a> {
    check: Check<'a>,
    up_to: Duration,
}

impl<'a> Acquire<'a> {
    /// How long a call waits at most, unless it says otherwise: a minute.
    pub const DEFAULT_UP_TO: Duration = Duration::from_secs(60);

    pub(super) fn new(check: Check<'a>) -> Self {
        Self {
            check,
            up_to: Self::DEFAULT_UP_TO,
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
    /// [`DEFAULT_UP_TO`](Self::DEFAULT_UP_TO). A wait of zero is a check, which the policy's deadline bounds.
    pub fn up_to(self, up_to: Duration) -> Self {
        Self { up_to, ..self }
    }
}

impl<'a> IntoFuture for Acquire<'a> {
    type Output = Result<Allowed, Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            if !self.check.is_plain() {
                return Sorted::new(self.check).acquire(self.up_to).await;
            }
            wait_for(self.check.limiter, self.check.request()?, self.up_to).await
        })
    }
}

/// Waits for what a request asks for, in the queue that is its own.
pub(super) async fn wait_for(
    limiter: &Limiter,
    request: Request<'_>,
    up_to: Duration,
) -> Result<Allowed, Rejection> {
    if request.is_free() {
        return limiter.decide(&request, request.deadline()).await?.require();
    }
    let mut closing = limiter.inner.closing.subscribe();
    tokio::select! {
        biased;
        _ = closing.wait_for(|closing| *closing) => Err(shut_down().into()),
        answer = wait(limiter, &request, up_to) => answer,
    }
}

async fn wait(limiter: &Limiter, request: &Request<'_>, up_to: Duration) -> Result<Allowed, Rejection> {
    let clock = &limiter.inner.clock;
    let started = clock.now();
    let left = || up_to.saturating_sub(clock.now().since(started));
    let timed_out = |denied| Rejection::TimedOut {
        decision: denied,
        limit: up_to,
    };

    let place = limiter.inner.queues.join(request.queue())?;
    let _turn = match place.turn().try_lock() {
        Ok(turn) => turn,
        Err(_) => tokio::select! {
            biased;
            turn = place.turn().lock() => turn,
            () = clock.sleep(started, up_to) => return Err(timed_out(None)),
        },
    };
    let mut last = None;
    loop {
        // The caller's time may end before the store's deadline does. That is the caller's timeout and no failure of the
        // store, and only the insurance decides then, which errs on nobody's side. A wait of zero is a check; a timer that
        // fired late leaves a moment for the question that it was set for.
        let patience = if up_to.is_zero() {
            Duration::MAX
        } else {
            clock.real(left().max(LATE_TIMER))
        };
        let answer = if let Some(answer) = limiter.decide_now(request) {
            answer
        } else if request.on_store_failure() == OnStoreFailure::Local {
            limiter.decide(request, request.deadline().min(patience)).await
        } else {
            let asked = limiter.decide(request, request.deadline());
            match tokio::time::timeout(patience, asked).await {
                Ok(answer) => answer,
                Err(_) => return Err(timed_out(last)),
            }
        };
        let denied = match answer?.require() {
            Err(Rejection::Limited(denied)) => denied,
            // Allowed, or denied because the store is out: nobody knows when that ends.
            answer => return answer,
        };
        match denied.retry_after() {
            Some(retry_after) if retry_after <= left() => clock.sleep(denied.decided_at(), retry_after).await,
            _ => return Err(timed_out(Some(denied))),
        }
        last = Some(denied);
    }
}

/// The queues of those who wait, by what they wait for. An empty queue does not exist.
#[derive(Debug)]
pub(super) struct Queues {
    waiting: Mutex<Waiting>,
    max: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    turns: HashMap<SmallVec<[Identity; 2]>, Turn>,
    /// In all queues.
    count: usize,
}

/// Tokio's mutex serves in order of arrival, and a waiter that is dropped leaves it.
type Turn = Arc<tokio::sync::Mutex<()>>;

/// A place in a queue.
struct Place<'a> {
    queues: &'a Queues,
    name: SmallVec<[Identity; 2]>,
    turn: Option<Turn>,
}

impl Queues {
    pub(super) fn new(max: usize) -> Self {
        let waiting = Mutex::default();
        Self { waiting, max }
    }

    fn join(&self, name: SmallVec<[Identity; 2]>) -> Result<Place<'_>, StoreError> {
        let mut waiting = self.lock();
        if waiting.count >= self.max {
            let detail = format!("{} calls wait for permits already", self.max);
            return Err(StoreError::new(StoreErrorKind::Overloaded, detail));
        }
        waiting.count += 1;
        let turn = Some(Arc::clone(waiting.turns.entry(name.clone()).or_default()));
        let queues = self;
        Ok(Place { queues, name, turn })
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place<'_> {
    fn turn(&self) -> &Turn {
        #[expect(clippy::expect_used, reason = "it is taken by `drop` alone")]
        self.turn.as_ref().expect("a place that was not left")
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.queues.lock();
        waiting.count -= 1;
        // Given up while the map is locked, so that the last of several who leave at once sees that it is the last.
        drop(self.turn.take());
        if waiting
            .turns
            .get(&self.name)
            .is_some_and(|turn| Arc::strong_count(turn) == 1)
        {
            waiting.turns.remove(&self.name);
        }
    }
}

#[cfg(all(test, shuttle))]
mod model;

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::identity::Prefix;

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
        let told = limits.acquire(&policy, "b").await;
        let Err(Rejection::Unavailable(error)) = told else {
            unreachable!("{told:?}")
        };
        assert_eq!(error.kind(), StoreErrorKind::Overloaded);
        drop(waiting);
        assert!(limits.acquire(&policy, "b").await.is_ok());
    }

    #[test]
    fn queues_that_everybody_left_are_gone() {
        let queues = Queues::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let prefix = Prefix::new("tb", "p");
                    let names: Vec<_> = (0..7)
                        .map(|key| prefix.identity(None, &key.to_string()))
                        .collect();
                    for name in 0..20_000 {
                        drop(queues.join(smallvec![names[name % 7]]).unwrap());
                    }
                });
            }
        });
        assert!(queues.lock().turns.is_empty());
        assert_eq!(queues.lock().count, 0);
    }
}
