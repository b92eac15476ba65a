//! Spends borrowed permits without asking: Redis lends some of a limit, and hears later what became
//! of them.
//!
//! What is lent is missing at the store until it is reported or its time is over, so nobody gets
//! more than was promised (`algorithm/lent.rs`). Here each limit has a wallet, filled in the
//! background as fast as it is emptied. A call that a wallet covers is answered at once; of those
//! that it does not cover one asks the store for more, and the others ask it for themselves.

pub(crate) mod balance;
#[cfg(test)]
mod histories;
pub(crate) mod housekeeper;
pub(crate) mod leased_limit;
pub(crate) mod lender;
pub(crate) mod table;

use std::sync::Arc;

use tokio::sync::watch;

use crate::algorithm::{Mode, StepOutcome, missing_until, next_permit};
use crate::decision::{Decision, Origin};
use crate::error::{StoreError, StoreErrorKind};
use crate::policy::{Algorithm, Funnel, Rate, TokenBucket};
use crate::redis::RedisTokenLender;
use crate::redis::token_lease::lender::TokenLender;
use crate::redis::token_lease::table::{LeaseEntry, LeaseTable, RefillRequest, find, remove};
use crate::request::{DecisionRequest, RequestedLimit, Verdict};
use crate::support::clock::Clock;
use crate::support::sync::atomic::Ordering;
use crate::units::Timestamp;

/// What this process has borrowed.
#[derive(Debug)]
pub(crate) struct Leases<L = RedisTokenLender> {
    wallets: Arc<LeaseTable<L>>,
    /// Whether all is to be given back. The task does it then, and when this is dropped.
    closing: watch::Sender<bool>,
}

impl<L: TokenLender> Leases<L> {
    pub(crate) fn new(lender: L, clock: Clock) -> Self {
        Self {
            wallets: Arc::new(LeaseTable::new(lender, clock)),
            closing: watch::Sender::new(false),
        }
    }

    /// The answer to a call that a wallet covers.
    pub(crate) fn decide(&self, request: &DecisionRequest<'_>) -> Option<Decision> {
        let limit = leased(request)?;
        let now = self.wallets.clock.now();
        let (spent, errand) = {
            let mut shard = self.wallets.shard(limit.identity);
            let entry = find(&mut shard, limit.identity)?;
            if !entry.is_of(limit) {
                return None;
            }
            let held = entry.wallet.spend(limit.cost, now.as_micros())?;
            let errand = entry
                .wallet
                .should_ask(now.as_micros())
                .then(|| entry.errand(0, now));
            ((held + entry.elsewhere, entry.by_the_store(now)), errand)
        };
        if let Some(errand) = errand {
            self.spawn_refill(errand);
        }
        let (remaining, decided_at) = spent;
        let outcomes = [standing(limit, remaining)].into_iter().collect();
        Some(request.decision(Verdict::new(decided_at, outcomes), Origin::Lease))
    }

    /// Has the store decide a call, and lend something beside it, if it is this call's turn to ask.
    pub(crate) fn request_refill(
        &self,
        request: &DecisionRequest<'_>,
    ) -> Option<impl Future<Output = Result<Verdict, StoreError>> + Send + use<L>> {
        let limit = leased(request)?;
        let now = self.wallets.clock.now();
        if self.wallets.is_closed.load(Ordering::Relaxed) {
            return None;
        }
        let (errand, farewell) = {
            let mut shard = self.wallets.shard(limit.identity);
            let mut farewell = None;
            if let Some(entry) = find(&mut shard, limit.identity) {
                if !entry.is_of(limit) {
                    // Under another policy than this call's, so what was borrowed under it goes
                    // back.
                    farewell = remove(&mut shard, limit.identity);
                }
            }
            if find(&mut shard, limit.identity).is_none() {
                self.wallets.open(&mut shard, limit, now);
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
            self.return_tokens(entry, now);
        }
        let answer = self.spawn_refill(errand?);
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
    pub(crate) fn held(&self, request: &DecisionRequest<'_>) -> u64 {
        let Some(limit) = leasable(request) else { return 0 };
        let now = self.wallets.clock.now().as_micros();
        let mut shard = self.wallets.shard(limit.identity);
        let entry = find(&mut shard, limit.identity).filter(|entry| entry.is_of(limit));
        entry.map_or(0, |entry| entry.wallet.held(now))
    }

    /// Adds what is held here to what the store says is left: no more than was `held_before`, since
    /// what was borrowed in the meantime the store may have counted as left.
    pub(crate) fn complete(&self, request: &DecisionRequest<'_>, verdict: &mut Verdict, held_before: u64) {
        let Some(limit) = leasable(request) else { return };
        let held = self.held(request).min(held_before);
        if let [outcome] = &mut *verdict.outcomes {
            outcome.remaining = outcome.remaining.saturating_add(held);
            if request.mode == Mode::Peek && held >= limit.cost {
                (outcome.fits, outcome.retry_after) = (true, 0);
            }
        }
    }

    /// Gives a wallet back what was spent of it and the store does not know of, but nothing that
    /// has come back by itself: how much is left for the store to give back. `whole_at`, as of a
    /// [`Change`](crate::algorithm::Change), is by its clock.
    pub(crate) fn refund(&self, limit: &RequestedLimit<'_>, whole_at: u64) -> u64 {
        if limit.policy.lease().is_none() {
            return limit.cost;
        }
        let now = self.wallets.clock.now();
        let mut shard = self.wallets.shard(limit.identity);
        let entry = find(&mut shard, limit.identity).filter(|entry| entry.is_of(limit));
        entry.map_or(limit.cost, |entry| {
            let missing = if whole_at == 0 {
                limit.cost
            } else {
                let by_the_store = entry.by_the_store(now).as_micros();
                missing_until(limit.policy.algorithm(), whole_at, limit.cost, by_the_store)
            };
            match entry.wallet.take_back(missing, now.as_micros()) {
                // By its own clock, which is not known before it has lent anything.
                0 => limit.cost,
                taken => missing - taken,
            }
        })
    }

    /// Spends what a wallet has of a charge that has to be made: how much that was.
    pub(crate) fn charge(&self, limit: &RequestedLimit<'_>) -> u64 {
        if limit.policy.lease().is_none() {
            return 0;
        }
        let now = self.wallets.clock.now().as_micros();
        let mut shard = self.wallets.shard(limit.identity);
        let entry = find(&mut shard, limit.identity).filter(|entry| entry.is_of(limit));
        entry.map_or(0, |entry| {
            let part = entry.wallet.held(now).min(limit.cost);
            entry.wallet.spend(part, now).map_or(0, |_| part)
        })
    }

    /// Forgets what was borrowed under the limits of a request.
    pub(crate) fn forget(&self, request: &DecisionRequest<'_>) {
        for limit in &request.limits {
            drop(remove(&mut self.wallets.shard(limit.identity), limit.identity));
        }
    }

    /// Gives everything back, and borrows no more.
    pub(crate) async fn shutdown(&self) {
        self.wallets.is_closed.store(true, Ordering::Relaxed);
        self.closing.send_replace(true);
        self.closing.closed().await;
    }

    fn return_tokens(&self, mut entry: LeaseEntry, now: Timestamp) {
        let (wallets, open) = (Arc::clone(&self.wallets), self.closing.subscribe());
        tokio::spawn(async move {
            wallets.return_all(&entry.account, &mut entry.wallet, now).await;
            drop(open);
        });
    }

    /// Sends a question on its way, which the caller need not wait for.
    fn spawn_refill(&self, errand: RefillRequest) -> tokio::task::JoinHandle<Result<Verdict, StoreError>> {
        let (wallets, open) = (Arc::clone(&self.wallets), self.closing.subscribe());
        crate::redis::token_lease::housekeeper::keep_looking(&wallets, &self.closing);
        tokio::spawn(async move {
            let answer = wallets.execute(errand).await;
            // Whoever leaves waits for it.
            drop(open);
            answer
        })
    }
}

/// How a limit stands, of which so much remains.
fn standing(limit: &RequestedLimit<'_>, remaining: u64) -> StepOutcome {
    let algorithm = limit.policy.algorithm();
    let remaining = remaining.min(algorithm.quota());
    let quota = algorithm.quota();
    let next = next_permit(remaining).min(quota);
    let back = |rate: &Rate| {
        (
            rate.time_for(quota - remaining, 0),
            rate.time_for(next - remaining, 0),
        )
    };
    let (reset_after, next_after) = match algorithm {
        Algorithm::TokenBucket(TokenBucket { rate, .. }) | Algorithm::Funnel(Funnel { rate, .. }) => {
            back(rate)
        }
        _ => (0, 0),
    };
    StepOutcome {
        fits: true,
        remaining,
        retry_after: 0,
        reset_after,
        next_after,
        expires_after: reset_after,
        ..StepOutcome::default()
    }
}

/// The only limit of a request, if its permits may be borrowed.
fn leasable<'a, 'b>(request: &'a DecisionRequest<'b>) -> Option<&'a RequestedLimit<'b>> {
    match &*request.limits {
        [limit] if limit.policy.lease().is_some() => Some(limit),
        _ => None,
    }
}

/// The same for a call that charges.
fn leased<'a, 'b>(request: &'a DecisionRequest<'b>) -> Option<&'a RequestedLimit<'b>> {
    leasable(request).filter(|limit| limit.cost > 0 && request.mode == Mode::Charge)
}
