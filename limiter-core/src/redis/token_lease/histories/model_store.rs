//! The store of a history: the pure steps on one key, whose answers come at once, late or never.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use fastrand::Rng;
use tokio::sync::{oneshot, watch};

use crate::algorithm;
use crate::algorithm::{LeaseRequest, Mode, StepState};
use crate::error::{StoreError, StoreErrorKind};
use crate::policy::Algorithm;
use crate::redis::token_lease::lender::TokenLender;
use crate::redis::{LeaseReply, LeasedLimit};
use crate::request::{RequestedLimit, Verdict};
use crate::support::clock::ManualClock;

/// The store, and all that was granted.
#[derive(Debug)]
pub(crate) struct ModelStore {
    pub(crate) state: StepState,
    pub(crate) clock: ManualClock,
    pub(crate) rng: Rng,
    /// Costs by the time at which they were granted, less what came back; in thousandths and
    /// microseconds.
    pub(crate) grants: Vec<(u64, i128)>,
    /// Of so many questions eight do not go well.
    luck: u8,
    /// Those who wait for an answer, or for their question to arrive.
    late: Vec<oneshot::Sender<()>>,
    /// Changes when the deadline of all requests on their way is over.
    overdue: watch::Sender<()>,
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
            overdue: watch::Sender::new(()),
        }
    }

    /// Ends the deadline of all requests that have no answer yet.
    pub(crate) fn time_out(&mut self) {
        self.late.clear();
        self.overdue.send_replace(());
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

    /// A call that asks for itself.
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

    /// Gives back up to so much of what the store knows to be used: how much that was, under this
    /// policy.
    pub(crate) fn refund(&mut self, algorithm: &Algorithm, amount: u64) -> u64 {
        let (before, now) = (self.remaining(algorithm), self.now());
        let after = algorithm::refund(algorithm, &mut self.state, amount, now).remaining;
        after - before
    }

    /// One of those who wait goes on, if there is one.
    pub(crate) fn release(&mut self) {
        if !self.late.is_empty() {
            let chosen = self.rng.usize(0..self.late.len());
            // Who waited may have given up.
            let _ = self.late.swap_remove(chosen).send(());
        }
    }

    fn lend(&mut self, account: &LeasedLimit, ask: &LeaseRequest) -> LeaseReply {
        let now = self.now();
        let (outcome, loan) = algorithm::grant_lease(account.policy.algorithm(), &mut self.state, ask, now);
        if outcome.fits && ask.cost > 0 {
            self.granted(ask.cost);
        }
        let outcomes = [outcome].into_iter().collect();
        let decided_at = self.clock.now();
        LeaseReply {
            verdict: Verdict::new(decided_at, outcomes),
            loan,
        }
    }
}

/// What becomes of a question.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Answered,
    /// Answered in time, and heard of late.
    AnsweredLate,
    /// Asked in time, and decided late.
    DecidedLate,
    /// Never arrives.
    Lost,
    /// Decided, and never heard of.
    AnswerLost,
    /// Breaks off before it is decided, which nobody can tell from the next one …
    Broken,
    /// … after it was.
    BrokenLater,
    /// Known not to have been sent.
    Unsent,
}

impl Fate {
    fn any(bank: &mut ModelStore) -> Self {
        match bank.rng.u8(0..bank.luck) {
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

/// One process's way to the bank.
#[derive(Clone, Debug)]
pub(crate) struct Teller {
    pub(crate) bank: Arc<Mutex<ModelStore>>,
    /// A process that was killed asks nothing any more, and gives nothing back.
    pub(crate) is_killed: Arc<AtomicBool>,
}

impl Teller {
    pub(crate) fn bank(&self) -> MutexGuard<'_, ModelStore> {
        self.bank.lock().unwrap()
    }

    async fn wait(&self) {
        let (told, later) = oneshot::channel();
        self.bank().late.push(told);
        if later.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl TokenLender for Teller {
    fn account(&self, limit: &RequestedLimit<'_>) -> LeasedLimit {
        LeasedLimit {
            policy: limit.policy.clone(),
            key: String::new(),
        }
    }

    async fn grant_lease(&self, account: &LeasedLimit, ask: &LeaseRequest) -> Result<LeaseReply, StoreError> {
        let mut overdue = self.bank().overdue.subscribe();
        tokio::select! {
            biased;
            answer = self.ask(account, ask) => answer,
            _ = overdue.changed() => Err(StoreError::new(StoreErrorKind::Timeout, "no reply")),
        }
    }
}

impl Teller {
    async fn ask(&self, account: &LeasedLimit, ask: &LeaseRequest) -> Result<LeaseReply, StoreError> {
        if self.is_killed.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let broken = || Err(StoreError::new(StoreErrorKind::Connection, "broken"));
        let fate = Fate::any(&mut self.bank());
        match fate {
            Fate::Answered => Ok(self.bank().lend(account, ask)),
            Fate::AnsweredLate => {
                let answer = self.bank().lend(account, ask);
                self.wait().await;
                Ok(answer)
            }
            Fate::DecidedLate => {
                self.wait().await;
                Ok(self.bank().lend(account, ask))
            }
            Fate::Lost => std::future::pending().await,
            Fate::AnswerLost => {
                self.bank().lend(account, ask);
                std::future::pending().await
            }
            Fate::Broken => broken(),
            Fate::BrokenLater => {
                self.bank().lend(account, ask);
                broken()
            }
            Fate::Unsent => Err(StoreError::new(StoreErrorKind::CircuitOpen, "not sent")),
        }
    }
}
