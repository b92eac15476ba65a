//! Random histories of processes that borrow of one key, under clocks of their own pace: answers
//! that come late or never, calls that are dropped, processes that are killed, a policy that
//! changes, resets and refunds. Whatever happens, stored and lent are together no more than the
//! capacity, and over any time T no more is granted than capacity + rate·T.
//!
//! `LIMITER_HISTORIES` sets the number of histories, `LIMITER_SEED` repeats a run.

mod model_store;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tokio::task::yield_now;

use crate::algorithm::Mode;
use crate::policy::{Algorithm, Policy, Rate};
use crate::redis::token_lease::Leases;
use crate::redis::token_lease::histories::model_store::{ModelStore, Teller};
use crate::request::{DecisionRequest, LimitRequest};
use crate::support::clock::{Clock, ManualClock};
use crate::units::Amount;

/// Far beyond a history: `Bank::time_out` ends deadlines.
const DEADLINE: Duration = Duration::from_secs(3_600);
const STEPS: usize = 150;

/// One process, whose clock goes so many hundredths as fast as the store's.
struct Process {
    leases: Leases<Teller>,
    teller: Teller,
    clock: ManualClock,
    pace: u64,
    /// What it was granted of a loan, which it may give back once.
    granted: u64,
}

impl Process {
    fn start(bank: &Arc<Mutex<ModelStore>>, pace: u64) -> Self {
        let teller = Teller {
            bank: Arc::clone(bank),
            is_killed: Arc::default(),
        };
        let clock = ManualClock::new();
        Self {
            leases: Leases::new(teller.clone(), Clock::Manual(clock.clone())),
            teller,
            clock,
            pace,
            granted: 0,
        }
    }

    /// A call, as the guard makes it.
    fn call(&mut self, rng: &mut Rng, policy: &Policy) -> bool {
        let cost = cost(rng, policy);
        let request = request(policy, cost);
        if let Some(decision) = self.leases.decide(&request) {
            assert!(decision.is_allowed());
            self.granted += cost;
            self.teller.bank().granted(cost);
            return true;
        }
        match self.leases.request_refill(&request) {
            // Its caller leaves.
            Some(answer) if rng.u8(0..8) == 0 => drop(answer),
            Some(answer) => drop(tokio::spawn(answer)),
            None => self.teller.bank().decide(policy.algorithm(), cost),
        }
        false
    }

    fn refund(&mut self, rng: &mut Rng, policy: &Policy, policies: &[Policy]) {
        let cost = rng.u64(0..=self.granted.min(policy.algorithm().quota()));
        self.granted -= cost;
        let request = request(policy, cost);
        let rest = self.leases.refund(&request.limits[0], 0);
        let back = cost - rest;
        let mut bank = self.teller.bank();
        bank.gave_back(back);
        let refunded = bank.refund(policy.algorithm(), rest);
        // To another policy more may have come back than this one says.
        bank.gave_back(if policies.len() == 1 {
            refunded
        } else {
            cost - back
        });
    }

    /// Nothing is borrowed any more then, nor ever again.
    async fn shut_down(self, policy: &Policy) {
        let left = async {
            self.leases.shutdown().await;
        };
        // What has no answer holds it up until its deadline.
        tokio::select! {
            biased;
            () = left => {}
            () = async {
                loop {
                    yield_now().await;
                    self.teller.bank().time_out();
                }
            } => {}
        }
        let request = request(policy, 1);
        assert_eq!(self.leases.held(&request), 0);
        assert!(self.leases.decide(&request).is_none());
        assert!(self.leases.request_refill(&request).is_none());
    }

    fn held(&self, policies: &[Policy]) -> u64 {
        let held = policies
            .iter()
            .map(|policy| self.leases.held(&request(policy, 1)));
        // A wallet is of one of them.
        held.max().unwrap_or(0)
    }
}

fn request(policy: &Policy, cost: u64) -> DecisionRequest<'_> {
    let ask = LimitRequest::new(policy, "k").cost(Amount::from_thousandths(cost));
    DecisionRequest::new([ask], Mode::Charge, true).unwrap()
}

fn cost(rng: &mut Rng, policy: &Policy) -> u64 {
    let quota = policy.algorithm().quota();
    match rng.u8(0..8) {
        0 if rng.bool() => rng.u64(1..=quota),
        1 => rng.u64(1..=quota.min(5_000)),
        _ => quota.min(1_000),
    }
}

fn policy(rng: &mut Rng, funnel: bool) -> Policy {
    let capacity =
        [rng.u64(1..10), rng.u64(10..300)][rng.usize(0..2)] * 1_000 + rng.u64(0..2) * rng.u64(0..1_000);
    let rate: Rate = match rng.u8(0..3) {
        0 => "7/3s".parse().unwrap(),
        1 => Rate::per(rng.u32(1..9), Duration::from_micros(rng.u64(1_000..3_000_000))).unwrap(),
        _ => Rate::per_second(rng.u32(1..40)).unwrap(),
    };
    let lease = Duration::from_micros([10_000, 200_000, 1_000_000, 20_000_000][rng.usize(0..4)]);
    let shape = if funnel {
        Policy::funnel("p")
    } else {
        Policy::token_bucket("p")
    };
    let shape = shape.capacity(Amount::from_thousandths(capacity)).rate(rate);
    shape.lease(lease).deadline(DEADLINE).build().unwrap()
}

fn span(rng: &mut Rng) -> u64 {
    match rng.u8(0..6) {
        0 | 1 => rng.u64(1..100),
        2 | 3 => rng.u64(1..30_000),
        4 => rng.u64(1..300_000),
        _ => rng.u64(1..6_000_000),
    }
}

/// Lets the tasks go on, as far as they get in so many turns.
async fn turns(rng: &mut Rng) {
    for _ in 0..rng.u8(0..12) {
        yield_now().await;
    }
}

/// A history of processes that share a key: how many calls were answered from what was borrowed.
async fn play(rng: &mut Rng, policies: &[Policy], count: u64) -> u64 {
    let bank = Arc::new(Mutex::new(ModelStore::new(rng.fork())));
    let start = |number: u64| Process::start(&bank, [100, 97, 103][(number % 3) as usize]);
    let mut processes: Vec<_> = (0..count).map(start).collect();
    let (mut borrowed, mut current) = (0, 0);
    for _ in 0..STEPS {
        let chosen = rng.usize(0..processes.len());
        let process = &mut processes[chosen];
        // A policy changes now and then.
        if rng.u8(0..16) == 0 {
            current = rng.usize(0..policies.len());
        }
        let policy = &policies[current];
        match rng.u8(0..24) {
            0..12 => {
                for _ in 0..rng.u8(1..12) {
                    borrowed += u64::from(process.call(rng, policy));
                    if rng.bool() {
                        yield_now().await;
                    }
                }
            }
            12..17 => {
                let span = span(rng);
                bank.lock().unwrap().clock.advance(Duration::from_micros(span));
                for process in &processes {
                    process
                        .clock
                        .advance(Duration::from_micros(span * process.pace / 100));
                }
            }
            17..20 => bank.lock().unwrap().release(),
            20 => process.refund(rng, policy, policies),
            // All who wait have waited in vain.
            21 if rng.bool() => bank.lock().unwrap().time_out(),
            22 if count == 1 => reset(rng, process, policy).await,
            23 if rng.u8(0..4) == 0 => {
                let last = std::mem::replace(process, start(rng.u64(..)));
                // It is killed, dropped, or shut down.
                match rng.u8(0..3) {
                    0 => last.teller.is_killed.store(true, Ordering::Relaxed),
                    1 => drop(last),
                    _ => last.shut_down(policy).await,
                }
            }
            _ => {}
        }
        turns(rng).await;
        let bank = bank.lock().unwrap();
        let lent = bank.leased(policy.algorithm());
        let held: u64 = processes.iter().map(|process| process.held(policies)).sum();
        assert!(held <= lent, "{held} are held, {lent} lent: {bank:?}");
        if let [policy] = policies {
            let stored = bank.remaining(policy.algorithm());
            assert!(
                stored + lent <= policy.algorithm().quota(),
                "{stored} + {lent}: {bank:?}"
            );
        }
    }
    let bank = bank.lock().unwrap();
    assert_kept(&bank.grants, policies);
    borrowed
}

/// As the guard does it; what was granted before counts no more.
async fn reset(rng: &mut Rng, process: &mut Process, policy: &Policy) {
    let request = request(policy, 1);
    process.leases.forget(&request);
    turns(rng).await;
    {
        let mut bank = process.teller.bank();
        // Two states that begin at one moment would give their epochs the same numbers.
        bank.clock.advance(Duration::from_micros(1));
        bank.state = crate::algorithm::StepState::Absent;
    }
    turns(rng).await;
    process.leases.forget(&request);
    process.granted = 0;
    process.teller.bank().grants.clear();
}

/// From any moment on no more than the largest capacity and what has come since at the fastest
/// rate.
fn assert_kept(grants: &[(u64, i128)], policies: &[Policy]) {
    let limits = policies.iter().map(|policy| match *policy.algorithm() {
        Algorithm::TokenBucket(limit) => (limit.capacity, limit.rate),
        Algorithm::Funnel(limit) => (limit.capacity, limit.rate),
        _ => unreachable!("nothing is lent of a window"),
    });
    let limits: Vec<_> = limits.collect();
    let capacity = limits.iter().map(|limit| limit.0).max().unwrap_or(0);
    let faster = |one: Rate, other: Rate| {
        let is_faster = u128::from(one.thousandths) * u128::from(other.micros)
            > u128::from(other.thousandths) * u128::from(one.micros);
        if is_faster { one } else { other }
    };
    let rate = limits.iter().map(|limit| limit.1).reduce(faster).unwrap();
    let (amount, per) = (i128::from(rate.thousandths), i128::from(rate.micros));
    let (mut sum, mut least) = (0, i128::MAX);
    for (at, cost) in grants {
        least = least.min(sum * per - amount * i128::from(*at));
        sum += cost;
        let used = sum * per - amount * i128::from(*at) - least;
        assert!(
            used <= i128::from(capacity) * per,
            "{} of {per} too much at {at}: {grants:?}",
            used - i128::from(capacity) * per
        );
    }
}

#[expect(clippy::print_stdout, reason = "the seed repeats a failed run")]
async fn each(policies: impl Fn(&mut Rng) -> Vec<Policy>, processes: u64) {
    let setting = |name: &str| std::env::var(name).ok().map(|value| value.parse().unwrap());
    let seed = setting("LIMITER_SEED").unwrap_or_else(|| fastrand::u64(..));
    let histories = setting("LIMITER_HISTORIES").unwrap_or(200);
    println!("LIMITER_SEED={seed}");
    let mut borrowed = 0;
    for number in 0..histories {
        let mut rng = Rng::with_seed(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let policies = policies(&mut rng);
        let shown: Vec<_> = policies.iter().map(ToString::to_string).collect();
        println!("history {number}: {shown:?}");
        borrowed += play(&mut rng, &policies, processes).await;
    }
    println!("{borrowed} were borrowed and spent");
    assert!(
        borrowed > histories * 10,
        "too little was borrowed to say anything: {borrowed}"
    );
}

fn one_policy(rng: &mut Rng) -> Vec<Policy> {
    let funnel = rng.bool();
    vec![policy(rng, funnel)]
}

#[tokio::test]
async fn processes_that_borrow_keep_the_promise_whatever_becomes_of_their_questions() {
    each(one_policy, 3).await;
}

#[tokio::test]
async fn a_policy_that_changes_while_processes_borrow_mints_nothing() {
    // Of one algorithm, since another has a state of its own.
    let versions = |rng: &mut Rng| {
        let funnel = rng.bool();
        vec![policy(rng, funnel), policy(rng, funnel)]
    };
    each(versions, 3).await;
}

#[tokio::test]
async fn a_reset_begins_anew_whatever_is_on_its_way() {
    each(one_policy, 1).await;
}
