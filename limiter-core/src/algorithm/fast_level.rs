//! A level in a form without divisions: charges of one bucket or funnel in process take 12 ns less
//! of 105 (`local-1`, docs/design/benchmark-variants.md).
//!
//! The form is for levels that only one policy charges, which is the common case.
//!
//! Permits are counted in parts of a thousandth; each microsecond adds a whole number of parts.
//! Buckets and funnels then follow the same rule. All other operations (another policy, a clock
//! that stepped back, a refund, a lease) convert the form to its [`Level`], and back if the result
//! has this form. Tests: below.

#[cfg(feature = "redis")]
use crate::algorithm::level::StoredLevel;
use crate::algorithm::level::{Level, signed};
use crate::algorithm::{Mode, StepOutcome, StepState, next_permit};
use crate::policy::{Algorithm, Funnel, Rate, TokenBucket};
use crate::units::MAX_EXACT;

/// The remaining part of a quota that refills at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FastLevel {
    /// Remaining parts; at most `whole`.
    left: u64,
    /// Time of `left`, in microseconds.
    at: u64,
    /// The full quota in parts …
    whole: u64,
    /// … the number of parts per thousandth …
    parts: u64,
    /// … and the number of parts refilled per microsecond.
    gain: u64,
}

/// Executes the step on a fast level, which only one policy has charged. This is the common case,
/// and its result fits in registers.
#[inline(always)]
pub(crate) fn step_fast(
    algorithm: &Algorithm,
    state: &mut StepState,
    cost: u64,
    now: u64,
    mode: Mode,
) -> Option<FastOutcome> {
    match state {
        StepState::Fast(fast) => fast.step(algorithm, cost, now, mode == Mode::Charge && cost > 0),
        _ => None,
    }
}

/// Returns whether levels of the algorithm can have this form.
#[inline]
pub(crate) fn has_fast_level(algorithm: &Algorithm) -> bool {
    from_algorithm(algorithm).is_some()
}

/// Returns the quota and the rate of an algorithm that uses a level.
#[inline]
fn from_algorithm(algorithm: &Algorithm) -> Option<(u64, &Rate)> {
    match algorithm {
        Algorithm::TokenBucket(TokenBucket { capacity, rate })
        | Algorithm::Funnel(Funnel {
            capacity,
            rate,
            // A paced call needs the level before the step, which is unknown after it.
            paced: false,
        }) => Some((*capacity, rate)),
        _ => None,
    }
}

impl FastLevel {
    /// Creates a full level at `now`. `None` if the parts exceed 64 bits or the refill time exceeds
    /// the exact range.
    pub(super) fn unused(algorithm: &Algorithm, now: u64) -> Option<Self> {
        let (quota, rate) = from_algorithm(algorithm)?;
        let whole = quota.checked_mul(rate.micros)?;
        let fast = Self {
            left: whole,
            at: now,
            whole,
            parts: rate.micros,
            gain: rate.thousandths,
        };
        (whole / rate.thousandths < MAX_EXACT).then_some(fast)
    }

    /// Converts a level that was charged at `now` and expires when its usage is zero.
    pub(super) fn from_level(
        algorithm: &Algorithm,
        level: &Level,
        now: u64,
        reset_after: u64,
    ) -> Option<Self> {
        if level.at != now || level.keep_until != now + reset_after {
            return None;
        }
        let unused = Self::unused(algorithm, now)?;
        // The fast form cannot represent a debt.
        let used_or_left = u64::try_from(level.amount).ok()?.checked_mul(level.parts)?;
        let left = match algorithm {
            Algorithm::TokenBucket(_) => used_or_left.checked_add(level.remainder)?,
            _ => unused
                .whole
                .checked_sub(used_or_left.checked_sub(level.remainder)?)?,
        };
        (left <= unused.whole && level.parts == unused.parts).then_some(Self { left, ..unused })
    }

    /// Converts the numbers of a level in an external store. `None` if another policy has charged
    /// the level or extends its life, or if the numbers are invalid.
    #[cfg(feature = "redis")]
    pub(crate) fn from_stored(algorithm: &Algorithm, stored: &StoredLevel) -> Option<Self> {
        let level = stored.level();
        // The other bounds of `StoredLevel::state` follow from those of the form.
        if level.remainder >= level.parts || level.keep_until > 2 * MAX_EXACT {
            return None;
        }
        Self::from_last_charge(algorithm, &level)
    }

    /// Converts a state at its last charge, under the condition of
    /// [`from_stored`](Self::from_stored).
    #[cfg(any(feature = "redis", test))]
    pub(crate) fn from_state(algorithm: &Algorithm, state: &StepState) -> Option<Self> {
        match (state, algorithm) {
            (StepState::Fast(fast), _) => Some(*fast),
            (StepState::TokenBucket(level), Algorithm::TokenBucket(_))
            | (StepState::Funnel(level), Algorithm::Funnel(_)) => Self::from_last_charge(algorithm, level),
            _ => None,
        }
    }

    #[cfg(any(feature = "redis", test))]
    fn from_last_charge(algorithm: &Algorithm, level: &Level) -> Option<Self> {
        let reset_after = level.keep_until.checked_sub(level.at)?;
        let fast = Self::from_level(algorithm, level, level.at, reset_after)?;
        (fast.idle_at() == level.keep_until).then_some(fast)
    }

    /// Converts to the level that this form represents.
    pub(super) fn level(&self, algorithm: &Algorithm) -> Level {
        let used = self.whole - self.left;
        let (amount, remainder) = match algorithm {
            Algorithm::TokenBucket(_) => (self.left / self.parts, self.left % self.parts),
            _ => {
                let amount = used.div_ceil(self.parts);
                (amount, amount * self.parts - used)
            }
        };
        Level {
            amount: signed(amount),
            remainder,
            parts: self.parts,
            at: self.at,
            keep_until: self.idle_at(),
        }
    }

    /// True if the usage is zero at `now`.
    pub(super) fn is_expired(&self, now: u64) -> bool {
        self.left_at(now) == self.whole
    }

    /// Returns the time from which the usage is zero.
    pub(super) fn idle_at(&self) -> u64 {
        self.at + (self.whole - self.left).div_ceil(self.gain)
    }

    /// Returns the remaining parts at a time that is not before the last charge.
    #[inline]
    fn left_at(&self, now: u64) -> u64 {
        let gained = now.saturating_sub(self.at).saturating_mul(self.gain);
        self.left.saturating_add(gained).min(self.whole)
    }

    /// Returns the outcome of a step without a charge, under the condition of [`step`](Self::step).
    #[inline]
    pub(crate) fn peek(&self, algorithm: &Algorithm, cost: u64, now: u64) -> Option<FastOutcome> {
        let (quota, rate) = from_algorithm(algorithm)?;
        let is_same_policy = self.parts == rate.micros
            && self.gain == rate.thousandths
            && quota.checked_mul(self.parts) == Some(self.whole);
        if !is_same_policy || now < self.at {
            return None;
        }
        let cost = cost.checked_mul(self.parts)?;
        let left = self.left_at(now);
        let missing = cost.saturating_sub(left);
        Some(FastOutcome { left, missing })
    }

    /// Executes a step if the policy is the one that charged the level and the clock did not step
    /// back.
    #[inline]
    pub(super) fn step(
        &mut self,
        algorithm: &Algorithm,
        cost: u64,
        now: u64,
        charge: bool,
    ) -> Option<FastOutcome> {
        let mut outcome = self.peek(algorithm, cost, now)?;
        if charge && outcome.fits() {
            outcome = self.charge(outcome, cost, now);
        }
        Some(outcome)
    }

    /// Charges the cost of a [`peek`](Self::peek) that fits, made at the same time.
    #[inline]
    pub(crate) fn charge(&mut self, peeked: FastOutcome, cost: u64, now: u64) -> FastOutcome {
        // `peek` multiplied the cost by the parts without an overflow, and the remaining parts
        // cover the product.
        self.left = peeked.left - cost * self.parts;
        self.at = now;
        FastOutcome {
            left: self.left,
            ..peeked
        }
    }
}

/// The inputs of all numbers of an outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FastOutcome {
    /// Remaining parts after the step.
    left: u64,
    /// Missing parts for the cost to fit.
    missing: u64,
}

impl FastOutcome {
    #[inline]
    pub(crate) fn fits(self) -> bool {
        self.missing == 0
    }

    /// Computes the numbers under the algorithm of the step.
    pub(super) fn outcome(self, algorithm: &Algorithm) -> StepOutcome {
        let Some((quota, rate)) = from_algorithm(algorithm) else {
            return StepOutcome::default();
        };
        let used = quota.saturating_mul(rate.micros).saturating_sub(self.left);
        let reset_after = rate.time_for_parts(used);
        let remaining = rate.thousandths_of(self.left);
        let next = next_permit(remaining).saturating_mul(rate.micros);
        StepOutcome {
            fits: self.fits(),
            remaining,
            retry_after: rate.time_for_parts(self.missing),
            reset_after,
            next_after: rate
                .time_for_parts(next.saturating_sub(self.left))
                .min(reset_after),
            expires_after: reset_after,
            ..StepOutcome::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::algorithm::fast_level::*;
    use crate::algorithm::{level, step};
    use crate::policy::Policy;

    /// Returns two policies, each as a bucket and as a funnel.
    fn algorithms(random: &mut fastrand::Rng) -> Vec<Algorithm> {
        let rates = ["1/s", "7/3s", "999_983/day", "1/30d", "4_000_000/s", "0.001/s"];
        let mut algorithms = Vec::new();
        while algorithms.len() < 4 {
            let capacity = [1_u64, 2, 10, 999, 4_000_000_000][random.usize(..5)];
            let rate = rates[random.usize(..rates.len())];
            let bucket = Policy::token_bucket("p").capacity(capacity).rate(rate).build();
            let funnel = Policy::funnel("p").capacity(capacity).rate(rate).build();
            // The refill time of some capacities exceeds the exact range.
            if let (Ok(bucket), Ok(funnel)) = (bucket, funnel) {
                algorithms.extend([*bucket.algorithm(), *funnel.algorithm()]);
            }
        }
        algorithms
    }

    /// Executes a step on a plain level.
    fn step_on_level(
        algorithm: &Algorithm,
        stored: &mut Option<Level>,
        cost: u64,
        now: u64,
        mode: Mode,
    ) -> StepOutcome {
        let mode = if cost == 0 { Mode::Peek } else { mode };
        let (level, outcome) = match algorithm {
            Algorithm::TokenBucket(limit) => level::step(limit, *stored, cost, now, mode),
            Algorithm::Funnel(limit) => level::step(limit, *stored, cost, now, mode),
            _ => unreachable!(),
        };
        *stored = level.or(*stored);
        outcome
    }

    #[test]
    fn fast_level_equals_plain_level() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut fast = 0;
        for round in 0..3_000 {
            let algorithms = algorithms(&mut random);
            let kind = random.usize(..2);
            let (mut state, mut stored) = (StepState::Absent, None);
            let mut now = 1_700_000_000_000_000;
            let changes = random.u32(..3);
            for turn in 0..40 {
                // Changes the policy occasionally or never.
                let other = usize::from(changes > 0 && random.u32(..4) < changes);
                let algorithm = &algorithms[kind + 2 * other];
                let quota = algorithm.quota();
                let cost = [0, 1, 1_000, quota, quota / 2 + 1][random.usize(..5)].min(quota);
                let mode = [Mode::Charge, Mode::Charge, Mode::Peek, Mode::Refuse][random.usize(..4)];
                let actual = step(algorithm, &mut state, cost, now, mode);
                let expected = step_on_level(algorithm, &mut stored, cost, now, mode);
                assert_eq!(
                    actual, expected,
                    "{seed}: {round} {turn}, {algorithm:?} {cost} {mode:?}"
                );
                let expired = stored.is_none_or(|level| now >= level.keep_until);
                assert_eq!(state.is_expired(now), expired, "{seed}: {round} {turn}");
                fast += usize::from(matches!(state, StepState::Fast(_)));
                now += [0, 1, 999, 1_000_003, actual.retry_after, actual.reset_after][random.usize(..6)];
                if random.u32(..20) == 0 {
                    now -= random.u64(..5_000_000);
                }
            }
        }
        assert!(fast > 40_000, "{fast} of 120,000 were fast");
    }

    #[test]
    fn stored_level_and_its_fast_form_deny_equally() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut fast_forms = 0;
        for round in 0..3_000 {
            let algorithms = algorithms(&mut random);
            let algorithm = &algorithms[random.usize(..2)];
            let quota = algorithm.quota();
            let mut stored = None;
            let mut now = 1_700_000_000_000_000;
            for turn in 0..random.usize(1..6) {
                // Another policy may have charged the level before.
                let by = if turn == 0 {
                    &algorithms[random.usize(..4)]
                } else {
                    algorithm
                };
                if std::mem::discriminant(by) == std::mem::discriminant(algorithm) {
                    step_on_level(
                        by,
                        &mut stored,
                        random.u64(1..=quota.min(by.quota())),
                        now,
                        Mode::Charge,
                    );
                }
                now += random.u64(..5_000_000);
            }
            let Some(level) = stored else { continue };
            let state = StepState::from_level(algorithm, level);
            let Some(fast) = FastLevel::from_state(algorithm, &state) else {
                continue;
            };
            fast_forms += 1;
            for _ in 0..20 {
                let left = level.keep_until - level.at;
                let at = level.at + [0, 1, random.u64(..=left), left, left + 1][random.usize(..5)];
                let cost = [1, 1_000, quota, random.u64(1..=quota)][random.usize(..4)];
                let mut after = Some(level);
                let expected = step_on_level(algorithm, &mut after, cost, at, Mode::Refuse);
                let actual = fast
                    .peek(algorithm, cost, at)
                    .map(|outcome| outcome.outcome(algorithm));
                assert_eq!(
                    actual,
                    Some(expected),
                    "{seed}: {round}, {algorithm:?} {level:?} {cost} {at}"
                );
                assert_eq!(
                    after, stored,
                    "{seed}: {round}, {algorithm:?} {level:?} {cost} {at}"
                );
            }
            assert_eq!(
                fast.peek(algorithm, 1, level.at - 1),
                None,
                "the state would change"
            );
        }
        assert!(fast_forms > 1_000, "{fast_forms} of 3,000 have a fast form");
    }

    #[cfg(feature = "redis")]
    #[test]
    fn stored_numbers_have_fast_form_of_their_state() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut fast_forms = 0;
        for round in 0..20_000 {
            let algorithms = algorithms(&mut random);
            let algorithm = &algorithms[random.usize(..2)];
            let mut stored = None;
            let now = 1_700_000_000_000_000;
            step_on_level(
                algorithm,
                &mut stored,
                random.u64(1..=algorithm.quota()),
                now,
                Mode::Charge,
            );
            let mut numbers = stored.expect("the cost fits").stored();
            let other = [0, 1, numbers.parts, MAX_EXACT, 3 * MAX_EXACT, u64::MAX][random.usize(..6)];
            match random.u32(..10) {
                0 => numbers.amount = signed(other),
                1 => numbers.amount = -signed(other),
                2 => numbers.remainder = other,
                3 => numbers.parts = other,
                4 => numbers.at = other,
                5 => numbers.keep_until = other,
                6 => numbers.remainder = numbers.remainder.wrapping_add(numbers.parts),
                _ => {}
            }
            let fast = FastLevel::from_stored(algorithm, &numbers);
            let state = numbers.state(algorithm);
            let expected = state
                .as_ref()
                .and_then(|state| FastLevel::from_state(algorithm, state));
            assert_eq!(fast, expected, "{seed}: {round}, {algorithm:?} {numbers:?}");
            if let Some(fast) = fast {
                fast_forms += 1;
                let mut expanded = StepState::Fast(fast);
                expanded.expand_fast_form(algorithm);
                assert_eq!(
                    Some(expanded),
                    state,
                    "{seed}: {round}, {algorithm:?} {numbers:?}"
                );
            }
        }
        assert!(fast_forms > 5_000, "{fast_forms} of 20,000 have a fast form");
    }

    #[test]
    fn overflowing_level_stays_plain() {
        let policy = Policy::token_bucket("p")
            .capacity(4_000_000_000_000_u64)
            .rate("999_983.001/s")
            .build()
            .unwrap();
        let mut state = StepState::Absent;
        let outcome = step(policy.algorithm(), &mut state, 1_000, 1, Mode::Charge);
        assert!(outcome.fits && matches!(state, StepState::TokenBucket(_)));
    }
}
