//! Decisions in the memory of this process.

use std::hint::black_box;
use std::sync::Arc;

use gungraun::{library_benchmark, library_benchmark_group};
use limiter_core::registry::PolicyRegistry;
use limiter_core::{Decision, Limiter, Policy, Rejection, Timestamp};
use limiter_instructions::DECISIONS;

use crate::setup::{ample, names, ready, spent};

const MANY: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Limits {
    limiter: Limiter,
    policies: [Policy; 3],
    keys: Arc<[String]>,
}

impl Limits {
    fn new(keys: usize, policy: fn(&str) -> Policy) -> Self {
        let policies = ["first", "second", "third"].map(policy);
        let registry = policies
            .iter()
            .cloned()
            .fold(PolicyRegistry::new(), PolicyRegistry::with);
        let limits = Self {
            limiter: Limiter::in_process()
                .clock(&limiter_core::ManualClock::new())
                .registry(&registry)
                .build(),
            policies,
            keys: names(keys),
        };
        for key in &*limits.keys {
            limits.check(key);
        }
        limits
    }

    fn ample(keys: usize) -> Self {
        Self::new(keys, ample)
    }

    #[inline]
    fn check(&self, key: &str) -> bool {
        is_allowed(ready(self.limiter.check(&self.policies[0], key).into_future()))
    }

    #[inline]
    fn check_three(&self, key: &str) -> bool {
        let asks = self.policies.iter().map(|policy| (policy, key));
        is_allowed(ready(self.limiter.check_all(asks).into_future()))
    }

    #[inline]
    fn check_named(&self, key: &str) -> bool {
        is_allowed(ready(self.limiter.named("first").check(key).into_future()))
    }

    #[inline]
    fn peek(&self, key: &str) -> bool {
        is_allowed(ready(self.limiter.peek(&self.policies[0], key).into_future()))
    }

    /// Makes the decisions once before the measurement.
    fn warmed_up(self, decide: fn(&Self, &str) -> bool) -> Self {
        self.keys.iter().for_each(|key| {
            decide(&self, key);
        });
        self
    }

    #[inline]
    fn repeat(self, allowed: bool, decide: impl Fn(&Self, &str) -> bool) -> Self {
        // A stride without a common factor with the number of keys: no two neighbours in memory.
        let mut key = 0;
        for _ in 0..DECISIONS {
            assert_eq!(decide(&self, black_box(&self.keys[key])), allowed);
            key = (key + 7_919) % self.keys.len();
        }
        self
    }
}

/// An ample limit whose trial values are ample, too, and do not end.
fn tried(name: &str) -> Policy {
    let tried = ample(name).with_trial(&ample(name), Timestamp::from_micros(u64::MAX));
    tried.expect("the trial has the algorithm of the policy")
}

#[inline]
fn is_allowed(decision: Result<Decision, Rejection>) -> bool {
    black_box(decision).expect("memory decides").is_allowed()
}

#[library_benchmark]
#[bench::warm(Limits::ample(1))]
fn one_key(limits: Limits) -> Limits {
    limits.repeat(true, Limits::check)
}

#[library_benchmark]
#[bench::warm(Limits::ample(MANY))]
fn many_keys(limits: Limits) -> Limits {
    limits.repeat(true, Limits::check)
}

#[library_benchmark]
#[bench::warm(Limits::new(1, spent))]
fn denied(limits: Limits) -> Limits {
    limits.repeat(false, Limits::check)
}

#[library_benchmark]
#[bench::warm(Limits::ample(1).warmed_up(Limits::check_three))]
fn three_limits(limits: Limits) -> Limits {
    limits.repeat(true, Limits::check_three)
}

#[library_benchmark]
#[bench::warm(Limits::ample(1).warmed_up(Limits::check_named))]
fn named(limits: Limits) -> Limits {
    limits.repeat(true, Limits::check_named)
}

#[library_benchmark]
#[bench::warm(Limits::ample(1).warmed_up(Limits::peek))]
fn peek(limits: Limits) -> Limits {
    limits.repeat(true, Limits::peek)
}

#[library_benchmark]
#[bench::warm(Limits::new(1, tried))]
fn tried_key(limits: Limits) -> Limits {
    limits.repeat(true, Limits::check)
}

library_benchmark_group!(
    name = in_process,
    benchmarks = [one_key, many_keys, denied, three_limits, named, peek, tried_key]
);
