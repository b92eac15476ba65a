//! Token leases: Redis leases permits of a limit to this process, which spends them without a call
//! and reports the usage later.
//!
//! Leased permits count as used in Redis until they are reported or their lease expires, so a limit
//! is never exceeded (`algorithm/leased_level.rs`). Each limit has a balance, which is refilled in
//! the background at the rate of its use. A call that the balance covers is decided locally. Of the
//! other calls, one requests a refill and the others are decided by Redis.
//!
//! Tests: `history_tests.rs` (random histories against a model store), `tests/leases.rs`,
//! `tests/lease_exactness.rs`.

pub(crate) mod balance;
#[cfg(test)]
mod history_tests;
pub(crate) mod housekeeper;
pub(crate) mod leased_limit;
pub(crate) mod lender;
pub(crate) mod table;

use std::sync::Arc;

use tokio::sync::watch;

use crate::algorithm::{Mode, StepOutcome, missing_until, next_permit};
use crate::decision::{Decision, Origin};
use crate::error::{StoreError, StoreErrorKind};
use crate::redis::token_lease::lender::TokenLender;
use crate::redis::token_lease::table::{LeaseEntry, LeaseTable, RefillRequest, find, remove};
use crate::request::{DecisionRequest, ValidatedLimit, Verdict};
use crate::support::clock::Clock;
use crate::support::sync::atomic::Ordering;
use crate::units::Timestamp;

/// The leases of this process.
#[derive(Debug)]
pub(crate) struct Leases<L> {
    table: Arc<LeaseTable<L>>,
    /// Set on shutdown: the housekeeper then returns all tokens, as it does when this is dropped.
    closing: watch::Sender<bool>,
}

impl<L: TokenLender> Leases<L> {
    pub(crate) fn new(lender: L, clock: Clock) -> Self {
        Self {
            table: Arc::new(LeaseTable::new(lender, clock)),
            closing: watch::Sender::new(false),
        }
    }

    /// Decides a call that the balance covers.
    pub(crate) fn decide(&self, request: &DecisionRequest<'_>) -> Option<Decision> {
        let limit = leasable_charge(request)?;
        let now = self.table.clock.now();
        let (spent, operation) = {
            let mut shard = self.table.shard(limit.identity);
            let entry = find(&mut shard, limit.identity)?;
            if !entry.is_of(limit) {
                return None;
            }
            let held = entry.balance.spend(limit.cost, now.as_micros())?;
            let operation = entry
                .balance
                .should_refill(now.as_micros())
                .then(|| entry.operation(0, now));
            ((held + entry.store_remaining, entry.store_now(now)), operation)
        };
        if let Some(operation) = operation {
            self.spawn_refill(operation);
        }
        let (remaining, decided_at) = spent;
        let outcomes = [lease_outcome(limit, remaining)].into_iter().collect();
        Some(request.decision(Verdict::new(decided_at, outcomes), Origin::Lease))
    }

    /// Decides a call in the store together with a refill, if this call has to request one.
    pub(crate) fn request_refill(
        &self,
        request: &DecisionRequest<'_>,
    ) -> Option<impl Future<Output = Result<Verdict, StoreError>> + Send + use<L>> {
        let limit = leasable_charge(request)?;
        let now = self.table.clock.now();
        if self.table.is_closed.load(Ordering::Relaxed) {
            return None;
        }
        self.return_earlier(limit);
        let operation = {
            let mut shard = self.table.shard(limit.identity);
            if find(&mut shard, limit.identity).is_none() {
                self.table.open(&mut shard, limit, now);
            }
            find(&mut shard, limit.identity)
                .filter(|entry| {
                    let now = now.as_micros();
                    let is_due =
                        entry.balance.should_refill(now) || entry.balance.must_refill(limit.cost, now);
                    // Another call may use another version of the policy.
                    is_due && entry.is_of(limit)
                })
                .map(|entry| entry.operation(limit.cost, now))
        };
        let answer = self.spawn_refill(operation?);
        Some(async move {
            answer.await.unwrap_or_else(|_| {
                Err(StoreError::new(
                    StoreErrorKind::Connection,
                    "the Tokio runtime of the refill has ended",
                ))
            })
        })
    }

    /// Returns the balance to the store if it belongs to another version of the limit's policy.
    /// Must be called in a runtime.
    pub(crate) fn return_earlier(&self, limit: &ValidatedLimit<'_>) {
        let removed = {
            let mut shard = self.table.shard(limit.identity);
            match find(&mut shard, limit.identity) {
                Some(entry) if !entry.is_of(limit) => remove(&mut shard, limit.identity),
                _ => None,
            }
        };
        if let Some(mut entry) = removed {
            // The capacity of the other version may be below the remaining tokens.
            entry.leased_limit.policy = limit.policy.clone();
            self.return_tokens(entry, self.table.clock.now());
        }
    }

    /// Returns the leased tokens of the request's limit that are not spent.
    pub(crate) fn held(&self, request: &DecisionRequest<'_>) -> u64 {
        let Some(limit) = request.leasable() else { return 0 };
        let now = self.table.clock.now().as_micros();
        let mut shard = self.table.shard(limit.identity);
        let entry = find(&mut shard, limit.identity).filter(|entry| entry.is_of(limit));
        entry.map_or(0, |entry| entry.balance.held(now))
    }

    /// Adds the local balance to the remaining permits that the store reported. At most
    /// `held_before` is added, since the store may have counted later leases as remaining.
    pub(crate) fn complete(&self, request: &DecisionRequest<'_>, verdict: &mut Verdict, held_before: u64) {
        let Some(limit) = request.leasable() else { return };
        let held = self.held(request).min(held_before);
        if let [outcome] = &mut *verdict.outcomes {
            outcome.remaining = outcome.remaining.saturating_add(held);
            if request.mode == Mode::Peek && held >= limit.cost {
                (outcome.fits, outcome.retry_after) = (true, 0);
            }
        }
    }

    /// Refunds a balance with spent tokens that are not reported yet, except tokens that would have
    /// been refilled in the meantime. Returns the amount that is left for a refund in the store.
    /// `whole_at` is in store time.
    pub(crate) fn refund(&self, limit: &ValidatedLimit<'_>, whole_at: u64) -> u64 {
        if limit.policy.lease().is_none() {
            return limit.cost;
        }
        let now = self.table.clock.now();
        let mut shard = self.table.shard(limit.identity);
        let entry = find(&mut shard, limit.identity).filter(|entry| entry.is_of(limit));
        entry.map_or(limit.cost, |entry| {
            let missing = if whole_at == 0 {
                limit.cost
            } else {
                let store_now = entry.store_now(now).as_micros();
                missing_until(limit.policy.algorithm(), whole_at, limit.cost, store_now)
            };
            match entry.balance.take_back(missing, now.as_micros()) {
                // In local time: store time is unknown before the first grant.
                0 => limit.cost,
                taken => missing - taken,
            }
        })
    }

    /// Spends the available part of an unconditional charge. Returns that part.
    pub(crate) fn charge(&self, limit: &ValidatedLimit<'_>) -> u64 {
        if limit.policy.lease().is_none() {
            return 0;
        }
        let now = self.table.clock.now().as_micros();
        let mut shard = self.table.shard(limit.identity);
        let entry = find(&mut shard, limit.identity).filter(|entry| entry.is_of(limit));
        entry.map_or(0, |entry| {
            let part = entry.balance.held(now).min(limit.cost);
            entry.balance.spend(part, now).map_or(0, |_| part)
        })
    }

    /// Drops the balances of a request's limits.
    pub(crate) fn forget(&self, request: &DecisionRequest<'_>) {
        for limit in &request.limits {
            drop(remove(&mut self.table.shard(limit.identity), limit.identity));
        }
    }

    /// Returns all tokens and requests no more leases.
    pub(crate) async fn shutdown(&self) {
        self.table.is_closed.store(true, Ordering::Relaxed);
        self.closing.send_replace(true);
        // The runtime of the housekeeper may have ended, or may not be driven.
        let (table, open) = (Arc::clone(&self.table), self.closing.subscribe());
        tokio::spawn(async move {
            table.return_balances().await;
            drop(open);
        });
        self.closing.closed().await;
    }

    fn return_tokens(&self, mut entry: LeaseEntry, now: Timestamp) {
        let (table, open) = (Arc::clone(&self.table), self.closing.subscribe());
        tokio::spawn(async move {
            table
                .return_all(&entry.leased_limit, &mut entry.balance, now)
                .await;
            drop(open);
        });
    }

    /// Spawns a refill, which the caller need not await.
    fn spawn_refill(&self, operation: RefillRequest) -> tokio::task::JoinHandle<Result<Verdict, StoreError>> {
        let (table, open) = (Arc::clone(&self.table), self.closing.subscribe());
        crate::redis::token_lease::housekeeper::spawn_if_absent(&table, &self.closing);
        tokio::spawn(async move {
            let answer = table.execute(operation).await;
            // A shutdown waits for the refill.
            drop(open);
            answer
        })
    }
}

/// Returns the outcome of a locally decided call with these remaining tokens.
fn lease_outcome(limit: &ValidatedLimit<'_>, remaining: u64) -> StepOutcome {
    let algorithm = limit.policy.algorithm();
    let remaining = remaining.min(algorithm.quota());
    let quota = algorithm.quota();
    let next = next_permit(remaining).min(quota);
    // Windows lease no tokens.
    let refilled_after = |amount| algorithm.refill_micros(amount).unwrap_or(0);
    let reset_after = refilled_after(quota - remaining);
    StepOutcome {
        fits: true,
        remaining,
        retry_after: 0,
        reset_after,
        next_after: refilled_after(next - remaining),
        expires_after: reset_after,
        ..StepOutcome::default()
    }
}

/// Returns the leasable limit of a charge with a nonzero cost.
fn leasable_charge<'a, 'b>(request: &'a DecisionRequest<'b>) -> Option<&'a ValidatedLimit<'b>> {
    request
        .leasable()
        .filter(|limit| limit.cost > 0 && request.mode == Mode::Charge)
}
