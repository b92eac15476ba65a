//! Waiting for a permit: first come, first served, and only the head of a queue asks the store.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Check, Limiter, shut_down};
use crate::decision::{Allowed, Rejection};
use crate::error::{ConfigError, StoreError, StoreErrorKind};
use crate::request::Request;
use crate::units::Amount;

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
    /// [`DEFAULT_UP_TO`](Self::DEFAULT_UP_TO).
    pub fn up_to(self, up_to: Duration) -> Self {
        Self { up_to, ..self }
    }
}

impl<'a> IntoFuture for Acquire<'a> {
    type Output = Result<Allowed, Rejection>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let limiter = self.check.limiter;
            let request = self.check.request()?;
            let mut closing = limiter.inner.closing.subscribe();
            tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => Err(shut_down().into()),
                answer = wait(limiter, &request, self.up_to) => answer,
            }
        })
    }
}

async fn wait(limiter: &Limiter, request: &Request<'_>, up_to: Duration) -> Result<Allowed, Rejection> {
    let clock = &limiter.inner.clock;
    let started = clock.now();
    let timed_out = |decision| Rejection::TimedOut {
        decision,
        limit: up_to,
    };

    let place = limiter.inner.queues.join(request.queue());
    let _turn = tokio::select! {
        biased;
        turn = place.turn.lock() => turn,
        () = clock.sleep(started, up_to) => return Err(timed_out(None)),
    };
    loop {
        let left = up_to.saturating_sub(clock.now().since(started));
        // The first question is asked even when no time is left: a wait of zero is a check.
        let deadline = if left.is_zero() {
            request.deadline()
        } else {
            request.deadline().min(left)
        };
        let decision = limiter.decide(request, deadline).await?;
        let decision = match decision.require() {
            Err(Rejection::Limited(denied)) => denied,
            allowed => return allowed,
        };
        let Some(retry_after) = decision.retry_after() else {
            // Denied because the store is out: nobody knows when that ends.
            let unknown = || StoreError::new(StoreErrorKind::Connection, "the store gave no decision");
            return Err(decision.store_error().cloned().unwrap_or_else(unknown).into());
        };
        let left = up_to.saturating_sub(clock.now().since(started));
        if retry_after > left {
            return Err(timed_out(Some(decision)));
        }
        clock.sleep(decision.decided_at(), retry_after).await;
    }
}

/// The queues of those who wait, by what they wait for. An empty queue does not exist.
#[derive(Debug, Default)]
pub(super) struct Queues(Mutex<HashMap<String, Turn>>);

/// Tokio's mutex serves in order of arrival, and a waiter that is dropped leaves it.
type Turn = Arc<tokio::sync::Mutex<()>>;

/// A place in a queue.
struct Place<'a> {
    queues: &'a Queues,
    name: String,
    turn: Turn,
}

impl Queues {
    fn join(&self, name: String) -> Place<'_> {
        let turn = Arc::clone(self.lock().entry(name.clone()).or_default());
        Place {
            queues: self,
            name,
            turn,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Turn>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut queues = self.queues.lock();
        // The map's and this one: nobody else can get another while the map is locked.
        if Arc::strong_count(&self.turn) == 2 {
            queues.remove(&self.name);
        }
    }
}
