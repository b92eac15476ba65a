//! The model store of a history: the pure steps on one key, with immediate, late and lost replies.
//!
//! Tests: `token_lease/history_tests.rs` runs the model store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use fastrand::Rng;
use tokio::sync::{oneshot, watch};

use crate::algorithm;
use crate::algorithm::{LeaseRequest, Mode, StepState};
use crate::error::{StoreError, StoreErrorKind};
use crate::policy::Algorithm;
use crate::redis::token_lease::leased_limit::{LeaseReply, LeasedLimit};
use crate::redis::token_lease::lender::TokenLender;
use crate::request::{ValidatedLimit, Verdict};
use crate::support::clock::ManualClock;

/// The model store and all grants.
#[derive(Debug)]
pub(crate) struct ModelStore {
    pub(crate) state: StepState,
    pub(crate) clock: ManualClock,
    pub(crate) rng: Rng,
    /// Costs with the times at which they were granted, and refunds as negative costs; in
    /// thousandths and microseconds.
    pub(crate) grants: Vec<(u64, i128)>,
    /// Of this number of requests, eight are disturbed.
    luck: u8,
    /// Senders that release delayed requests and replies.
    late: Vec<oneshot::Sender<()>>,
    /// Notifies all pending requests of the end of their deadline.
    timed_out: watch::Sender<()>,
}

impl ModelStore {
    pub(crate) fn new(mut rng: Rng) -> Self {
        Self {
            luck: rng.u8(12..100),
            state: StepState::Absent,
            clock: ManualClock::new(),
            rng,
            grants: Vec::new(),
            late: Vec::new(),
            timed_out: watch::Sender::new(()),
        }
    }

    /// Ends the deadline of all pending requests.
    pub(crate) fn time_out(&mut self) {
        self.late.clear();
        self.timed_out.send_replace(());
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }

    pub(crate) fn granted(&mut self, cost: u64) {
        self.grants.push((self.now(), cost.into()));
    }

    pub(crate) fn gave_back(&mut self, amount: u64) {
        self.grants.push((self.now(), -i128::from(amount)));
    }

    /// Decides a call in the store.
    pub(crate) fn decide(&mut self, algorithm: &Algorithm, cost: u64) {
        let now = self.now();
        if algorithm::step(algorithm, &mut self.state, cost, now, Mode::Charge).fits {
            self.granted(cost);
        }
    }

    pub(crate) fn remaining(&self, algorithm: &Algorithm) -> u64 {
        algorithm::step(algorithm, &mut self.state.clone(), 0, self.now(), Mode::Peek).remaining
    }

    pub(crate) fn leased(&self, algorithm: &Algorithm) -> u64 {
        algorithm::leased_at(algorithm, &self.state, self.now())
    }

    /// Refunds up to this amount of the store's usage. Returns the refunded amount under this
    /// policy.
    pub(crate) fn refund(&mut self, algorithm: &Algorithm, amount: u64) -> u64 {
        let (before, now) = (self.remaining(algorithm), self.now());
        let after = algorithm::refund(algorithm, &mut self.state, amount, now).remaining;
        after - before
    }

    /// Releases one delayed request or reply, if there is any.
    pub(crate) fn release(&mut self) {
        if !self.late.is_empty() {
            let chosen = self.rng.usize(0..self.late.len());
            // The receiver may have been dropped.
            let _ = self.late.swap_remove(chosen).send(());
        }
    }

    fn lend(&mut self, leased_limit: &LeasedLimit, lease_request: &LeaseRequest) -> LeaseReply {
        let now = self.now();
        let (outcome, loan) = algorithm::grant_lease(
            leased_limit.policy.algorithm(),
            &mut self.state,
            lease_request,
            now,
        );
        if outcome.fits && lease_request.cost > 0 {
            self.granted(lease_request.cost);
        }
        let outcomes = [outcome].into_iter().collect();
        let decided_at = self.clock.now();
        LeaseReply {
            verdict: Verdict::new(decided_at, outcomes),
            loan,
        }
    }
}

/// The delivery of a request and its reply.
#[derive(Clone, Copy, Debug)]
enum Delivery {
    Answered,
    /// Decided in time, with a late reply.
    AnsweredLate,
    /// Sent in time, decided late.
    DecidedLate,
    /// The request is lost.
    Lost,
    /// Decided, and the reply is lost.
    AnswerLost,
    /// The connection fails before the decision, indistinguishable from `BrokenLater`.
    Broken,
    /// The connection fails after the decision.
    BrokenLater,
    /// Known not to have been sent.
    Unsent,
}

impl Delivery {
    fn any(store: &mut ModelStore) -> Self {
        match store.rng.u8(0..store.luck) {
            0 | 1 => Self::AnsweredLate,
            2 => Self::DecidedLate,
            3 => Self::Lost,
            4 => Self::AnswerLost,
            5 => Self::Broken,
            6 => Self::BrokenLater,
            7 => Self::Unsent,
            _ => Self::Answered,
        }
    }
}

/// The connection of one process to the model store.
#[derive(Clone, Debug)]
pub(crate) struct ModelLender {
    pub(crate) store: Arc<Mutex<ModelStore>>,
    /// A killed process sends no requests and returns no tokens.
    pub(crate) is_killed: Arc<AtomicBool>,
}

impl ModelLender {
    pub(crate) fn store(&self) -> MutexGuard<'_, ModelStore> {
        self.store.lock().unwrap()
    }

    async fn wait(&self) {
        let (release, later) = oneshot::channel();
        self.store().late.push(release);
        if later.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl TokenLender for ModelLender {
    fn leased_limit(&self, limit: &ValidatedLimit<'_>) -> LeasedLimit {
        LeasedLimit {
            identity: limit.identity,
            policy: limit.policy.clone(),
            key: String::new(),
        }
    }

    async fn grant_lease(
        &self,
        leased_limit: &LeasedLimit,
        lease_request: &LeaseRequest,
    ) -> Result<LeaseReply, StoreError> {
        let mut timed_out = self.store().timed_out.subscribe();
        tokio::select! {
            biased;
            answer = self.lease_request(leased_limit, lease_request) => answer,
            _ = timed_out.changed() => Err(StoreError::new(StoreErrorKind::Timeout, "no reply")),
        }
    }
}

impl ModelLender {
    async fn lease_request(
        &self,
        leased_limit: &LeasedLimit,
        lease_request: &LeaseRequest,
    ) -> Result<LeaseReply, StoreError> {
        if self.is_killed.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let broken = || Err(StoreError::new(StoreErrorKind::Connection, "broken"));
        let delivery = Delivery::any(&mut self.store());
        match delivery {
            Delivery::Answered => Ok(self.store().lend(leased_limit, lease_request)),
            Delivery::AnsweredLate => {
                let answer = self.store().lend(leased_limit, lease_request);
                self.wait().await;
                Ok(answer)
            }
            Delivery::DecidedLate => {
                self.wait().await;
                Ok(self.store().lend(leased_limit, lease_request))
            }
            Delivery::Lost => std::future::pending().await,
            Delivery::AnswerLost => {
                self.store().lend(leased_limit, lease_request);
                std::future::pending().await
            }
            Delivery::Broken => broken(),
            Delivery::BrokenLater => {
                self.store().lend(leased_limit, lease_request);
                broken()
            }
            Delivery::Unsent => Err(StoreError::new(StoreErrorKind::CircuitOpen, "not sent")),
        }
    }
}
