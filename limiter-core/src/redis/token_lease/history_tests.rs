//! Random histories of processes that lease tokens of one key, with clocks of different pace: late
//! and lost replies, cancelled calls, killed processes, policy changes, resets and refunds. In
//! every history, remaining and leased tokens together never exceed the capacity, and grants in any
//! time T never exceed capacity + rate·T.
//!
//! `LIMITER_HISTORIES` sets the number of histories, `LIMITER_SEED` repeats a run.
//!
//! Tests: `leases_respect_limit_despite_lost_replies`,
//! `policy_change_during_leases_creates_no_tokens`,
//! `reset_restores_full_limit_despite_pending_requests`.

mod model_store;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tokio::task::yield_now;

use crate::algorithm::Mode;
use crate::policy::{Algorithm, Policy, Rate};
use crate::redis::token_lease::Leases;
use crate::redis::token_lease::history_tests::model_store::{ModelLender, ModelStore};
use crate::request::{DecisionRequest, LimitRequest};
use crate::support::clock::{Clock, ManualClock};
use crate::units::Amount;

/// Far beyond the end of a history: `ModelStore::time_out` ends deadlines.
const DEADLINE: Duration = Duration::from_secs(3_600);
const STEPS: usize = 150;

/// One process. Its clock runs at `pace` hundredths of the store's pace.
struct Process {
    leases: Leases<ModelLender>,
    lender: ModelLender,
    clock: ManualClock,
    pace: u64,
    /// Grants from leased tokens that may still be refunded once.
    granted: u64,
}

impl Process {
    fn start(store: &Arc<Mutex<ModelStore>>, pace: u64) -> Self {
        let lender = ModelLender {
            store: Arc::clone(store),
            is_killed: Arc::default(),
        };
        let clock = ManualClock::new();
        Self {
            leases: Leases::new(lender.clone(), Clock::Manual(clock.clone())),
            lender,
            clock,
            pace,
            granted: 0,
        }
    }

    /// A call in the order of the real decision path.
    fn call(&mut self, rng: &mut Rng, policy: &Policy) -> bool {
        let cost = cost(rng, policy);
        let request = request(policy, cost);
        if let Some(decision) = self.leases.decide(&request) {
            assert!(decision.is_allowed());
            self.granted += cost;
            self.lender.store().granted(cost);
            return true;
        }
        match self.leases.request_refill(&request) {
            // The caller is cancelled.
            Some(answer) if rng.u8(0..8) == 0 => drop(answer),
            Some(answer) => drop(tokio::spawn(answer)),
            None => self.lender.store().decide(policy.algorithm(), cost),
        }
        false
    }

    fn refund(&mut self, rng: &mut Rng, policy: &Policy, policies: &[Policy]) {
        let cost = rng.u64(0..=self.granted.min(policy.algorithm().quota()));
        self.granted -= cost;
        let request = request(policy, cost);
        let rest = self.leases.refund(&request.limits[0], 0);
        let back = cost - rest;
        let mut store = self.lender.store();
        store.gave_back(back);
        let refunded = store.refund(policy.algorithm(), rest);
        // Under another policy version, a larger amount may have been refunded.
        store.gave_back(if policies.len() == 1 {
            refunded
        } else {
            cost - back
        });
    }

    /// Shuts down and verifies that no tokens are held or requested afterwards.
    async fn shut_down(self, policy: &Policy) {
        let left = async {
            self.leases.shutdown().await;
        };
        // A request without a reply delays the shutdown until its deadline.
        tokio::select! {
            biased;
            () = left => {}
            () = async {
                loop {
                    yield_now().await;
                    self.lender.store().time_out();
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
        // A balance belongs to one of the policies.
        held.max().unwrap_or(0)
    }
}

fn request(policy: &Policy, cost: u64) -> DecisionRequest<'_> {
    let lease_request = LimitRequest::new(policy, "k").cost(Amount::from_thousandths(cost));
    DecisionRequest::new([lease_request], Mode::Charge, true).unwrap()
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

/// Lets the spawned tasks run for a random number of turns.
async fn turns(rng: &mut Rng) {
    for _ in 0..rng.u8(0..12) {
        yield_now().await;
    }
}

/// Plays a history of processes that share a key. Returns the number of calls decided from leased
/// tokens.
async fn play(rng: &mut Rng, policies: &[Policy], count: u64) -> u64 {
    let store = Arc::new(Mutex::new(ModelStore::new(rng.fork())));
    let start = |number: u64| Process::start(&store, [100, 97, 103][(number % 3) as usize]);
    let mut processes: Vec<_> = (0..count).map(start).collect();
    let (mut local_grants, mut current) = (0, 0);
    for _ in 0..STEPS {
        let chosen = rng.usize(0..processes.len());
        let process = &mut processes[chosen];
        // The policy changes occasionally.
        if rng.u8(0..16) == 0 {
            current = rng.usize(0..policies.len());
        }
        let policy = &policies[current];
        match rng.u8(0..24) {
            0..12 => {
                for _ in 0..rng.u8(1..12) {
                    local_grants += u64::from(process.call(rng, policy));
                    if rng.bool() {
                        yield_now().await;
                    }
                }
            }
            12..17 => {
                let span = span(rng);
                store.lock().unwrap().clock.advance(Duration::from_micros(span));
                for process in &processes {
                    process
                        .clock
                        .advance(Duration::from_micros(span * process.pace / 100));
                }
            }
            17..20 => store.lock().unwrap().release(),
            20 => process.refund(rng, policy, policies),
            // All pending requests time out.
            21 if rng.bool() => store.lock().unwrap().time_out(),
            22 if count == 1 => reset(rng, process, policy).await,
            23 if rng.u8(0..4) == 0 => {
                let last = std::mem::replace(process, start(rng.u64(..)));
                // The process is killed, dropped, or shut down.
                match rng.u8(0..3) {
                    0 => last.lender.is_killed.store(true, Ordering::Relaxed),
                    1 => drop(last),
                    _ => last.shut_down(policy).await,
                }
            }
            _ => {}
        }
        turns(rng).await;
        let store = store.lock().unwrap();
        let leased = store.leased(policy.algorithm());
        let held: u64 = processes.iter().map(|process| process.held(policies)).sum();
        assert!(held <= leased, "{held} are held, {leased} leased: {store:?}");
        if let [policy] = policies {
            let stored = store.remaining(policy.algorithm());
            assert!(
                stored + leased <= policy.algorithm().quota(),
                "{stored} + {leased}: {store:?}"
            );
        }
    }
    let store = store.lock().unwrap();
    assert_bounded(&store.grants, policies);
    local_grants
}

/// Resets the key as the limiter does; earlier grants no longer count.
async fn reset(rng: &mut Rng, process: &mut Process, policy: &Policy) {
    let request = request(policy, 1);
    process.leases.forget(&request);
    turns(rng).await;
    {
        let mut store = process.lender.store();
        // Two states that start at one moment would give equal numbers to their epochs.
        store.clock.advance(Duration::from_micros(1));
        store.state = crate::algorithm::StepState::Absent;
    }
    turns(rng).await;
    process.leases.forget(&request);
    process.granted = 0;
    process.lender.store().grants.clear();
}

/// Asserts that grants from any moment on never exceed the largest capacity plus the amount that
/// the fastest rate refills.
fn assert_bounded(grants: &[(u64, i128)], policies: &[Policy]) {
    let limits = policies.iter().map(|policy| match *policy.algorithm() {
        Algorithm::TokenBucket(limit) => (limit.capacity, limit.rate),
        Algorithm::Funnel(limit) => (limit.capacity, limit.rate),
        _ => unreachable!("windows have no leases"),
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
    let mut local_grants = 0;
    for number in 0..histories {
        let mut rng = Rng::with_seed(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let policies = policies(&mut rng);
        let shown: Vec<_> = policies.iter().map(ToString::to_string).collect();
        println!("history {number}: {shown:?}");
        local_grants += play(&mut rng, &policies, processes).await;
    }
    println!("{local_grants} calls were decided from leased tokens");
    assert!(
        local_grants > histories * 10,
        "too few calls were decided from leased tokens: {local_grants}"
    );
}

fn one_policy(rng: &mut Rng) -> Vec<Policy> {
    let funnel = rng.bool();
    vec![policy(rng, funnel)]
}

#[tokio::test]
async fn leases_respect_limit_despite_lost_replies() {
    each(one_policy, 3).await;
}

#[tokio::test]
async fn policy_change_during_leases_creates_no_tokens() {
    // Versions share the algorithm, since another algorithm has a state of its own.
    let versions = |rng: &mut Rng| {
        let funnel = rng.bool();
        vec![policy(rng, funnel), policy(rng, funnel)]
    };
    each(versions, 3).await;
}

#[tokio::test]
async fn reset_restores_full_limit_despite_pending_requests() {
    each(one_policy, 1).await;
}
