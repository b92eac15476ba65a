//! Spends borrowed permits without asking: Redis lends some of a limit, and hears later what became of them.
//!
//! What is lent is missing at the store until it is reported or its time is over, so nobody gets more than was promised
//! (`algorithm/lent.rs`). Here each limit has a wallet, filled in the background as fast as it is emptied. A call that a
//! wallet covers is answered at once; of those that it does not cover one asks the store for more, and the others ask it for
//! themselves.

mod wallet;

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use hashbrown::HashTable;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::deadline::within;
use crate::algorithm::{Borrowing, Loan, Mode, Outcome, Report};
use crate::clock::Clock;
use crate::decision::{Decision, Origin};
use crate::error::{StoreError, StoreErrorKind};
use crate::identity::Identity;
use crate::policy::{Algorithm, Funnel, Rate, TokenBucket};
use crate::request::{Limit, Request, Verdict};
use crate::store::redis::{Account, Lender};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::units::{Timestamp, micros_ceil};
use wallet::Wallet;

const SHARDS: usize = 16;
/// Of more limits than this nothing is borrowed. They are decided by the store.
const MAX_WALLETS: usize = 4_096;
/// The wallets are looked through once in a sixteenth of a lease, within these bounds.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(250)];
/// A task that looks after the wallets and has not shown itself for so long lives in a runtime that is gone.
const ABANDONED_AFTER: Duration = Duration::from_secs(5);

/// What this process has borrowed.
#[derive(Debug)]
pub(super) struct Leases {
    shared: Arc<Shared>,
    /// Whether all is to be given back. The task does it then, and when this is dropped.
    closing: watch::Sender<bool>,
}

#[derive(Debug)]
struct Shared {
    lender: Lender,
    clock: Clock,
    shards: Box<[Mutex<HashTable<Entry>>]>,
    is_closed: AtomicBool,
    /// Tells a wallet from one of the same limit that was forgotten.
    next: AtomicU64,
    /// By when, in microseconds, the task that looks after the wallets should have shown itself.
    due: AtomicU64,
    /// Which of the tasks does: the last one that was started.
    task: AtomicU32,
}

#[derive(Debug)]
struct Entry {
    identity: Identity,
    number: u64,
    account: Account,
    wallet: Wallet,
    /// What the store had left when it last answered, and when that was by its clock and by this process's.
    elsewhere: u64,
    heard: (Timestamp, Timestamp),
}

/// A question about one wallet, on its way.
#[derive(Debug)]
struct Errand {
    identity: Identity,
    number: u64,
    account: Account,
    ask: Borrowing,
}

impl Leases {
    pub(super) fn new(lender: Lender, clock: Clock) -> Self {
        Self {
            shared: Arc::new(Shared {
                lender,
                clock,
                shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
                is_closed: AtomicBool::new(false),
                next: AtomicU64::new(0),
                due: AtomicU64::new(0),
                task: AtomicU32::new(0),
            }),
            closing: watch::Sender::new(false),
        }
    }

    /// The answer to a call that a wallet covers.
    pub(super) fn decide(&self, request: &Request<'_>) -> Option<Decision> {
        let limit = leased(request)?;
        let now = self.shared.clock.now();
        let (spent, errand) = {
            let mut shard = self.shared.shard(limit.identity);
            let entry = find(&mut shard, limit.identity)?;
            if !entry.is_of(limit) {
                return None;
            }
            let held = entry.wallet.spend(limit.cost, now.as_micros())?;
            let errand = entry
                .wallet
                .should_ask(now.as_micros())
                .then(|| entry.errand(0, now));
            let at = entry.heard.0.after(now.since(entry.heard.1));
            ((held + entry.elsewhere, at), errand)
        };
        if let Some(errand) = errand {
            self.run(errand);
        }
        let (remaining, decided_at) = spent;
        let outcomes = [standing(limit, remaining)].into_iter().collect();
        Some(request.decision(Verdict { decided_at, outcomes }, Origin::Lease))
    }

    /// Has the store decide a call, and lend something beside it, if it is this call's turn to ask.
    pub(super) fn ask(
        &self,
        request: &Request<'_>,
    ) -> Option<impl Future<Output = Result<Verdict, StoreError>> + Send + use<>> {
        let limit = leased(request)?;
        let now = self.shared.clock.now();
        if self.shared.is_closed.load(Ordering::Relaxed) {
            return None;
        }
        let (errand, farewell) = {
            let mut shard = self.shared.shard(limit.identity);
            let mut farewell = None;
            if let Some(entry) = find(&mut shard, limit.identity)
                && !entry.is_of(limit)
            {
                // Under another policy than this call's, so what was borrowed under it goes back.
                farewell = remove(&mut shard, limit.identity);
            }
            if find(&mut shard, limit.identity).is_none() && shard.len() < MAX_WALLETS / SHARDS {
                let entry = self.shared.entry(limit, now);
                shard.insert_unique(limit.identity.hash(), entry, |entry| entry.identity.hash());
            }
            let errand = find(&mut shard, limit.identity)
                .filter(|entry| {
                    let now = now.as_micros();
                    entry.wallet.should_ask(now) || entry.wallet.must_ask(limit.cost, now)
                })
                .map(|entry| entry.errand(limit.cost, now));
            (errand, farewell)
        };
        if let Some(entry) = farewell {
            self.give_back(entry, now);
        }
        let answer = self.run(errand?);
        Some(async move {
            answer.await.unwrap_or_else(|_| {
                Err(StoreError::new(
                    StoreErrorKind::Connection,
                    "the runtime that asked is gone",
                ))
            })
        })
    }

    /// What is borrowed of the limit of a request, and not spent.
    pub(super) fn held(&self, request: &Request<'_>) -> u64 {
        let Some(limit) = leasable(request) else { return 0 };
        let now = self.shared.clock.now().as_micros();
        let mut shard = self.shared.shard(limit.identity);
        let entry = find(&mut shard, limit.identity).filter(|entry| entry.is_of(limit));
        entry.map_or(0, |entry| entry.wallet.held(now))
    }

    /// Adds what is held here to what the store says is left: no more than was `held_before`, since what was borrowed in the
    /// meantime the store may have counted as left.
    pub(super) fn complete(&self, request: &Request<'_>, verdict: &mut Verdict, held_before: u64) {
        let Some(limit) = leasable(request) else { return };
        let held = self.held(request).min(held_before);
        if let [outcome] = &mut *verdict.outcomes {
            outcome.remaining = outcome.remaining.saturating_add(held);
            if request.mode == Mode::Peek && held >= limit.cost {
                (outcome.fits, outcome.retry_after) = (true, 0);
            }
        }
    }

    /// Gives a wallet back what was spent of it and the store does not know of: how much that was.
    pub(super) fn refund(&self, limit: &Limit<'_>) -> u64 {
        if limit.policy.lease().is_none() {
            return 0;
        }
        let now = self.shared.clock.now().as_micros();
        let mut shard = self.shared.shard(limit.identity);
        let entry = find(&mut shard, limit.identity).filter(|entry| entry.is_of(limit));
        entry.map_or(0, |entry| entry.wallet.take_back(limit.cost, now))
    }

    /// Forgets what was borrowed under the limits of a request.
    pub(super) fn forget(&self, request: &Request<'_>) {
        for limit in &request.limits {
            drop(remove(&mut self.shared.shard(limit.identity), limit.identity));
        }
    }

    /// Gives everything back, and borrows no more.
    pub(super) async fn leave(&self) {
        self.shared.is_closed.store(true, Ordering::Relaxed);
        self.closing.send_replace(true);
        self.closing.closed().await;
    }

    fn give_back(&self, mut entry: Entry, now: Timestamp) {
        let (shared, open) = (Arc::clone(&self.shared), self.closing.subscribe());
        tokio::spawn(async move {
            shared.return_all(&entry.account, &mut entry.wallet, now).await;
            drop(open);
        });
    }

    /// Sends a question on its way, which the caller need not wait for.
    fn run(&self, errand: Errand) -> tokio::task::JoinHandle<Result<Verdict, StoreError>> {
        let (shared, open) = (Arc::clone(&self.shared), self.closing.subscribe());
        self.keep_looking(shared.clock.now());
        tokio::spawn(async move {
            let answer = shared.run(errand).await;
            // Whoever leaves waits for it.
            drop(open);
            answer
        })
    }

    /// Sees to it that a task looks after the wallets. To be called in a runtime.
    fn keep_looking(&self, now: Timestamp) {
        let (now, patience) = (now.as_micros(), micros_ceil(ABANDONED_AFTER));
        let shared = &self.shared;
        let due = shared.due.load(Ordering::Relaxed);
        // A test's clock may have been set back.
        if now < due && due - now <= patience || shared.is_closed.load(Ordering::Relaxed) {
            return;
        }
        let next = now.saturating_add(patience);
        if shared
            .due
            .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            let task = shared.task.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            tokio::spawn(look_after(Arc::clone(shared), task, self.closing.subscribe()));
        }
    }
}

/// Gives back what is not needed until the limiter is dropped, and then everything.
async fn look_after(shared: Arc<Shared>, task: u32, mut closing: watch::Receiver<bool>) {
    while shared.task.load(Ordering::Relaxed) == task {
        let now = shared.clock.now();
        shared
            .due
            .store(now.after(ABANDONED_AFTER).as_micros(), Ordering::Relaxed);
        let (errands, pause) = shared.stale(now);
        let mut running = JoinSet::new();
        for errand in errands {
            let shared = Arc::clone(&shared);
            running.spawn(async move { shared.run(errand).await.is_ok() });
        }
        running.join_all().await;
        let leaving = async {
            // An error says that the limiter was dropped.
            let _ = closing.wait_for(|closing| *closing).await;
        };
        tokio::select! {
            biased;
            () = leaving => {
                shared.is_closed.store(true, Ordering::Relaxed);
                let now = shared.clock.now();
                let mut running = JoinSet::new();
                for mut entry in shared.drain() {
                    let shared = Arc::clone(&shared);
                    running.spawn(async move { shared.return_all(&entry.account, &mut entry.wallet, now).await });
                }
                running.join_all().await;
                return;
            }
            () = shared.clock.sleep(now, pause) => {}
        }
    }
}

impl Shared {
    /// Asks the store, and puts what it lends into the wallet.
    async fn run(&self, errand: Errand) -> Result<Verdict, StoreError> {
        let Errand {
            identity,
            number,
            account,
            ask,
        } = errand;
        let submitted = self.clock.now();
        let answer = within(account.policy.deadline(), self.lender.lend(&account, &ask)).await;
        let now = self.clock.now();
        let unclaimed = {
            let mut shard = self.shard(identity);
            let entry = find(&mut shard, identity)
                .filter(|entry| entry.number == number && !self.is_closed.load(Ordering::Relaxed));
            match (&answer, entry) {
                (Ok(lending), Some(entry)) => {
                    entry.filled(lending.loan, &ask, submitted, now);
                    entry.heard = (lending.verdict.decided_at, now);
                    entry.elsewhere = lending
                        .verdict
                        .outcomes
                        .first()
                        .map_or(0, |outcome| outcome.remaining);
                    Loan::default()
                }
                (Ok(lending), None) => lending.loan,
                (Err(error), entry) => {
                    if let Some(entry) = entry {
                        if !error.may_have_been_charged() {
                            entry.wallet.untell(ask.report, now.as_micros());
                        }
                        entry.wallet.answered(now.as_micros());
                    }
                    Loan::default()
                }
            }
        };
        if unclaimed.amount > 0 {
            // Forgotten in the meantime, or the limiter was shut down.
            let report = Report {
                epoch: unclaimed.epoch,
                spent: 0,
                returned: unclaimed.amount,
            };
            let ask = Borrowing {
                epoch: ask.epoch,
                report,
                ..Borrowing::default()
            };
            let _ = within(account.policy.deadline(), self.lender.lend(&account, &ask)).await;
        }
        answer.map(|lending| lending.verdict)
    }

    /// Gives back all that a wallet holds.
    async fn return_all(&self, account: &Account, wallet: &mut Wallet, now: Timestamp) {
        while let Some(ask) = wallet.farewell(now.as_micros()) {
            if within(account.policy.deadline(), self.lender.lend(account, &ask))
                .await
                .is_err()
            {
                // It counts as spent when its time is over.
                return;
            }
        }
    }

    /// The questions that give back what is not needed, and when to look again; forgets wallets that are of no use.
    fn stale(&self, now: Timestamp) -> (Vec<Errand>, Duration) {
        let [shortest, mut pause] = PAUSES;
        let mut errands = Vec::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.retain(|entry| !entry.wallet.is_idle(now.as_micros()));
            let leases = shard.iter().filter_map(|entry| entry.account.policy.lease());
            pause = leases
                .fold(pause, |pause, lease| pause.min(lease / 16))
                .max(shortest);
            for entry in shard
                .iter_mut()
                .filter(|entry| entry.wallet.is_stale(now.as_micros()))
            {
                errands.extend(entry.farewell(now));
            }
        }
        (errands, pause)
    }

    fn drain(&self) -> Vec<Entry> {
        self.shards
            .iter()
            .flat_map(|shard| std::mem::take(&mut *lock(shard)))
            .collect()
    }

    fn entry(&self, limit: &Limit<'_>, now: Timestamp) -> Entry {
        let max_age = limit.policy.lease().map_or(0, micros_ceil);
        Entry {
            identity: limit.identity,
            number: self.next.fetch_add(1, Ordering::Relaxed),
            account: self.lender.account(limit),
            wallet: Wallet::new(max_age, limit.cost, now.as_micros()),
            elsewhere: 0,
            heard: (now, now),
        }
    }

    fn shard(&self, identity: Identity) -> MutexGuard<'_, HashTable<Entry>> {
        #[expect(clippy::indexing_slicing, reason = "there are `SHARDS` of them")]
        lock(&self.shards[identity.shard(SHARDS)])
    }
}

impl Entry {
    fn is_of(&self, limit: &Limit<'_>) -> bool {
        let policy = &self.account.policy;
        policy.algorithm() == limit.policy.algorithm() && policy.lease() == limit.policy.lease()
    }

    fn errand(&mut self, cost: u64, now: Timestamp) -> Errand {
        let quota = self.account.policy.algorithm().quota();
        let ask = self.wallet.ask(cost, quota, now.as_micros());
        self.with(ask)
    }

    fn farewell(&mut self, now: Timestamp) -> Option<Errand> {
        let ask = self.wallet.farewell(now.as_micros())?;
        Some(self.with(ask))
    }

    fn with(&self, ask: Borrowing) -> Errand {
        Errand {
            identity: self.identity,
            number: self.number,
            account: self.account.clone(),
            ask,
        }
    }

    fn filled(&mut self, loan: Loan, ask: &Borrowing, submitted: Timestamp, now: Timestamp) {
        if ask.want == 0 {
            self.wallet.answered(now.as_micros());
        } else {
            self.wallet.filled(loan, submitted.as_micros(), now.as_micros());
        }
    }
}

/// How a limit stands, of which so much remains.
fn standing(limit: &Limit<'_>, remaining: u64) -> Outcome {
    let algorithm = limit.policy.algorithm();
    let remaining = remaining.min(algorithm.quota());
    let back = |rate: &Rate| rate.time_for(algorithm.quota() - remaining, 0);
    let reset_after = match algorithm {
        Algorithm::TokenBucket(TokenBucket { rate, .. }) | Algorithm::Funnel(Funnel { rate, .. }) => {
            back(rate)
        }
        Algorithm::SlidingWindow(_) => 0,
    };
    Outcome {
        fits: true,
        remaining,
        retry_after: 0,
        reset_after,
        expires_after: reset_after,
    }
}

/// The only limit of a request, if its permits may be borrowed.
fn leasable<'a, 'b>(request: &'a Request<'b>) -> Option<&'a Limit<'b>> {
    match &*request.limits {
        [limit] if limit.policy.lease().is_some() => Some(limit),
        _ => None,
    }
}

/// The same for a call that charges.
fn leased<'a, 'b>(request: &'a Request<'b>) -> Option<&'a Limit<'b>> {
    leasable(request).filter(|limit| limit.cost > 0 && request.mode == Mode::Charge)
}

fn find(shard: &mut HashTable<Entry>, identity: Identity) -> Option<&mut Entry> {
    shard.find_mut(identity.hash(), |entry| entry.identity == identity)
}

fn remove(shard: &mut HashTable<Entry>, identity: Identity) -> Option<Entry> {
    let entry = shard.find_entry(identity.hash(), |entry| entry.identity == identity);
    entry.ok().map(|entry| entry.remove().0)
}

fn lock(shard: &Mutex<HashTable<Entry>>) -> MutexGuard<'_, HashTable<Entry>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
