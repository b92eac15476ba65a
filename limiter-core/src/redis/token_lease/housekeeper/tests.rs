use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::yield_now;

use crate::algorithm::{LeaseGrant, LeaseRequest, Mode, StepOutcome};
use crate::error::StoreError;
use crate::policy::{Policy, Rate};
use crate::redis::token_lease::Leases;
use crate::redis::token_lease::housekeeper::MAX_CONCURRENT;
use crate::redis::token_lease::leased_limit::{LeaseReply, LeasedLimit};
use crate::redis::token_lease::lender::TokenLender;
use crate::request::{DecisionRequest, LimitRequest, ValidatedLimit, Verdict};
use crate::support::clock::{Clock, ManualClock};

const KEYS: usize = 1_000;
const LEASE: Duration = Duration::from_secs(1);

/// A store that grants every lease and counts the returns.
#[derive(Clone, Debug)]
struct CountingLender {
    clock: ManualClock,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    running: AtomicUsize,
    most_running: AtomicUsize,
    ended: AtomicUsize,
}

impl TokenLender for CountingLender {
    fn leased_limit(&self, limit: &ValidatedLimit<'_>) -> LeasedLimit {
        LeasedLimit {
            identity: limit.identity,
            policy: limit.policy.clone(),
            key: String::new(),
        }
    }

    async fn grant_lease(&self, _: &LeasedLimit, request: &LeaseRequest) -> Result<LeaseReply, StoreError> {
        if request.want == 0 {
            let running = self.counts.running.fetch_add(1, Ordering::Relaxed) + 1;
            self.counts.most_running.fetch_max(running, Ordering::Relaxed);
            for _ in 0..4 {
                yield_now().await;
            }
            self.counts.running.fetch_sub(1, Ordering::Relaxed);
            self.counts.ended.fetch_add(1, Ordering::Relaxed);
        }
        let outcome = StepOutcome {
            fits: true,
            ..StepOutcome::default()
        };
        Ok(LeaseReply {
            verdict: Verdict::new(self.clock.now(), [outcome].into_iter().collect()),
            loan: LeaseGrant {
                amount: request.want,
                epoch: 1,
                life: u64::try_from(LEASE.as_micros()).unwrap(),
            },
        })
    }
}

/// Returns the greatest number of concurrent returns of `KEYS` balances that expire together.
/// `shuts_down` selects a shutdown instead of the periodic returns.
async fn return_together(shuts_down: bool) -> usize {
    let clock = ManualClock::new();
    let counts = Arc::new(Counts::default());
    let lender = CountingLender {
        clock: clock.clone(),
        counts: Arc::clone(&counts),
    };
    let leases = Leases::new(lender, Clock::Manual(clock.clone()));
    let bucket = Policy::token_bucket("p")
        .capacity(1_000)
        .rate(Rate::per_second(100).unwrap());
    let policy = bucket.lease(LEASE).build().unwrap();
    for number in 0..KEYS {
        let limit = LimitRequest::new(&policy, number.to_string());
        let request = DecisionRequest::new([limit], Mode::Charge, true).unwrap();
        leases.request_refill(&request).unwrap().await.unwrap();
    }
    if shuts_down {
        leases.shutdown().await;
    }
    clock.advance(LEASE);
    while counts.ended.load(Ordering::Relaxed) < KEYS {
        yield_now().await;
    }
    counts.most_running.load(Ordering::Relaxed)
}

#[tokio::test]
async fn expired_balances_are_returned_in_bounded_batches() {
    assert_eq!(return_together(false).await, MAX_CONCURRENT);
}

#[tokio::test]
async fn shutdown_returns_all_balances_at_once() {
    assert_eq!(return_together(true).await, KEYS);
}
