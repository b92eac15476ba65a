//! Bound of the local fallback: replicas that share one limit and lose Redis together, one by one,
//! or for single calls admit no more than the bound in the module's documentation.
//!
//! Tests: `shared_outage_admits_one_quota_and_one_second`, `partial_outage_stays_within_bound`,
//! `lost_replies_admit_at_most_one_quota`, `reported_permits_are_subtracted`.

use std::time::Duration;

use super::*;
use crate::algorithm::{Mode, UsageCorrection};
use crate::policy::Policy;
use crate::redis::local_fallback::unreported::RECONCILE_AFTER;
use crate::request::LimitRequest;
use crate::support::clock::ManualClock;

const REPORT_EVERY: u64 = 100_000;
const SECOND: u64 = 1_000_000;

/// One limit in Redis, and the replicas that apply it.
struct Simulation {
    clock: ManualClock,
    redis: MemoryStore,
    policy: Policy,
    replicas: Vec<Replica>,
    /// Moments in microseconds and amounts, in order.
    admitted: Vec<(u64, u64)>,
    /// The greatest age of a decision unknown to Redis when Redis alone admitted a call.
    unreported_for: u64,
}

struct Replica {
    fallback: LocalFallback,
    is_connected: bool,
    reports_at: u64,
}

impl Simulation {
    fn new(policy: Policy, replicas: u32, random: &mut fastrand::Rng) -> Self {
        let clock = ManualClock::new();
        let now = clock.now().as_micros();
        let replica = |_| Replica {
            fallback: LocalFallback::new(Clock::Manual(clock.clone()), 100),
            is_connected: true,
            reports_at: now + random.u64(..REPORT_EVERY),
        };
        let replicas = (0..replicas).map(replica).collect();
        Self {
            redis: MemoryStore::new(Clock::Manual(clock.clone()), 100),
            clock,
            policy,
            replicas,
            admitted: Vec::new(),
            unreported_for: 0,
        }
    }

    fn number(&self) -> u32 {
        u32::try_from(self.replicas.len()).unwrap()
    }

    /// A call, decided as the Redis backend decides it.
    fn call(&mut self, replica: usize) {
        let (count, policy) = (self.number(), self.policy.clone());
        let request = DecisionRequest::new([LimitRequest::new(&policy, "k")], Mode::Charge, false).unwrap();
        let Replica {
            fallback,
            is_connected,
            ..
        } = &self.replicas[replica];
        let is_reconciling = fallback.is_reconciling(&request);
        let mut fits;
        if is_reconciling || !is_connected {
            let by_share = fallback.decide(&request, count).unwrap();
            fits = by_share.fits();
            if !is_connected {
                fallback.record(&request, &by_share, count);
            } else if fits {
                let verdict = self.redis.decide_now(&request).unwrap();
                fallback.on_verdict(&request, &verdict, self.clock.now());
                fits = verdict.fits();
                if !fits {
                    fallback.refund(&request, &by_share, count);
                }
            }
        } else {
            let verdict = self.redis.decide_now(&request).unwrap();
            fallback.on_verdict(&request, &verdict, self.clock.now());
            fits = verdict.fits();
            if fits {
                let replicas = self.replicas.iter();
                let oldest = replicas.filter_map(|replica| replica.fallback.unreported().oldest());
                let age = oldest
                    .min()
                    .map_or(Duration::ZERO, |at| self.clock.now().since(at));
                self.unreported_for = self.unreported_for.max(micros_ceil(age));
            }
        }
        if fits {
            let now = self.clock.now().as_micros();
            self.admitted.push((now, request.limits[0].cost));
        }
    }

    /// Sends all due reports.
    fn report(&mut self) {
        let now = self.clock.now();
        for replica in &mut self.replicas {
            if now.as_micros() < replica.reports_at || !replica.is_connected {
                continue;
            }
            replica.reports_at = now.as_micros() + REPORT_EVERY;
            let fallback = &replica.fallback;
            for unreported in fallback.unreported().batch(100) {
                let report = fallback
                    .take_unreported(&unreported, &unreported.policy, now)
                    .unwrap();
                if report.amount > 0 {
                    let limit = unreported.limit(report.amount);
                    let verdict = self
                        .redis
                        .change_now(&limit, UsageCorrection::ForceCharge)
                        .unwrap();
                    fallback.on_verdict(&limit.alone(), &verdict, now);
                }
                fallback.unreported().finish(unreported.identity, now);
            }
            fallback.unreported().remove_settled(now);
        }
    }

    /// Each replica makes a few calls in random order, and time advances.
    fn step(&mut self, random: &mut fastrand::Rng) {
        for _ in 0..3 * self.replicas.len() {
            self.call(random.usize(..self.replicas.len()));
        }
        self.clock.advance(Duration::from_micros(random.u64(..40_000)));
        self.report();
    }

    /// Returns the maximum excess over quota and rate in any time; for a window, over the quota in
    /// any window.
    fn excess(&self) -> u64 {
        let quota = i128::from(self.policy.algorithm().quota());
        let (mut least, mut sum, mut excess) = (i128::MAX, 0_i128, 0_i128);
        let mut first = 0;
        for &(at, amount) in &self.admitted {
            let amount = i128::from(amount);
            match self.policy.algorithm() {
                Algorithm::SlidingWindow(window) => {
                    while self.admitted[first].0 + window.window <= at {
                        sum -= i128::from(self.admitted[first].1);
                        first += 1;
                    }
                    sum += amount;
                    excess = excess.max(sum - quota);
                }
                _ => {
                    let back = self.back_in(at - self.admitted[0].0);
                    least = least.min(sum - back);
                    sum += amount;
                    excess = excess.max(sum - back - least - quota);
                }
            }
        }
        u64::try_from(excess).unwrap()
    }

    fn back_in(&self, micros: u64) -> i128 {
        i128::from(refill_in(self.policy.algorithm(), micros))
    }

    /// The bound of the excess, and a thousandth for each rounding.
    fn bound(&self) -> u64 {
        let algorithm = self.policy.algorithm();
        let permit = if algorithm.is_window() { 1 } else { 1_000 };
        let late = refill_in(algorithm, self.unreported_for);
        algorithm.quota() + permit * u64::from(self.number()) + late + 1
    }
}

fn policies() -> [Policy; 3] {
    let bucket = Policy::token_bucket("b").capacity(20).rate("10/s");
    let funnel = Policy::funnel("f").capacity(7).rate("20/s");
    let window = Policy::sliding_window("w").limit(20).window("2s");
    [bucket.build(), funnel.build(), window.build()].map(Result::unwrap)
}

/// Runs a scenario repeatedly, for each algorithm and several numbers of replicas.
fn often(scenario: impl Fn(&mut Simulation, &mut fastrand::Rng)) {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..16 {
        for policy in policies() {
            let replicas = [1, 2, 3, 10][round % 4];
            let mut simulation = Simulation::new(policy, replicas, &mut random);
            scenario(&mut simulation, &mut random);
            let (excess, bound) = (simulation.excess(), simulation.bound());
            assert!(
                excess <= bound,
                "seed {seed}: {} by {replicas}: {excess} beyond the policy, at most {bound} ({} µs)",
                simulation.policy,
                simulation.unreported_for
            );
        }
    }
}

#[test]
fn shared_outage_admits_one_quota_and_one_second() {
    often(|simulation, random| {
        for _ in 0..random.u32(1..5) {
            for is_connected in [true, false, true] {
                let lasts = random.u64(..4 * SECOND);
                let ends = simulation.clock.now().as_micros() + lasts;
                for replica in &mut simulation.replicas {
                    replica.is_connected = is_connected;
                }
                while simulation.clock.now().as_micros() < ends {
                    simulation.step(random);
                }
            }
        }
        // Replicas with fewer calls detect an outage later.
        let bound_of_age = micros_ceil(RECONCILE_AFTER) + SECOND / 2;
        assert!(
            simulation.unreported_for <= bound_of_age,
            "{} µs",
            simulation.unreported_for
        );
    });
}

#[test]
fn partial_outage_stays_within_bound() {
    often(|simulation, random| {
        for _ in 0..400 {
            for replica in &mut simulation.replicas {
                if random.u32(..50) == 0 {
                    replica.is_connected = random.bool();
                }
            }
            simulation.step(random);
        }
    });
}

/// Every call may fail independently, while reports arrive.
#[test]
fn lost_replies_admit_at_most_one_quota() {
    often(|simulation, random| {
        for _ in 0..400 {
            for _ in 0..3 * simulation.replicas.len() {
                let replica = random.usize(..simulation.replicas.len());
                simulation.replicas[replica].is_connected = random.bool();
                simulation.call(replica);
            }
            simulation
                .clock
                .advance(Duration::from_micros(random.u64(..40_000)));
            for replica in &mut simulation.replicas {
                replica.is_connected = true;
            }
            simulation.report();
        }
        assert!(
            simulation.unreported_for <= REPORT_EVERY + 40_000,
            "{} µs",
            simulation.unreported_for
        );
    });
}

/// After an outage, Redis denies until the excess is refilled, and no longer.
#[test]
fn reported_permits_are_subtracted() {
    for (outage, calls) in [(5 * SECOND, 9), (60 * SECOND, 9), (60 * SECOND, 1)] {
        let policy = Policy::token_bucket("b")
            .capacity(100)
            .rate("10/s")
            .build()
            .unwrap();
        let mut simulation = Simulation::new(policy, 2, &mut fastrand::Rng::new());
        for _ in 0..200 {
            simulation.call(0);
        }
        simulation.clock.advance(Duration::from_secs(1));
        let began = simulation.clock.now().as_micros();
        while simulation.clock.now().as_micros() < began + outage {
            for replica in 0..2 {
                simulation.replicas[replica].is_connected = false;
                (0..calls).for_each(|_| simulation.call(replica));
            }
            simulation.clock.advance(Duration::from_secs(1));
        }
        for _ in 0..200 {
            for replica in 0..2 {
                simulation.replicas[replica].is_connected = true;
                (0..calls).for_each(|_| simulation.call(replica));
            }
            simulation.clock.advance(Duration::from_millis(300));
            simulation.report();
        }
        let admitted: u64 = simulation.admitted.iter().map(|(_, amount)| amount / 1_000).sum();
        let seconds = (simulation.clock.now().as_micros() - began) / SECOND;
        let allowed = 110 + 10 * seconds;
        assert!(admitted <= allowed, "{admitted} of {allowed}");
        if calls > 1 {
            assert!(
                admitted + 110 >= allowed,
                "{admitted} of {allowed}: denied for too long"
            );
        } else {
            let calls = 100 + 2 * (outage / SECOND + 200);
            assert_eq!(admitted, calls, "moderate use leaves no debt");
        }
    }
}
