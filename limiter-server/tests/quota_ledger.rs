//! Assigned buckets never admit more than the policy, and they follow demand.
#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

#[path = "quota_ledger/newcomers.rs"]
mod newcomers;
#[path = "quota_ledger/other_callers.rs"]
mod other_callers;
#[path = "quota_ledger/reduction.rs"]
mod reduction;
#[path = "quota_ledger/simulation.rs"]
mod simulation;
mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use limiter_core::{Key, Limiter, ManualClock, Policy, Timestamp};
use limiter_server::gateway::quota::lease::{self, budget};
use limiter_server::gateway::quota::ledger::{HolderId, NewAssignment, QuotaBudget, QuotaLedger};
use proptest::prelude::*;
use support::quota_bucket::EnvoyBucket;
use tokio::runtime::Runtime;

const SECOND: u64 = 1_000_000;
const APPLY_WITHIN: u64 = SECOND;
const TIME_TO_LIVE: u64 = 10 * SECOND;

fn policy(capacity: u64, per_second: u64) -> Policy {
    let rate = format!("{per_second}/s");
    let policy = Policy::token_bucket("p").capacity(capacity).rate(&*rate);
    policy.build().unwrap()
}

/// The shared budget, in process and under a clock of the test.
struct Subject {
    runtime: Runtime,
    limiter: Limiter,
    clock: ManualClock,
    policy: Policy,
}

impl Subject {
    fn new(capacity: u64, per_second: u64) -> Self {
        let clock = ManualClock::new();
        assert_eq!(lease::TIME_TO_LIVE, Duration::from_micros(TIME_TO_LIVE));
        assert_eq!(lease::APPLY_WITHIN, Duration::from_micros(APPLY_WITHIN));
        Self {
            runtime: tokio::runtime::Builder::new_current_thread().build().unwrap(),
            limiter: Limiter::in_process().clock(&clock).build(),
            policy: policy(capacity, per_second),
            clock,
        }
    }

    /// Replaces the policy.
    fn put(&mut self, capacity: u64, per_second: u64) {
        self.policy = policy(capacity, per_second);
    }

    /// Makes a call with this cost beside the Envoys. Returns the admitted permits.
    fn call(&self, cost: u64) -> u64 {
        let check = self.limiter.check(&self.policy, Key::global()).cost(cost);
        match self.runtime.block_on(check.into_future()).unwrap().is_allowed() {
            true => cost,
            false => 0,
        }
    }

    fn budget(&self) -> QuotaBudget {
        budget(&self.policy).unwrap()
    }

    fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }

    fn advance(&self, micros: u64) {
        self.clock.advance(Duration::from_micros(micros));
    }

    /// Executes a step: the assignments of these holders, after these changes.
    fn assign(
        &self,
        is_own: impl Fn(&HolderId) -> bool,
        changes: impl Fn(&mut QuotaLedger),
    ) -> (Vec<NewAssignment>, QuotaLedger) {
        let key = Key::global();
        let step = |ledger: &mut QuotaLedger, now| {
            ledger.advance(now);
            changes(ledger);
            ledger.assign(now, &is_own)
        };
        let updated = lease::update(&self.limiter, &self.policy, &key, step);
        self.runtime.block_on(updated).unwrap().unwrap()
    }

    fn stored(&self) -> u64 {
        let peek = self.limiter.peek(&self.policy, Key::global());
        self.runtime.block_on(peek.into_future()).unwrap().remaining()
    }
}

/// The policy as one bucket: it contains at least as many permits as were admitted in any time.
#[derive(Debug)]
struct Bound {
    budget: QuotaBudget,
    left: u128,
    updated_at: u64,
    /// The permits that may be admitted in addition after a reduction of the policy, and its end.
    allowance: u128,
    allowed_until: u64,
}

/// The parts of a permit in a bound.
const PARTS: u128 = 1_000_000_000_000;

impl Bound {
    fn new(budget: QuotaBudget, now: u64) -> Self {
        Self {
            budget,
            left: u128::from(budget.capacity) * PARTS,
            updated_at: now,
            allowance: 0,
            allowed_until: now,
        }
    }

    fn refill(&mut self, now: u64) {
        let full = u128::from(self.budget.capacity) * PARTS;
        let refilled = u128::from(now - self.updated_at) * u128::from(self.budget.rate);
        self.left = full.min(self.left + refilled);
        self.updated_at = now;
        // Afterwards the policy is exact again, from any time on.
        if self.allowance > 0 && now >= self.allowed_until {
            (self.allowance, self.left) = (0, full);
        }
    }

    fn spend(&mut self, now: u64, permits: u64) -> bool {
        self.refill(now);
        let spent = u128::from(permits) * PARTS;
        let above = spent.saturating_sub(self.left);
        if above > self.allowance {
            return false;
        }
        self.left -= spent - above;
        self.allowance -= above;
        true
    }

    /// Replaces the policy. After a reduction, the assigned buckets may admit calls at the old rate
    /// until they have ended: the old rate for 11 s, and the old capacity.
    fn put(&mut self, now: u64, budget: QuotaBudget) {
        self.refill(now);
        let before = std::mem::replace(&mut self.budget, budget);
        if budget.capacity < before.capacity || budget.rate < before.rate {
            let ends_within = TIME_TO_LIVE + APPLY_WITHIN;
            self.allowance += u128::from(before.rate) * u128::from(ends_within);
            self.allowance += u128::from(before.capacity) * PARTS;
            // The last of them may be replaced at their end; the change applies within a second.
            self.allowed_until = now + ends_within + 2 * APPLY_WITHIN;
        }
        // A key that was idle, or not used under the policy between, is full under a larger one.
        if budget.capacity > before.capacity || budget.rate > before.rate {
            self.left = u128::from(budget.capacity) * PARTS;
        }
        self.refill(now);
    }
}

/// One step: microseconds until it, and an event.
#[derive(Clone, Debug)]
enum Event {
    Requests(usize, u64),
    Report(usize),
    Disconnect(usize),
    /// A step of one of two nodes, and the time until its assignments arrive.
    Assign(u64, u64),
    /// A call with this cost of another gateway.
    Call(u64),
    /// A change of the policy to the first or the second one.
    Policy(usize),
}

fn events(has_changes: bool) -> impl Strategy<Value = Vec<(u64, Event)>> {
    let event = prop_oneof![
        6 => (0..4_usize, 0..400_u64).prop_map(|(envoy, requests)| Event::Requests(envoy, requests)),
        3 => (0..4_usize).prop_map(Event::Report),
        1 => (0..4_usize).prop_map(Event::Disconnect),
        5 => (0..2_u64, 0..=APPLY_WITHIN).prop_map(|(node, delay)| Event::Assign(node, delay)),
        2 => (1..100_u64).prop_map(Event::Call),
    ];
    let policy = (0..2_usize).prop_map(Event::Policy);
    let event = prop_oneof![40 => event, u32::from(has_changes) => policy];
    // The last range is the end of an assignment.
    let end = TIME_TO_LIVE - APPLY_WITHIN..TIME_TO_LIVE + APPLY_WITHIN;
    let step = prop_oneof![4 => Just(0), 4 => 0..SECOND, 4 => 0..7 * SECOND, 1 => end];
    proptest::collection::vec((step, event), 1..200)
}

/// Runs the events with four Envoys at two nodes, and states the first time at which they exceed
/// the policy. Policies are pairs of capacity and rate.
fn run(policies: [(u64, u64); 2], events: &[(u64, Event)]) -> Result<(), String> {
    let [(capacity, per_second), _] = policies;
    let mut subject = Subject::new(capacity, per_second);
    let start = subject.now();
    let mut bound = Bound::new(subject.budget(), start);
    let mut envoys: Vec<EnvoyBucket> = vec![EnvoyBucket::default(); 4];
    let mut demands = [None; 4];
    let mut ended = [false; 4];
    for (step, event) in events {
        subject.advance(*step);
        let now = subject.now();
        match *event {
            Event::Requests(number, requests) => {
                envoys[number].advance(now);
                let allowed = envoys[number].request(requests);
                if !bound.spend(now, allowed) {
                    return Err(format!("{allowed} calls after {} µs", now - start));
                }
            }
            Event::Report(number) => {
                let envoy = &mut envoys[number];
                demands[number] = Some((envoy.allowed + envoy.denied) * 200_000);
                (envoy.allowed, envoy.denied) = (0, 0);
            }
            Event::Call(cost) => {
                let cost = cost.min(bound.budget.capacity);
                let admitted = subject.call(cost);
                if !bound.spend(now, admitted) {
                    return Err(format!("a call of {cost} after {} µs", now - start));
                }
            }
            Event::Policy(number) => {
                let (capacity, per_second) = policies[number];
                subject.put(capacity, per_second);
                bound.put(now, subject.budget());
            }
            // Assignments on the way may still arrive.
            Event::Disconnect(number) => ended[number] = true,
            Event::Assign(node, delay) => {
                let is_own = |holder: &HolderId| holder % 2 == node;
                let (assignments, ledger) = subject.assign(is_own, |ledger| {
                    for (holder, demand) in (0..).zip(demands) {
                        let number = usize::try_from(holder).unwrap();
                        match demand.filter(|_| is_own(&holder)) {
                            Some(_) if ended[number] => ledger.end(holder),
                            Some(demand) => ledger.report(holder, demand),
                            None => {}
                        }
                    }
                });
                for assignment in assignments {
                    let envoy = &mut envoys[usize::try_from(assignment.holder).unwrap()];
                    envoy.advance(now);
                    // A stream keeps the order.
                    let after = envoy.arriving.iter().map(|(at, _)| *at).max().unwrap_or(0);
                    envoy.arriving.push(((now + delay).max(after), assignment.bucket));
                }
                // Stored, leased and assigned permits together never exceed the policy.
                envoys.iter_mut().for_each(|envoy| envoy.advance(now));
                bound.refill(now);
                let assigned: u64 = envoys.iter().map(|envoy| envoy.tokens).sum();
                let unassigned = u128::from(ledger.stored() + subject.stored()) * 1_000_000;
                let spendable = unassigned + u128::from(assigned);
                let left = bound.left + bound.allowance;
                if spendable * 1_000_000 > left {
                    let left = left / 1_000_000;
                    let after = now - start;
                    return Err(format!("{spendable} of {left} millionths after {after} µs"));
                }
            }
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
        events in events(false),
    ) {
        let result = run([(capacity, per_second); 2], &events);
        prop_assert!(result.is_ok(), "{}", result.unwrap_err());
    }

    #[test]
    fn reduced_policy_is_exceeded_by_documented_allowance_only(
        policies in [(1..2_000_u64, 1..1_000_u64), (1..2_000_u64, 1..1_000_u64)],
        events in events(true),
    ) {
        let result = run(policies, &events);
        prop_assert!(result.is_ok(), "{}", result.unwrap_err());
    }
}

fn demand(holders: &[HolderId]) -> impl Fn(&mut QuotaLedger) {
    move |ledger| {
        for holder in holders {
            ledger.report(*holder, 2_000_000_000);
        }
    }
}

#[test]
fn share_of_ended_stream_is_free_after_its_time_to_live() {
    let subject = Subject::new(1_000, 1_000);
    // The first step leases permits, and the second assigns them.
    subject.assign(|_| true, demand(&[0, 1]));
    subject.assign(|_| true, demand(&[0, 1]));
    subject.advance(TIME_TO_LIVE / 2);
    subject.assign(|holder| *holder == 1, |ledger| ledger.end(0));
    subject.advance(TIME_TO_LIVE / 2 + APPLY_WITHIN - SECOND / 10);
    let (_, ledger) = subject.assign(|holder| *holder == 1, |_| ());
    assert!(ledger.assigned(&0).is_some());
    assert!(ledger.assigned(&1).unwrap().rate() < 600_000_000);
    subject.advance(SECOND / 10);
    let (_, ledger) = subject.assign(|holder| *holder == 1, |_| ());
    assert_eq!(ledger.assigned(&0), None);
    assert!(ledger.assigned(&1).unwrap().rate() > 900_000_000);
}

#[test]
fn holder_of_another_node_gives_up_its_share() {
    let subject = Subject::new(200, 200);
    let step = |node| subject.assign(move |holder| *holder == node, demand(&[node]));
    for _ in 0..3 {
        step(0);
        subject.advance(SECOND);
    }
    assert!(step(0).1.assigned(&0).unwrap().rate() > 180_000_000);
    // A step to give up the share, and a step after the change is in force, per node.
    for _ in 0..4 {
        step(1);
        subject.advance(SECOND / 2);
        step(0);
        subject.advance(SECOND / 2);
    }
    let (_, ledger) = step(1);
    let rates = [0, 1].map(|holder| ledger.assigned(&holder).map_or(0, |bucket| bucket.rate()));
    assert!(
        rates.iter().all(|rate| (80_000_000..=100_000_000).contains(rate)),
        "{rates:?}"
    );
}

#[test]
fn assignment_that_may_have_ended_is_paid_again() {
    let subject = Subject::new(1_000, 1);
    let (first, _) = subject.assign(|_| true, |ledger| ledger.report(0, 1_000_000));
    // The holder may have received the first assignment at once, so that it ended after 10 s.
    subject.advance(TIME_TO_LIVE - APPLY_WITHIN / 2);
    let (late, _) = subject.assign(|_| true, |_| ());
    assert!(late.is_empty(), "{late:?}");
    subject.advance(APPLY_WITHIN + APPLY_WITHIN / 2);
    let (again, after) = subject.assign(|_| true, |ledger| ledger.report(0, 1_000_000));
    assert!(again[0].is_changed, "{again:?}");
    let permits = u64::from(first[0].bucket.max_tokens.min(again[0].bucket.max_tokens));
    assert!(after.stored() + permits <= 1_000, "{again:?}");
}

#[test]
fn lost_record_keeps_assignments_of_the_node() {
    let subject = Subject::new(1_000, 1_000);
    subject.assign(|_| true, demand(&[0]));
    let (_, ledger) = subject.assign(|_| true, demand(&[0]));
    let state = ledger.holders()[&0];
    let reset = subject.limiter.reset(&subject.policy, Key::global());
    subject.runtime.block_on(reset).unwrap();
    subject.advance(2 * TIME_TO_LIVE);
    let (_, ledger) = subject.assign(|_| false, |ledger| ledger.restore(0, state));
    assert!(ledger.holders().is_empty(), "the assignment has ended");
    let fresh = Subject::new(1_000, 1_000);
    let now = fresh.clock.now();
    let state = limiter_server::gateway::quota::ledger::HolderState {
        sent_at: now,
        ends_at: now.after(Duration::from_secs(5)),
        ..state
    };
    let (_, ledger) = fresh.assign(|_| false, |ledger| ledger.restore(0, state));
    assert_eq!(ledger.assigned(&0), Some(state.bucket));
    assert!(fresh.stored() + ledger.stored() <= 1_000 - u64::from(state.bucket.max_tokens));
}

#[test]
fn assignments_are_renewed_after_the_clock_of_the_store_moved_back() {
    let (subject, start) = (Subject::new(1_000, 100), 10_000);
    let at = |seconds: u64| Timestamp::from_micros(seconds * SECOND);
    let mut ledger = QuotaLedger::recorded(
        subject.budget(),
        800_000,
        at(start),
        BTreeMap::new(),
        BTreeMap::new(),
    );
    ledger.report(0, 1_000 * SECOND);
    assert_eq!(ledger.assign(at(start), |_| true).len(), 1);
    // An hour back, and a step in each second.
    let moved = start - 3_600;
    let renewed = (0..=4).flat_map(|second| ledger.assign(at(moved + second), |_| true));
    let renewed: Vec<NewAssignment> = renewed.collect();
    assert!(
        matches!(renewed.as_slice(), [only] if !only.is_changed),
        "{renewed:?}"
    );
    // The share of a stream that ends is free after the usual time.
    ledger.end(0);
    ledger.advance(at(moved + 4 + 11));
    assert!(ledger.holders().is_empty(), "{:?}", ledger.holders());
}
