//! Decides in process while the store is out: each replica applies its share of the policy.
//!
//! The share is a limit of its own, with a state of its own that lasts over several outages, so that in any time T a replica
//! admits no more than its share's quota and rate allow, however often the store comes and goes. What the store said last
//! only ever takes permits away from it.

mod seen;

use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::{Change, Mode, Outcome, State, owe, step};
use crate::clock::Clock;
use crate::error::StoreError;
use crate::policy::{Algorithm, CounterWindow, FixedWindow, Funnel, SlidingWindow, TokenBucket};
use crate::request::{Limit, Request, Verdict};
use crate::store::MemoryStore;
use crate::units::{Timestamp, micros_ceil};
use seen::{Left, Seen};

/// When to ask again for a cost that is above the share. The store is back by then, or it is not.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// The limits of this replica alone.
#[derive(Debug)]
pub(super) struct Insurance {
    store: MemoryStore,
    seen: Seen,
    clock: Clock,
}

/// What a replica may admit of one limit.
#[derive(Debug)]
struct Share {
    /// The share that is applied: a window's without what is used elsewhere.
    applied: Algorithm,
    /// All of it.
    whole: Algorithm,
    /// What the store had left, as long as some of it is used.
    left: Option<Left>,
}

impl Insurance {
    /// Keeps so many keys at most, of those that are limited here, and of those of which is known what the store had left.
    pub(super) fn new(clock: Clock, max_keys: usize) -> Self {
        Self {
            store: MemoryStore::new(clock.clone(), max_keys),
            seen: Seen::new(max_keys),
            clock,
        }
    }

    /// Remembers what the store has left.
    pub(super) fn heard(&self, request: &Request<'_>, verdict: &Verdict, now: Timestamp) {
        let now = now.as_micros();
        for (limit, outcome) in request.limits.iter().zip(&verdict.outcomes) {
            let left = Left {
                remaining: outcome.remaining,
                owed: owed(limit, outcome),
                as_of: now,
                until: now.saturating_add(outcome.reset_after),
                decided_at: verdict.decided_at.as_micros(),
            };
            self.seen.note(limit.identity.hash(), left);
        }
    }

    /// Forgets what was used and what was heard.
    pub(super) fn forget(&self, request: &Request<'_>) {
        for limit in &request.limits {
            self.seen.forget(limit.identity.hash());
            self.store.forget(limit);
        }
    }

    /// Decides by the share of one of so many replicas. A cost above the share is denied.
    pub(super) fn decide(&self, request: &Request<'_>, replicas: u32) -> Result<Verdict, StoreError> {
        let now = self.clock.now().as_micros();
        let shares: SmallVec<[Share; 2]> = request
            .limits
            .iter()
            .map(|limit| self.share(limit, replicas, now))
            .collect();
        let applied: SmallVec<[Algorithm; 2]> = shares.iter().map(|share| share.applied).collect();
        let each = || request.limits.iter().zip(&shares);
        let mode = if request.mode == Mode::Charge && each().any(|(limit, share)| share.is_below(limit.cost))
        {
            Mode::Refuse
        } else {
            request.mode
        };
        let mut verdict = self
            .store
            .decide_as(request, mode, &applied, |number, state, now| {
                if let Some(share) = shares.get(number) {
                    share.begin(state, now.as_micros());
                }
            })?;
        for (outcome, (limit, share)) in verdict.outcomes.iter_mut().zip(each()) {
            share.finish(outcome, limit.cost, now);
        }
        Ok(verdict)
    }

    /// Gives back to the share of one of so many replicas, or charges it whatever is left. A refund takes no room, so that it
    /// does not fail.
    pub(super) fn change(
        &self,
        request: &Request<'_>,
        change: Change,
        replicas: u32,
    ) -> Result<(), StoreError> {
        for limit in &request.limits {
            let share = limit.policy.algorithm().share(replicas);
            self.store.change_as(limit, &share, change)?;
        }
        Ok(())
    }

    fn share(&self, limit: &Limit<'_>, replicas: u32, now: u64) -> Share {
        // A key is blocked or not: of that there are no shares.
        let replicas = if limit.blocks.is_some() { 1 } else { replicas };
        let whole = limit.policy.algorithm().share(replicas);
        let left = self.seen.get(limit.identity.hash(), now).map(|left| Left {
            remaining: left.remaining.div_ceil(u64::from(replicas)).min(whole.quota()),
            owed: left.owed.div_ceil(u64::from(replicas)),
            ..left
        });
        let applied = match (whole, left) {
            // Until the newest permit that the store has given leaves the window, those that it has given count.
            (Algorithm::SlidingWindow(window), Some(left)) => Algorithm::SlidingWindow(SlidingWindow {
                limit: left.remaining,
                ..window
            }),
            // Until its period ends.
            (Algorithm::FixedWindow(window), Some(left)) => Algorithm::FixedWindow(FixedWindow {
                limit: left.remaining,
                ..window
            }),
            (Algorithm::CounterWindow(window), Some(left)) => Algorithm::CounterWindow(CounterWindow {
                limit: window.limit - still_counts(window, left, now),
                ..window
            }),
            _ => whole,
        };
        Share { applied, whole, left }
    }
}

impl Share {
    /// Whether a cost can never fit, or not before what the store had left is of no account any more.
    fn is_below(&self, cost: u64) -> bool {
        cost > self.applied.quota()
    }

    /// Takes from a level what it has beyond its part of what the store had left. Done again it takes nothing more, since
    /// both come back at the same rate.
    fn begin(&self, state: &mut State, now: u64) {
        let Some(left) = self.left else { return };
        if self.whole.is_window() {
            return;
        }
        // The share as it would stand had it been used as the whole was.
        let mut heard = State::Absent;
        let used = self.whole.quota() - left.remaining;
        step(&self.whole, &mut heard, used, left.as_of.min(now), Mode::Charge);
        if left.owed > 0 {
            owe(&self.whole, &mut heard, left.owed, left.as_of.min(now));
        }
        if state.is_spent(now) {
            *state = heard;
            return;
        }
        if left.owed > 0 {
            // Nothing remains of either, so they are told apart by when they are whole again.
            let whole_in = |state| step(&self.whole, state, 0, now, Mode::Peek).reset_after;
            let later = whole_in(&mut heard).saturating_sub(whole_in(state));
            owe(&self.whole, state, comes_in(&self.whole, later), now);
            return;
        }
        let remaining = |state| step(&self.whole, state, 0, now, Mode::Peek).remaining;
        let beyond = remaining(state).saturating_sub(remaining(&mut heard));
        step(&self.whole, state, beyond, now, Mode::Charge);
    }

    /// Time until what the store had given leaves room for a cost that the share as a whole has room for.
    fn room_in(&self, cost: u64, now: u64) -> u64 {
        let Some(left) = self.left else { return 0 };
        let over_in = left.until.saturating_sub(now);
        match self.whole {
            // What was given counts less and less.
            Algorithm::CounterWindow(window) => {
                over_in.saturating_sub(counts_so_little(window, left, window.limit.saturating_sub(cost)))
            }
            _ => over_in,
        }
    }

    /// Says when to ask again, where that is not only up to the share.
    fn finish(&self, outcome: &mut Outcome, cost: u64, now: u64) {
        if cost > self.whole.quota() {
            outcome.fits = false;
            outcome.retry_after = micros_ceil(ASK_AGAIN_AFTER);
        } else if self.is_below(cost) {
            outcome.fits = false;
            outcome.retry_after = self.room_in(cost, now).max(1);
        }
        if let (Some(left), true) = (self.left, self.whole.is_window()) {
            outcome.reset_after = outcome.reset_after.max(left.until.saturating_sub(now));
        }
    }
}

/// What a limit owes beyond its quota: nothing is said of that but when all has come back. What is lent comes back later than at
/// the rate, so that nothing is taken for a debt that may be a loan.
fn owed(limit: &Limit<'_>, outcome: &Outcome) -> u64 {
    if outcome.remaining > 0 {
        return 0;
    }
    let algorithm = limit.policy.algorithm();
    let lease = limit.policy.lease().map_or(0, micros_ceil);
    let comes = comes_in(algorithm, outcome.reset_after.saturating_sub(lease));
    comes.saturating_sub(algorithm.quota())
}

/// What comes back of a level in some time.
fn comes_in(algorithm: &Algorithm, time: u64) -> u64 {
    match algorithm {
        Algorithm::TokenBucket(TokenBucket { rate, .. }) | Algorithm::Funnel(Funnel { rate, .. }) => {
            rate.accrue(time, 0).0
        }
        _ => 0,
    }
}

/// How much still counts of what had been used of a counter window: in its last window what had been used counts less and
/// less, and before, as far as is known, in full.
fn still_counts(window: CounterWindow, left: Left, now: u64) -> u64 {
    let used = window.limit.saturating_sub(left.remaining);
    let fades_for = window.window.min(left.until.saturating_sub(left.as_of));
    let still = left.until.saturating_sub(now).min(fades_for);
    let counts = (u128::from(used) * u128::from(still)).div_ceil(u128::from(fades_for.max(1)));
    // Not more than had been used.
    u64::try_from(counts).unwrap_or(used).min(window.limit)
}

/// How long before its end no more than `rest` still counts of what had been used of a counter window: the inverse of
/// [`still_counts`].
fn counts_so_little(window: CounterWindow, left: Left, rest: u64) -> u64 {
    let used = window.limit.saturating_sub(left.remaining).max(1);
    let fades_for = window.window.min(left.until.saturating_sub(left.as_of));
    u64::try_from(u128::from(rest) * u128::from(fades_for) / u128::from(used)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Outcome;
    use crate::clock::ManualClock;
    use crate::policy::Policy;
    use crate::request::Ask;

    fn policies() -> [Policy; 6] {
        [
            Policy::token_bucket("b")
                .capacity(10)
                .rate("4/s")
                .build()
                .unwrap(),
            Policy::funnel("f").capacity(10).rate("4/s").build().unwrap(),
            Policy::sliding_window("w")
                .limit(10)
                .window("2s")
                .build()
                .unwrap(),
            Policy::counter_window("c")
                .limit(10)
                .window("2s")
                .build()
                .unwrap(),
            Policy::fixed_window("x").limit(10).window("2s").build().unwrap(),
            Policy::fixed_window("a")
                .limit(10)
                .window("2s")
                .aligned("utc")
                .build()
                .unwrap(),
        ]
    }

    /// Whatever the store says in between, and however often it comes and goes, a share is never exceeded.
    #[test]
    fn a_share_holds_over_any_time_whatever_the_store_says() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        for round in 0..600 {
            let policy = &policies()[round % 6];
            let replicas = random.u32(1..5);
            let share = policy.algorithm().share(replicas);
            let clock = ManualClock::new();
            let insurance = Insurance::new(Clock::Manual(clock.clone()), 100);
            let mut admitted: Vec<(u64, u64)> = Vec::new();
            for _ in 0..200 {
                clock.advance(Duration::from_millis(random.u64(0..300)));
                let cost = random.u32(0..3);
                let request = Request::new([Ask::new(policy, "k").cost(cost)], Mode::Charge, false).unwrap();
                if random.bool() {
                    let quota = policy.algorithm().quota();
                    let outcome = Outcome {
                        remaining: random.u64(..=quota),
                        reset_after: random.u64(1..2_500_000),
                        ..Outcome::default()
                    };
                    let decided_at = clock.now();
                    let outcomes = [outcome].into_iter().collect();
                    insurance.heard(&request, &Verdict { decided_at, outcomes }, decided_at);
                } else {
                    let verdict = insurance.decide(&request, replicas).unwrap();
                    if verdict.outcomes[0].fits && cost > 0 {
                        admitted.push((clock.now().as_micros(), request.limits[0].cost));
                    }
                }
            }
            let (mut until, mut sum) = (0, 0);
            for (at, cost) in &admitted {
                let Algorithm::FixedWindow(window) = share else {
                    break;
                };
                if *at >= until {
                    (until, sum) = (window.end(*at), 0);
                }
                sum += cost;
                assert!(
                    sum <= window.limit,
                    "seed {seed}, {policy} over {replicas}: {sum}"
                );
            }
            for (first, (from, _)) in admitted.iter().enumerate() {
                let mut sum = 0;
                for (at, cost) in &admitted[first..] {
                    sum += cost;
                    let most = match share {
                        Algorithm::SlidingWindow(window) if at - from >= window.window => break,
                        Algorithm::SlidingWindow(window) => window.limit,
                        Algorithm::CounterWindow(window) => {
                            window.limit + window.limit * (at - from) / window.window
                        }
                        Algorithm::FixedWindow(_) => break,
                        Algorithm::Concurrency(_) => unreachable!("what is in flight has no rate"),
                        Algorithm::TokenBucket(crate::policy::TokenBucket { capacity, rate })
                        | Algorithm::Funnel(crate::policy::Funnel { capacity, rate, .. }) => {
                            capacity + rate.accrue(at - from, rate.micros - 1).0
                        }
                    };
                    assert!(
                        sum <= most,
                        "seed {seed}, {policy} over {replicas}: {sum} in {} µs",
                        at - from
                    );
                }
            }
        }
    }

    /// With everything used up at the store, and one replica, the insurance admits when the store would.
    #[test]
    fn a_lone_replica_goes_on_where_the_store_left_off() {
        for policy in policies() {
            let clock = ManualClock::new();
            let store = MemoryStore::new(Clock::Manual(clock.clone()), 10);
            let insurance = Insurance::new(Clock::Manual(clock.clone()), 100);
            let request = Request::new([Ask::new(&policy, "k")], Mode::Charge, false).unwrap();
            for _ in 0..13 {
                clock.advance(Duration::from_millis(10));
                insurance.heard(&request, &store.decide_now(&request).unwrap(), clock.now());
            }
            let (mut whole, mut part) = (0, 0);
            for _ in 0..500 {
                clock.advance(Duration::from_millis(7));
                whole += i32::from(store.decide_now(&request).unwrap().outcomes[0].fits);
                part += i32::from(insurance.decide(&request, 1).unwrap().outcomes[0].fits);
                assert!(part <= whole, "{policy}");
            }
            // A fraction of a permit is not told; and a window's permits count as if all had been given with the newest.
            assert!(whole - part <= 1, "{policy}: {part} of {whole}");
        }
    }

    /// A denial for what the store had given ends when it says so: a microsecond earlier it is still one.
    #[test]
    fn what_a_counter_window_had_given_is_waited_for_no_longer_than_it_counts() {
        let policy = Policy::counter_window("c")
            .limit(100)
            .window("1h")
            .build()
            .unwrap();
        let hour = 3_600_000_000;
        for (remaining, cost, reset_after) in [
            (0, 1, 2 * hour),
            (10, 30, 2 * hour),
            (0, 100, hour),
            (7, 8, hour / 2),
        ] {
            let clock = ManualClock::new();
            let insurance = Insurance::new(Clock::Manual(clock.clone()), 100);
            let request = Request::new([Ask::new(&policy, "k").cost(cost)], Mode::Charge, false).unwrap();
            let outcome = Outcome {
                remaining,
                reset_after,
                ..Outcome::default()
            };
            let decided_at = clock.now();
            let outcomes = [outcome].into_iter().collect();
            insurance.heard(&request, &Verdict { decided_at, outcomes }, decided_at);
            let fits = |insurance: &Insurance| insurance.decide(&request, 1).unwrap().outcomes[0];
            let denied = fits(&insurance);
            assert!(!denied.fits && denied.retry_after > 0, "{remaining} {cost}");
            clock.advance(Duration::from_micros(denied.retry_after - 1));
            assert!(!fits(&insurance).fits, "{remaining} {cost}: too late");
            clock.advance(Duration::from_micros(1));
            assert!(fits(&insurance).fits, "{remaining} {cost}: too early");
        }
    }
}
