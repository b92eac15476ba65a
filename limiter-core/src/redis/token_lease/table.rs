//! The balances of all limits, and their refill requests.
//!
//! A sharded table contains a bounded number of balances; further limits are decided by the store.
//! A refill runs without a lock, and its grant is added to the balance if that balance is still in
//! the table. Each balance has a number, which distinguishes it from a later one of the same limit.
//!
//! Invariant: granted tokens are in a balance, are returned to the store, or expire with their
//! lease. Tests: `token_lease/history_tests.rs`, `housekeeper/tests.rs`, `tests/leases.rs`.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashTable;
use tokio::task::JoinSet;

use crate::algorithm::{LeaseGrant, LeaseRequest, UsageReport};
use crate::error::StoreError;
use crate::identity::Identity;
use crate::redis::token_lease::balance::LeasedTokens;
use crate::redis::token_lease::leased_limit::LeasedLimit;
use crate::redis::token_lease::lender::TokenLender;
use crate::request::{ValidatedLimit, Verdict};
use crate::support::background_task::BackgroundTask;
use crate::support::clock::Clock;
use crate::support::join::join_completed;
use crate::support::real_time::with_deadline;
use crate::support::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::support::sync::{Mutex, MutexGuard};
use crate::units::{Timestamp, micros_ceil};

const SHARDS: usize = 16;
/// Upper bound of the balances. Further limits are decided by the store.
const MAX_BALANCES: usize = 4_096;
/// Bounds of the housekeeper's interval, which is a sixteenth of the shortest lease.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(250)];

/// Time after which a housekeeper without progress counts as abandoned with its runtime.
const ABANDONED_AFTER: Duration = Duration::from_secs(5);

/// The balances of a limiter and the lender that refills them.
#[derive(Debug)]
pub(crate) struct LeaseTable<L> {
    lender: L,
    pub(crate) clock: Clock,
    shards: Box<[Mutex<HashTable<LeaseEntry>>]>,
    pub(crate) is_closed: AtomicBool,
    /// Number of the next balance; distinguishes a balance from a dropped one of the same limit.
    next_number: AtomicU64,
    /// The housekeeper.
    pub(crate) task: BackgroundTask,
}

/// The balance of one limit.
#[derive(Debug)]
pub(crate) struct LeaseEntry {
    identity: Identity,
    number: u64,
    pub(crate) leased_limit: LeasedLimit,
    pub(crate) balance: LeasedTokens,
    /// Remaining permits in the store's last reply, and the time of that reply in store time and
    /// local time.
    pub(crate) store_remaining: u64,
    pub(crate) reply_times: (Timestamp, Timestamp),
}

/// A refill request of one balance.
#[derive(Debug)]
pub(crate) struct RefillRequest {
    identity: Identity,
    number: u64,
    leased_limit: LeasedLimit,
    lease_request: LeaseRequest,
}

impl<L: TokenLender> LeaseTable<L> {
    pub(crate) fn new(lender: L, clock: Clock) -> Self {
        Self {
            lender,
            clock,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            is_closed: AtomicBool::new(false),
            next_number: AtomicU64::new(0),
            task: BackgroundTask::new(ABANDONED_AFTER),
        }
    }

    /// Sends a refill request and adds the grant to the balance.
    pub(crate) async fn execute(&self, operation: RefillRequest) -> Result<Verdict, StoreError> {
        let RefillRequest {
            identity,
            number,
            leased_limit,
            lease_request,
        } = operation;
        let submitted = self.clock.now();
        let answer = with_deadline(
            leased_limit.policy.deadline(),
            self.lender.grant_lease(&leased_limit, &lease_request),
        )
        .await;
        let now = self.clock.now();
        let unclaimed = {
            let mut shard = self.shard(identity);
            let entry = find(&mut shard, identity).filter(|entry| entry.number == number);
            let is_closed = self.is_closed.load(Ordering::Relaxed);
            match (&answer, entry) {
                (Ok(lending), Some(entry)) if !is_closed => {
                    entry.filled(lending.loan, &lease_request, submitted, now);
                    entry.reply_times = (lending.verdict.decided_at, now);
                    entry.store_remaining = lending
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
                            entry
                                .balance
                                .restore_report(lease_request.report, now.as_micros());
                        }
                        entry.balance.refill_ended(now.as_micros());
                    }
                    LeaseGrant::default()
                }
            }
        };
        if unclaimed.amount > 0 {
            // The balance was dropped in the meantime, or the limiter was shut down.
            let report = UsageReport {
                epoch: unclaimed.epoch,
                spent: 0,
                returned: unclaimed.amount,
            };
            let lease_request = LeaseRequest {
                epoch: lease_request.epoch,
                report,
                ..LeaseRequest::default()
            };
            let _ = with_deadline(
                leased_limit.policy.deadline(),
                self.lender.grant_lease(&leased_limit, &lease_request),
            )
            .await;
        }
        answer.map(|lending| lending.verdict)
    }

    /// Returns all tokens of a balance.
    pub(crate) async fn return_all(
        &self,
        leased_limit: &LeasedLimit,
        balance: &mut LeasedTokens,
        now: Timestamp,
    ) {
        while let Some(lease_request) = balance.final_report(now.as_micros()) {
            if with_deadline(
                leased_limit.policy.deadline(),
                self.lender.grant_lease(leased_limit, &lease_request),
            )
            .await
            .is_err()
            {
                // The tokens count as used after their lease.
                return;
            }
        }
    }

    /// Returns the requests that return unused tokens, and the next interval. Drops idle balances.
    pub(crate) fn stale(&self, now: Timestamp) -> (Vec<RefillRequest>, Duration) {
        let [shortest, mut pause] = PAUSES;
        let mut requests = Vec::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.retain(|entry| !entry.balance.is_idle(now.as_micros()));
            let leases = shard.iter().filter_map(|entry| entry.leased_limit.policy.lease());
            pause = leases
                .fold(pause, |pause, lease| pause.min(lease / 16))
                .max(shortest);
            for entry in shard
                .iter_mut()
                .filter(|entry| entry.balance.is_stale(now.as_micros()))
            {
                requests.extend(entry.final_report(now));
            }
        }
        (requests, pause)
    }

    /// Removes all balances and returns their tokens.
    pub(crate) async fn return_balances(self: &Arc<Self>) {
        let now = self.clock.now();
        let mut running = JoinSet::new();
        for mut entry in self.drain() {
            let table = Arc::clone(self);
            running.spawn(async move {
                table
                    .return_all(&entry.leased_limit, &mut entry.balance, now)
                    .await
            });
        }
        join_completed(running).await;
    }

    fn drain(&self) -> Vec<LeaseEntry> {
        self.shards
            .iter()
            .flat_map(|shard| std::mem::take(&mut *lock(shard)))
            .collect()
    }

    /// Creates the balance of a limit, unless the table is full.
    pub(crate) fn open(&self, shard: &mut HashTable<LeaseEntry>, limit: &ValidatedLimit<'_>, now: Timestamp) {
        if shard.len() >= MAX_BALANCES / SHARDS {
            return;
        }
        let max_age = limit.policy.lease().map_or(0, micros_ceil);
        let entry = LeaseEntry {
            identity: limit.identity,
            number: self.next_number.fetch_add(1, Ordering::Relaxed),
            leased_limit: self.lender.leased_limit(limit),
            balance: LeasedTokens::new(max_age, limit.cost, now.as_micros()),
            store_remaining: 0,
            reply_times: (now, now),
        };
        shard.insert_unique(limit.identity.hash(), entry, |entry| entry.identity.hash());
    }

    pub(crate) fn shard(&self, identity: Identity) -> MutexGuard<'_, HashTable<LeaseEntry>> {
        #[expect(clippy::indexing_slicing, reason = "there are `SHARDS` of them")]
        lock(&self.shards[identity.shard(SHARDS)])
    }
}

impl LeaseEntry {
    pub(crate) fn is_of(&self, limit: &ValidatedLimit<'_>) -> bool {
        let policy = &self.leased_limit.policy;
        policy.algorithm() == limit.policy.algorithm() && policy.lease() == limit.policy.lease()
    }

    /// Converts a local time to store time.
    pub(crate) fn store_now(&self, now: Timestamp) -> Timestamp {
        self.reply_times.0.after(now.since(self.reply_times.1))
    }

    pub(crate) fn operation(&mut self, cost: u64, now: Timestamp) -> RefillRequest {
        let quota = self.leased_limit.policy.algorithm().quota();
        let lease_request = self.balance.refill_request(cost, quota, now.as_micros());
        self.with(lease_request)
    }

    fn final_report(&mut self, now: Timestamp) -> Option<RefillRequest> {
        let lease_request = self.balance.final_report(now.as_micros())?;
        Some(self.with(lease_request))
    }

    fn with(&self, lease_request: LeaseRequest) -> RefillRequest {
        RefillRequest {
            identity: self.identity,
            number: self.number,
            leased_limit: self.leased_limit.clone(),
            lease_request,
        }
    }

    fn filled(
        &mut self,
        loan: LeaseGrant,
        lease_request: &LeaseRequest,
        submitted: Timestamp,
        now: Timestamp,
    ) {
        if lease_request.want == 0 {
            self.balance.refill_ended(now.as_micros());
        } else {
            self.balance.filled(loan, submitted.as_micros(), now.as_micros());
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
    shard.lock()
}
