//! The fast step of several limits.
//!
//! A decision on several limits whose states are fast levels takes a fifth of the instructions of
//! the general one: it reads each state once in place, copies no state, and computes no numbers.
//! The general decision (`MemoryStore::decide_now`) handles all other states. Tests: below, and
//! `tests/contract`.

use smallvec::SmallVec;

use crate::algorithm;
use crate::algorithm::{FastOutcome, Mode};
use crate::memory::MemoryStore;
use crate::request::IdentifiedLimit;
use crate::units::Timestamp;

/// One outcome for each limit of a decision.
pub(crate) type FastOutcomes = SmallVec<[FastOutcome; 4]>;

impl MemoryStore {
    /// Decides several limits by the fast step: all are charged, or none. `None` means that nothing
    /// was changed, because a limit is a window, or a state is absent or was stored by another
    /// algorithm.
    #[inline]
    pub(crate) fn decide_steadily_together(
        &self,
        limits: &[IdentifiedLimit<'_>],
        mode: Mode,
    ) -> Option<(Timestamp, FastOutcomes)> {
        let before = self.clock.reading();
        let mut locks = self.lock_all(limits.iter().map(|limit| limit.identity));
        let decided_at = locks.decide_at(before, &self.clock);
        let now = decided_at.as_micros();
        let mut outcomes = FastOutcomes::new();
        let mut places: SmallVec<[usize; 4]> = SmallVec::new();
        let mut fits = true;
        for limit in limits {
            let table = locks.table(limit.identity);
            let place = table.position(limit.identity)?;
            let state = table.state_at(place)?;
            let outcome = algorithm::step_fast(limit.policy.algorithm(), state, limit.cost, now, Mode::Peek)?;
            fits &= outcome.fits();
            places.push(place);
            outcomes.push(outcome);
        }
        if fits && mode == Mode::Charge {
            for ((limit, place), outcome) in limits.iter().zip(places).zip(&mut outcomes) {
                let state = locks.table(limit.identity).state_at(place)?;
                // The same step as before on the same state, which therefore succeeds.
                *outcome = algorithm::step_fast(limit.policy.algorithm(), state, limit.cost, now, mode)?;
            }
        }
        drop(locks);
        self.sweep_some(now);
        Some((decided_at, outcomes))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::time::Duration;

    use crate::ManualClock;
    use crate::algorithm::StepResult;
    use crate::memory::together::*;
    use crate::policy::Policy;
    use crate::request::{DecisionRequest, LimitRequest, identify};
    use crate::support::clock::Clock;

    /// Buckets and funnels of which each may deny, and a window, which has no fast level.
    fn policies() -> Vec<Policy> {
        let bucket = |name, capacity| Policy::token_bucket(name).capacity(capacity).rate("7/3s").build();
        let funnel = Policy::funnel("funnel").capacity(6).rate("2/s").build();
        let window = Policy::sliding_window("window").limit(9).window("5s").build();
        [
            bucket("small", 3),
            bucket("large", 8),
            bucket("wide", 20),
            funnel,
            window,
        ]
        .into_iter()
        .map(|policy| policy.expect("valid"))
        .collect()
    }

    #[test]
    fn fast_step_of_several_limits_decides_as_general_step() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let (policies, clock) = (policies(), ManualClock::new());
        let store = || MemoryStore::new(Clock::Manual(clock.clone()), usize::MAX);
        let (fast_store, general_store) = (store(), store());
        let mut fast = [0, 0];
        for turn in 0..20_000 {
            let mut chosen = policies.clone();
            random.shuffle(&mut chosen);
            chosen.truncate(random.usize(2..=4));
            // Two keys, so that the limits of a decision have different states.
            let key = ["a", "b"][random.usize(..2)];
            let requests: Vec<_> = chosen
                .iter()
                .map(|policy| LimitRequest::new(policy, key).cost(random.u32(..4)))
                .collect();
            let mode = [Mode::Charge, Mode::Charge, Mode::Peek][random.usize(..3)];
            let request = DecisionRequest::new(requests.clone(), mode, false).expect("valid");
            let expected = general_store.decide_now(&request).expect("not full");
            let limits = identify(&requests, false).expect("valid");
            let actual = match fast_store.decide_steadily_together(&limits, mode) {
                Some((decided_at, outcomes)) => {
                    assert_eq!(decided_at, expected.decided_at);
                    fast[usize::from(outcomes.iter().all(|outcome| outcome.fits()))] += 1;
                    let numbers = outcomes.iter().zip(&chosen);
                    numbers
                        .map(|(outcome, policy)| StepResult::Level(*outcome).outcome(policy.algorithm()))
                        .collect()
                }
                None => fast_store.decide_now(&request).expect("not full").outcomes,
            };
            assert_eq!(actual, expected.outcomes, "{seed}: {turn}, {request:?}");
            clock.advance(Duration::from_millis(random.u64(..400)));
        }
        assert!(
            fast.iter().all(|times| *times > 300),
            "{seed}: {fast:?} of 20,000"
        );
    }

    #[test]
    fn requests_that_need_the_general_decision_are_not_identified() {
        let policies = policies();
        let limit = |number: usize, key: &'static str| LimitRequest::new(&policies[number], key);
        assert!(identify(&[limit(0, "a"), limit(1, "a")], false).is_some());
        assert!(identify(&[limit(0, "a"), limit(1, "b")], true).is_some());
        assert!(
            identify(&[limit(0, "a"), limit(1, "b")], false).is_none(),
            "two groups"
        );
        assert!(
            identify(&[limit(0, "a"), limit(0, "a")], false).is_none(),
            "repeated"
        );
        assert!(
            identify(&[limit(0, "a"), limit(1, "a").cost(99)], false).is_none(),
            "never fits"
        );
        assert!(identify(&[], false).is_none(), "no limit");
        let five = [0, 1, 2, 3, 4].map(|number| limit(number, "a"));
        assert!(identify(&five, false).is_none(), "too many");
    }
}
