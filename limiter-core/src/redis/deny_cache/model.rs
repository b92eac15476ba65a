//! Model check: a removed denial denies no call, even if its reply arrives late.
//!
//! Schedules: all of one caller; the first 4,000 of two callers, depth first, and 1,000 random ones
//! of four.

use std::sync::Arc;

use shuttle::{check_dfs, check_random, thread};

use crate::algorithm::StepOutcome;
use crate::policy::Policy;
use crate::redis::deny_cache::*;
use crate::request::LimitRequest;
use crate::support::clock::ManualClock;
use crate::support::sync::Mutex;

/// Several threads call a store that denies until it is reset, while one resets it.
fn call_and_reset(callers: usize) {
    let clock = Clock::Manual(ManualClock::new());
    let policy = Policy::token_bucket("p").capacity(1).rate(1).build().unwrap();
    let shared = Arc::new((
        DenyCache::new(clock, Duration::from_secs(1)),
        Mutex::new(false),
        policy,
    ));
    let calling = (0..callers).map(|_| {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let (cache, reset, policy) = &*shared;
            let request =
                DecisionRequest::new([LimitRequest::new(policy, "k")], Mode::Charge, false).unwrap();
            if cache.decide(&request).is_none() {
                let in_flight = cache.in_flight_token(&request, Instant::now());
                let outcome = StepOutcome {
                    fits: *reset.lock(),
                    retry_after: 1_000,
                    ..StepOutcome::default()
                };
                let verdict = Verdict::new(cache.clock.now(), [outcome].into_iter().collect());
                cache.on_verdict(&request, &verdict, in_flight);
            }
        })
    });
    let calling: Vec<_> = calling.collect();
    let (cache, reset, policy) = &*shared;
    let request = DecisionRequest::new([LimitRequest::new(policy, "k")], Mode::Charge, false).unwrap();
    let forgetting = cache.forget(&request);
    *reset.lock() = true;
    assert!(cache.decide(&request).is_none());
    drop(forgetting);
    assert!(cache.decide(&request).is_none());
    calling.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(cache.decide(&request).is_none());
}

#[test]
fn call_during_reset_caches_no_denial() {
    check_dfs(|| call_and_reset(1), Some(20_000));
}

#[test]
fn calls_during_reset_cache_no_denial() {
    check_dfs(|| call_and_reset(2), Some(4_000));
    check_random(|| call_and_reset(4), 1_000);
}
