//! Assigned buckets never admit more than the policy, and they follow demand.
#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

use std::time::Duration;

use limiter_core::Timestamp;
use limiter_server::gateway::quota::ledger::{AssignedBucket, QuotaBudget, QuotaLedger};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000;
const START: u64 = 1_767_268_800 * SECOND;
const APPLY_WITHIN: u64 = SECOND;
const TIME_TO_LIVE: u64 = 20 * SECOND;

fn budget(capacity: u64, per_second: u64) -> QuotaBudget {
    QuotaBudget {
        capacity,
        rate: per_second * 1_000_000,
        apply_within: Duration::from_micros(APPLY_WITHIN),
        time_to_live: Duration::from_micros(TIME_TO_LIVE),
    }
}

/// A bucket as Envoy implements it: it refills continuously, and starts full when it changes.
#[derive(Clone, Debug, Default)]
struct Envoy {
    bucket: Option<AssignedBucket>,
    /// Millionths of permits, and the parts of the next one.
    tokens: u64,
    parts: u64,
    updated_at: u64,
    ends_at: u64,
    /// Assignments on the way: the time at which they arrive.
    arriving: Vec<(u64, AssignedBucket)>,
    allowed: u64,
    denied: u64,
}

impl Envoy {
    fn refill(&mut self, now: u64) {
        let Some(bucket) = self.bucket else { return };
        let seconds = u64::from(bucket.fill_seconds);
        let parts =
            u128::from(bucket.tokens_per_fill) * u128::from(now - self.updated_at) + u128::from(self.parts);
        self.parts = u64::try_from(parts % u128::from(seconds)).unwrap();
        let full = u64::from(bucket.max_tokens) * 1_000_000;
        self.tokens += u64::try_from(parts / u128::from(seconds)).unwrap();
        if self.tokens >= full {
            (self.tokens, self.parts) = (full, 0);
        }
        self.updated_at = now;
    }

    fn advance(&mut self, now: u64) {
        let (arrived, arriving) = self.arriving.iter().partition(|(at, _)| *at <= now);
        self.arriving = arriving;
        let mut arrived: Vec<(u64, AssignedBucket)> = arrived;
        arrived.sort_by_key(|(at, _)| *at);
        for (at, bucket) in arrived {
            self.end(at);
            self.refill(at);
            if self.bucket != Some(bucket) {
                self.bucket = Some(bucket);
                (self.tokens, self.parts) = (u64::from(bucket.max_tokens) * 1_000_000, 0);
                self.updated_at = at;
            }
            self.ends_at = at + TIME_TO_LIVE;
        }
        self.end(now);
        self.refill(now);
    }

    fn end(&mut self, now: u64) {
        if now >= self.ends_at {
            self.bucket = None;
            self.tokens = 0;
        }
    }

    fn request(&mut self, requests: u64) -> u64 {
        let allowed = requests.min(self.tokens / 1_000_000);
        self.tokens -= allowed * 1_000_000;
        self.allowed += allowed;
        self.denied += requests - allowed;
        allowed
    }
}

/// The policy as one bucket: it contains at least as many permits as were admitted in any time.
#[derive(Debug)]
struct Bound {
    budget: QuotaBudget,
    left: u128,
    updated_at: u64,
}

impl Bound {
    fn refill(&mut self, now: u64) {
        let full = u128::from(self.budget.capacity) * 1_000_000_000_000;
        let refilled = u128::from(now - self.updated_at) * u128::from(self.budget.rate);
        self.left = full.min(self.left + refilled);
        self.updated_at = now;
    }

    fn spend(&mut self, now: u64, permits: u64) -> bool {
        self.refill(now);
        match self.left.checked_sub(u128::from(permits) * 1_000_000_000_000) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

/// One step: microseconds until it, and an event.
#[derive(Clone, Debug)]
enum Event {
    Requests(usize, u64),
    Report(usize),
    Disconnect(usize),
    Assign(u64),
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let event = prop_oneof![
        6 => (0..4_usize, 0..400_u64).prop_map(|(envoy, requests)| Event::Requests(envoy, requests)),
        3 => (0..4_usize).prop_map(Event::Report),
        1 => (0..4_usize).prop_map(Event::Disconnect),
        3 => (0..=APPLY_WITHIN).prop_map(Event::Assign),
    ];
    // The last range is the end of an assignment.
    let end = TIME_TO_LIVE - APPLY_WITHIN..TIME_TO_LIVE + APPLY_WITHIN;
    let step = prop_oneof![4 => Just(0), 4 => 0..SECOND, 4 => 0..7 * SECOND, 1 => end];
    proptest::collection::vec((step, event), 1..200)
}

/// Runs the events with four Envoys, and states the first time at which they exceed the policy.
fn run(budget: QuotaBudget, events: &[(u64, Event)]) -> Result<(), String> {
    let mut ledger = QuotaLedger::new(budget, Timestamp::from_micros(START));
    let left = u128::from(budget.capacity) * 1_000_000_000_000;
    let mut bound = Bound {
        budget,
        left,
        updated_at: START,
    };
    let mut envoys: Vec<Envoy> = vec![Envoy::default(); 4];
    let mut now = START;
    for (step, event) in events {
        now += step;
        match *event {
            Event::Requests(number, requests) => {
                envoys[number].advance(now);
                let allowed = envoys[number].request(requests);
                if !bound.spend(now, allowed) {
                    return Err(format!("{allowed} calls after {} µs", now - START));
                }
            }
            Event::Report(number) => {
                let envoy = &mut envoys[number];
                ledger.report(number, (envoy.allowed + envoy.denied) * 200_000);
                (envoy.allowed, envoy.denied) = (0, 0);
            }
            // Assignments on the way may still arrive.
            Event::Disconnect(number) => ledger.end(number),
            Event::Assign(delay) => {
                for assignment in ledger.assign(Timestamp::from_micros(now)) {
                    let envoy = &mut envoys[assignment.holder];
                    envoy.advance(now);
                    // A stream keeps the order.
                    let after = envoy.arriving.iter().map(|(at, _)| *at).max().unwrap_or(0);
                    envoy.arriving.push(((now + delay).max(after), assignment.bucket));
                }
            }
        }
        // Stored and assigned permits together never exceed the policy.
        envoys.iter_mut().for_each(|envoy| envoy.advance(now));
        bound.refill(now);
        let assigned: u64 = envoys.iter().map(|envoy| envoy.tokens).sum();
        let spendable = u128::from(ledger.stored()) * 1_000_000 + u128::from(assigned);
        if spendable * 1_000_000 > bound.left {
            let left = bound.left / 1_000_000;
            return Err(format!(
                "{spendable} of {left} millionths after {} µs",
                now - START
            ));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1_000) })]

    #[test]
    fn admitted_calls_never_exceed_policy_in_any_time(
        capacity in 1..2_000_u64,
        per_second in 1..1_000_u64,
        events in events(),
    ) {
        let result = run(budget(capacity, per_second), &events);
        prop_assert!(result.is_ok(), "{}", result.unwrap_err());
    }
}

#[test]
fn full_bucket_keeps_no_part_of_a_permit() {
    let events = [
        (0, Event::Report(2)),
        (0, Event::Requests(0, 13)),
        (0, Event::Assign(233_443)),
        (640_889, Event::Requests(0, 0)),
        (0, Event::Requests(1, 0)),
        (5_294_712, Event::Report(1)),
        (805_927, Event::Report(0)),
        (0, Event::Disconnect(2)),
        (357_785, Event::Assign(772_860)),
        (140_767, Event::Requests(0, 0)),
        (644_618, Event::Requests(0, 0)),
        (0, Event::Requests(0, 1)),
        (0, Event::Requests(2, 10)),
        (272_215, Event::Requests(0, 0)),
    ];
    assert_eq!(run(budget(30, 35), &events), Ok(()));
}

/// The part of the budget that Envoys with these demands use in a time, in seconds.
fn use_of_budget(
    ledger: &mut QuotaLedger<usize>,
    envoys: &mut [Envoy],
    demands: &[u64],
    seconds: std::ops::Range<u64>,
) -> f64 {
    let mut used = 0;
    let rate = 1_000;
    for tick in seconds.start * 100..seconds.end * 100 {
        let now = START + tick * SECOND / 100;
        for (number, (envoy, demand)) in envoys.iter_mut().zip(demands).enumerate() {
            envoy.advance(now);
            used += envoy.request(demand / 100);
            if (tick + number as u64 * 37).is_multiple_of(500) {
                ledger.report(number, (envoy.allowed + envoy.denied) * 200_000);
                (envoy.allowed, envoy.denied) = (0, 0);
            }
        }
        if tick.is_multiple_of(100) {
            for assignment in ledger.assign(Timestamp::from_micros(now)) {
                envoys[assignment.holder]
                    .arriving
                    .push((now + SECOND / 10, assignment.bucket));
            }
        }
    }
    used as f64 / ((seconds.end - seconds.start) * rate) as f64
}

#[test]
fn budget_follows_changing_demand() {
    let mut ledger = QuotaLedger::new(budget(1_000, 1_000), Timestamp::from_micros(START));
    let mut envoys = vec![Envoy::default(); 3];
    let mut all = 0.0;
    for (phase, demands) in [
        [900, 900, 900],
        [2_000, 100, 0],
        [0, 100, 2_000],
        [400, 2_000, 400],
    ]
    .iter()
    .enumerate()
    {
        let start = phase as u64 * 60;
        let across = use_of_budget(&mut ledger, &mut envoys, demands, start..start + 15);
        let steady = use_of_budget(&mut ledger, &mut envoys, demands, start + 15..start + 60);
        assert!(steady >= 0.9, "{steady} with {demands:?}");
        all += (across * 15.0 + steady * 45.0) / 240.0;
    }
    assert!(all >= 0.7, "{all}");
}

#[test]
fn share_of_ended_stream_is_free_after_its_time_to_live() {
    let mut ledger = QuotaLedger::new(budget(1_000, 1_000), Timestamp::from_micros(START));
    let at = |seconds: u64| Timestamp::from_micros(START + seconds * SECOND);
    for holder in [0, 1] {
        ledger.report(holder, 2_000_000_000);
    }
    ledger.assign(at(0));
    ledger.end(0);
    ledger.assign(at(20));
    assert!(ledger.assigned(&0).is_some());
    assert!(ledger.assigned(&1).unwrap().rate() < 600_000_000);
    ledger.assign(at(21));
    assert_eq!(ledger.assigned(&0), None);
    assert!(ledger.assigned(&1).unwrap().rate() > 900_000_000);
}

#[test]
fn assignment_that_may_have_ended_is_paid_again() {
    let mut ledger = QuotaLedger::new(budget(1_000, 1), Timestamp::from_micros(START));
    let at = |micros: u64| Timestamp::from_micros(START + micros);
    ledger.report(0, 1_000_000);
    let first = ledger.assign(at(0))[0].bucket;
    let stored = ledger.stored();
    // The holder may have received the first assignment at once, so that it ended after 20 s.
    let late = ledger.assign(at(TIME_TO_LIVE - APPLY_WITHIN / 2));
    assert!(late.is_empty(), "{late:?}");
    let again = ledger.assign(at(TIME_TO_LIVE + APPLY_WITHIN));
    assert!(
        again.is_empty() || ledger.stored() <= stored + 22 - u64::from(first.max_tokens),
        "{again:?}"
    );
}
