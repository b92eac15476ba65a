//! Compares the charges in the store with the calls of a run.

use std::collections::HashMap;

use limiter_core::{Limiter, OnStoreFailure, Policy};

use crate::run::Run;
use crate::trial::Trial;

const READERS: usize = 16;
/// Large enough that no call is denied; the rate refills nothing during the test.
const CAPACITY: u64 = 20_000;

/// Returns a policy under which every charge can be read back later.
pub(crate) fn policy(deadline: std::time::Duration) -> Policy {
    let policy = Policy::token_bucket("audit")
        .capacity(CAPACITY)
        .rate("1/d")
        .deadline(deadline);
    policy
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .expect("a valid policy")
}

/// The charges of the keys of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Audit {
    /// Charges without a call: calls that were charged twice.
    pub(crate) excess: u64,
    /// Calls that the store admitted without a charge, or with a charge that it lost.
    pub(crate) lost: u64,
    /// Calls without a reply that were charged, which is allowed.
    pub(crate) unanswered: u64,
}

/// Compares the store's charge of each key with the calls of a run.
pub(crate) fn audit(trial: &Trial, limits: &Limiter, policy: &Policy, run: &Run) -> Audit {
    let mut calls: HashMap<u32, (u64, u64)> = HashMap::new();
    for event in &run.events {
        let (made, admitted) = calls.entry(event.key).or_default();
        *made += 1;
        *admitted += u64::from(event.allowed && event.is_healthy());
    }
    let keys: Vec<u32> = calls.keys().copied().collect();
    let charged = charged(trial, limits, policy, &keys);
    calls
        .iter()
        .fold(Audit::default(), |audit, (key, (made, admitted))| {
            let charged = charged.get(key).copied().unwrap_or_default();
            Audit {
                excess: audit.excess + charged.saturating_sub(*made),
                lost: audit.lost + admitted.saturating_sub(charged),
                unanswered: audit.unanswered + charged.min(*made).saturating_sub(*admitted),
            }
        })
}

fn charged(trial: &Trial, limits: &Limiter, policy: &Policy, keys: &[u32]) -> HashMap<u32, u64> {
    let readers: Vec<_> = keys
        .chunks(keys.len().div_ceil(READERS).max(1))
        .map(|keys| {
            trial
                .runtime
                .spawn(read(limits.clone(), policy.clone(), keys.to_vec()))
        })
        .collect();
    let mut charged = HashMap::new();
    for reader in readers {
        charged.extend(trial.wait(reader).expect("a reader ends"));
    }
    charged
}

async fn read(limits: Limiter, policy: Policy, keys: Vec<u32>) -> Vec<(u32, u64)> {
    let mut charged = Vec::with_capacity(keys.len());
    for key in keys {
        let left = limits
            .peek(&policy, key)
            .await
            .expect("a store that answers")
            .remaining();
        charged.push((key, CAPACITY - left));
    }
    charged
}
