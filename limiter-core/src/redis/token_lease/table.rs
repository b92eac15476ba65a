//! The wallets of all limits, what is asked for them and what comes of it.

use std::sync::PoisonError;
use std::time::Duration;

use hashbrown::HashTable;

use crate::algorithm::{LeaseGrant, LeaseRequest, UsageReport};
use crate::error::StoreError;
use crate::identity::Identity;
use crate::redis::LeasedLimit;
use crate::redis::token_lease::balance::LeasedTokens;
use crate::redis::token_lease::lender::TokenLender;
use crate::request::{RequestedLimit, Verdict};
use crate::support::clock::Clock;
use crate::support::deadline::within;
use crate::support::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::support::sync::{Mutex, MutexGuard};
use crate::units::{Timestamp, micros_ceil};

const SHARDS: usize = 16;
/// Of more limits than this nothing is borrowed. They are decided by the store.
const MAX_WALLETS: usize = 4_096;
/// The wallets are looked through once in a sixteenth of a lease, within these bounds.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(250)];

/// The wallets of a limiter, and from whom they are filled.
#[derive(Debug)]
pub(crate) struct LeaseTable<L> {
    lender: L,
    pub(crate) clock: Clock,
    shards: Box<[Mutex<HashTable<LeaseEntry>>]>,
    pub(crate) is_closed: AtomicBool,
    /// Tells a wallet from one of the same limit that was forgotten.
    next: AtomicU64,
    /// By when, in microseconds, the task that looks after the wallets should have shown itself.
    pub(crate) due: AtomicU64,
    /// Which of the tasks does: the last one that was started.
    pub(crate) task: AtomicU32,
}

/// One limit's wallet.
#[derive(Debug)]
pub(crate) struct LeaseEntry {
    identity: Identity,
    number: u64,
    pub(crate) account: LeasedLimit,
    pub(crate) wallet: LeasedTokens,
    /// What the store had left when it last answered, and when that was by its clock and by this
    /// process's.
    pub(crate) elsewhere: u64,
    pub(crate) heard: (Timestamp, Timestamp),
}

/// A question about one wallet, on its way.
#[derive(Debug)]
pub(crate) struct RefillRequest {
    identity: Identity,
    number: u64,
    account: LeasedLimit,
    ask: LeaseRequest,
}

impl<L: TokenLender> LeaseTable<L> {
    pub(crate) fn new(lender: L, clock: Clock) -> Self {
        Self {
            lender,
            clock,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            is_closed: AtomicBool::new(false),
            next: AtomicU64::new(0),
            due: AtomicU64::new(0),
            task: AtomicU32::new(0),
        }
    }

    /// Asks the store, and puts what it lends into the wallet.
    pub(crate) async fn execute(&self, errand: RefillRequest) -> Result<Verdict, StoreError> {
        let RefillRequest {
            identity,
            number,
            account,
            ask,
        } = errand;
        let submitted = self.clock.now();
        let answer = within(account.policy.deadline(), self.lender.grant_lease(&account, &ask)).await;
        let now = self.clock.now();
        let unclaimed = {
            let mut shard = self.shard(identity);
            let entry = find(&mut shard, identity).filter(|entry| entry.number == number);
            let is_closed = self.is_closed.load(Ordering::Relaxed);
            match (&answer, entry) {
                (Ok(lending), Some(entry)) if !is_closed => {
                    entry.filled(lending.loan, &ask, submitted, now);
                    entry.heard = (lending.verdict.decided_at, now);
                    entry.elsewhere = lending
                        .verdict
                        .outcomes
                        .first()
                        .map_or(0, |outcome| outcome.remaining);
                    LeaseGrant::default()
                }
                (Ok(lending), _) => lending.loan,
                (Err(error), entry) => {
                    if let Some(entry) = entry {
                        if error.has_changed_nothing() {
                            entry.wallet.restore_report(ask.report, now.as_micros());
                        }
                        entry.wallet.answered(now.as_micros());
                    }
                    LeaseGrant::default()
                }
            }
        };
        if unclaimed.amount > 0 {
            // Forgotten in the meantime, or the limiter was shut down.
            let report = UsageReport {
                epoch: unclaimed.epoch,
                spent: 0,
                returned: unclaimed.amount,
            };
            let ask = LeaseRequest {
                epoch: ask.epoch,
                report,
                ..LeaseRequest::default()
            };
            let _ = within(account.policy.deadline(), self.lender.grant_lease(&account, &ask)).await;
        }
        answer.map(|lending| lending.verdict)
    }

    /// Gives back all that a wallet holds.
    pub(crate) async fn return_all(&self, account: &LeasedLimit, wallet: &mut LeasedTokens, now: Timestamp) {
        while let Some(ask) = wallet.final_report(now.as_micros()) {
            if within(account.policy.deadline(), self.lender.grant_lease(account, &ask))
                .await
                .is_err()
            {
                // It counts as spent when its time is over.
                return;
            }
        }
    }

    /// The questions that give back what is not needed, and when to look again; forgets wallets
    /// that are of no use.
    pub(crate) fn stale(&self, now: Timestamp) -> (Vec<RefillRequest>, Duration) {
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
                errands.extend(entry.final_report(now));
            }
        }
        (errands, pause)
    }

    pub(crate) fn drain(&self) -> Vec<LeaseEntry> {
        self.shards
            .iter()
            .flat_map(|shard| std::mem::take(&mut *lock(shard)))
            .collect()
    }

    /// Opens a wallet for a limit that has none, if there may be one more.
    pub(crate) fn open(&self, shard: &mut HashTable<LeaseEntry>, limit: &RequestedLimit<'_>, now: Timestamp) {
        if shard.len() >= MAX_WALLETS / SHARDS {
            return;
        }
        let max_age = limit.policy.lease().map_or(0, micros_ceil);
        let entry = LeaseEntry {
            identity: limit.identity,
            number: self.next.fetch_add(1, Ordering::Relaxed),
            account: self.lender.account(limit),
            wallet: LeasedTokens::new(max_age, limit.cost, now.as_micros()),
            elsewhere: 0,
            heard: (now, now),
        };
        shard.insert_unique(limit.identity.hash(), entry, |entry| entry.identity.hash());
    }

    pub(crate) fn shard(&self, identity: Identity) -> MutexGuard<'_, HashTable<LeaseEntry>> {
        #[expect(clippy::indexing_slicing, reason = "there are `SHARDS` of them")]
        lock(&self.shards[identity.shard(SHARDS)])
    }
}

impl LeaseEntry {
    pub(crate) fn is_of(&self, limit: &RequestedLimit<'_>) -> bool {
        let policy = &self.account.policy;
        policy.algorithm() == limit.policy.algorithm() && policy.lease() == limit.policy.lease()
    }

    /// A moment of this process by the store's clock.
    pub(crate) fn by_the_store(&self, now: Timestamp) -> Timestamp {
        self.heard.0.after(now.since(self.heard.1))
    }

    pub(crate) fn errand(&mut self, cost: u64, now: Timestamp) -> RefillRequest {
        let quota = self.account.policy.algorithm().quota();
        let ask = self.wallet.refill_request(cost, quota, now.as_micros());
        self.with(ask)
    }

    fn final_report(&mut self, now: Timestamp) -> Option<RefillRequest> {
        let ask = self.wallet.final_report(now.as_micros())?;
        Some(self.with(ask))
    }

    fn with(&self, ask: LeaseRequest) -> RefillRequest {
        RefillRequest {
            identity: self.identity,
            number: self.number,
            account: self.account.clone(),
            ask,
        }
    }

    fn filled(&mut self, loan: LeaseGrant, ask: &LeaseRequest, submitted: Timestamp, now: Timestamp) {
        if ask.want == 0 {
            self.wallet.answered(now.as_micros());
        } else {
            self.wallet.filled(loan, submitted.as_micros(), now.as_micros());
        }
    }
}

pub(crate) fn find(shard: &mut HashTable<LeaseEntry>, identity: Identity) -> Option<&mut LeaseEntry> {
    shard.find_mut(identity.hash(), |entry| entry.identity == identity)
}

pub(crate) fn remove(shard: &mut HashTable<LeaseEntry>, identity: Identity) -> Option<LeaseEntry> {
    let entry = shard.find_entry(identity.hash(), |entry| entry.identity == identity);
    entry.ok().map(|entry| entry.remove().0)
}

fn lock(shard: &Mutex<HashTable<LeaseEntry>>) -> MutexGuard<'_, HashTable<LeaseEntry>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
