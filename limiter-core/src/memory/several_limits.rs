//! The fast step of two to four limits in process: charges of several buckets and funnels take a
//! fifth of the instructions of the general step.
//!
//! It applies if the states of all limits are fast levels. It reads each state once in place,
//! copies no state, allocates nothing and computes no numbers. The general decision
//! (`MemoryStore::decide_now`) handles all other states. Tests: below, and `tests/contract`.

use crate::algorithm::{FastOutcome, Mode, StepState};
use crate::memory::MemoryStore;
use crate::request::IdentifiedLimit;
use crate::units::Timestamp;

impl MemoryStore {
    /// Decides several limits by the fast step: all are charged, or none. `None` means that nothing
    /// was changed, because a limit is a window, or a state is absent or was stored by another
    /// algorithm.
    ///
    /// The number of limits is a constant, so that the compiler unrolls the loops.
    #[inline]
    pub(crate) fn decide_several_fast<const N: usize>(
        &self,
        limits: &[IdentifiedLimit<'_>; N],
        mode: Mode,
    ) -> Option<(Timestamp, [FastOutcome; N])> {
        let before = self.clock.reading();
        let mut tables = self.lock_each(limits);
        let decided_at = tables.decide_at(before, &self.clock);
        let now = decided_at.as_micros();
        let mut outcomes = [FastOutcome::default(); N];
        let mut entries = [0; N];
        let mut fits = true;
        for (number, ((limit, outcome), entry)) in
            limits.iter().zip(&mut outcomes).zip(&mut entries).enumerate()
        {
            let table = tables.of(number)?;
            *entry = table.position(limit.identity)?;
            let StepState::Fast(level) = table.state_at(*entry)? else {
                return None;
            };
            *outcome = level.peek(limit.policy.algorithm(), limit.cost, now)?;
            fits &= outcome.fits();
        }
        if fits && mode == Mode::Charge {
            for (number, ((limit, outcome), entry)) in
                limits.iter().zip(&mut outcomes).zip(entries).enumerate()
            {
                if limit.cost == 0 {
                    continue;
                }
                if let Some(StepState::Fast(level)) =
                    tables.of(number).and_then(|table| table.state_at(entry))
                {
                    *outcome = level.charge(*outcome, limit.cost, now);
                }
            }
        }
        drop(tables);
        self.sweep_some(now);
        Some((decided_at, outcomes))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::time::Duration;

    use crate::ManualClock;
    use crate::algorithm::{StepOutcome, StepResult};
    use crate::memory::several_limits::*;
    use crate::policy::Policy;
    use crate::request::{DecisionRequest, LimitRequest};
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

    impl MemoryStore {
        /// Returns the computed outcomes of a decision by the fast step.
        fn decide_fast_if_possible<const N: usize>(
            &self,
            requests: [&LimitRequest<'_>; N],
            mode: Mode,
        ) -> Option<(Timestamp, Vec<StepOutcome>)> {
            let limits = IdentifiedLimit::identify_all(&requests.map(Clone::clone), false)?;
            let (decided_at, outcomes) = self.decide_several_fast(&limits, mode)?;
            let numbers = outcomes.iter().zip(&limits);
            let numbers =
                numbers.map(|(outcome, limit)| StepResult::Level(*outcome).outcome(limit.policy.algorithm()));
            Some((decided_at, numbers.collect()))
        }
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
            let fast_decision = match &requests[..] {
                [first, second] => fast_store.decide_fast_if_possible([first, second], mode),
                [first, second, third] => fast_store.decide_fast_if_possible([first, second, third], mode),
                [first, second, third, fourth] => {
                    fast_store.decide_fast_if_possible([first, second, third, fourth], mode)
                }
                _ => None,
            };
            let actual = match fast_decision {
                Some((decided_at, outcomes)) => {
                    assert_eq!(decided_at, expected.decided_at);
                    fast[usize::from(outcomes.iter().all(|outcome| outcome.fits))] += 1;
                    outcomes.into()
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
        let each = |requests, any_groups| IdentifiedLimit::identify_all::<2>(&requests, any_groups);
        assert!(each([limit(0, "a"), limit(1, "a")], false).is_some());
        assert!(each([limit(0, "a"), limit(1, "b")], true).is_some());
        assert!(
            each([limit(0, "a"), limit(1, "b")], false).is_none(),
            "two groups"
        );
        assert!(each([limit(0, "a"), limit(0, "a")], false).is_none(), "repeated");
        assert!(
            each([limit(0, "a"), limit(1, "a").cost(99)], false).is_none(),
            "never fits"
        );
    }
}
