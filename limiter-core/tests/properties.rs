//! The bound of each algorithm for every window of time, with random policies and random calls, and
//! its decisions against simple models: exact fractions for buckets and funnels, a log of all
//! grants for windows.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

#[path = "properties/model.rs"]
mod model;
mod support;

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use limiter_core::{Amount, Decision, LimitOutcome, LimitRequest, Limiter, ManualClock, Policy};
use model::{Level, LevelModel, Log, Model, Window, facts, level, window};
use proptest::collection::vec;
use proptest::prelude::*;
use support::promise::{self, Grant};
use support::{KEY, micros, only};

/// In process a decision is ready at the first poll.
fn now<T>(answer: impl IntoFuture<Output = T>) -> T {
    let answer = pin!(answer.into_future());
    match answer.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("an in-process decision must be ready at the first poll"),
    }
}

/// A limiter in process, its clock, and how much time has passed, steps back not counted.
struct Simulation {
    limits: Limiter,
    clock: ManualClock,
    passed: u64,
}

impl Simulation {
    fn new() -> Self {
        let clock = ManualClock::new();
        let limits = Limiter::in_process().clock(&clock).build();
        Self {
            limits,
            clock,
            passed: 0,
        }
    }

    fn check(&self, policy: &Policy, cost: Amount) -> Decision {
        now(self.limits.check(policy, KEY).cost(cost)).unwrap()
    }

    fn peek(&self, policy: &Policy, cost: Amount) -> Decision {
        now(self.limits.peek(policy, KEY).cost(cost)).unwrap()
    }

    fn moment(&self) -> u64 {
        self.clock.now().as_micros()
    }

    /// Advances the clock by a pause, which may depend on the last decision.
    fn go(&mut self, pause: Pause, last: Option<&LimitOutcome>) {
        let named = |time: fn(&LimitOutcome) -> Duration| last.map_or(Duration::ZERO, time);
        let span = match pause {
            Pause::For(span) => micros(span),
            Pause::UntilRetry => named(LimitOutcome::retry_after),
            Pause::JustBeforeRetry => named(LimitOutcome::retry_after).saturating_sub(micros(1)),
            Pause::UntilExpiry => named(LimitOutcome::expires_after),
            Pause::Back(span) => return self.clock.step_back(micros(span)),
        };
        self.clock.advance(span);
        self.passed += u64::try_from(span.as_micros()).unwrap();
    }

    /// Runs the steps, each with its own policy and cost, and returns the grants.
    fn run_steps(mut self, steps: Vec<Step>, of_step: impl Fn(Step) -> (Policy, Amount)) -> Vec<Grant> {
        let mut grants = Vec::new();
        let mut last: Option<LimitOutcome> = None;
        for step in steps {
            self.go(step.pause, last.as_ref());
            let (policy, cost) = of_step(step);
            let decision = self.check(&policy, cost);
            if decision.is_allowed() {
                grants.push(self.grant(cost, step.second));
            }
            last = Some(only(&decision).clone());
        }
        grants
    }

    /// The grants by monotonic time.
    fn grant(&self, cost: Amount, second: bool) -> Grant {
        let cost = u64::try_from(cost.as_thousandths()).unwrap();
        Grant {
            at: self.passed,
            cost,
            second,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Pause {
    For(u64),
    UntilRetry,
    JustBeforeRetry,
    UntilExpiry,
    Back(u64),
}

/// The whole, of which a step's part is one.
const PARTS: u64 = 1_000_000;

/// A pause and a call: its cost is some part of the quota, and it is made under one of two
/// policies.
#[derive(Clone, Copy, Debug)]
struct Step {
    pause: Pause,
    part: u64,
    second: bool,
}

fn forward() -> impl Strategy<Value = Pause> {
    prop_oneof![
        2 => Just(Pause::For(0)),
        2 => (1..10_u64).prop_map(Pause::For),
        3 => (1..3_000_000_u64).prop_map(Pause::For),
        1 => (1..100_000_000_u64).prop_map(Pause::For),
        2 => Just(Pause::UntilRetry),
        1 => Just(Pause::JustBeforeRetry),
        1 => Just(Pause::UntilExpiry),
    ]
}

fn in_both_directions() -> impl Strategy<Value = Pause> {
    let back = prop_oneof![1..10_u64, 1..3_000_000_u64, 1..10_000_000_000_u64];
    prop_oneof![4 => forward(), 1 => back.prop_map(Pause::Back)]
}

fn steps(pause: impl Strategy<Value = Pause>) -> impl Strategy<Value = Vec<Step>> {
    // Half of the calls are small, so that many are granted; some take all there ever is.
    let part = prop_oneof![2 => Just(0_u64), 1 => 0..PARTS, 1 => Just(PARTS)];
    let step = (pause, part, any::<bool>()).prop_map(|(pause, part, second)| Step { pause, part, second });
    vec(step, 1..60)
}

/// A policy, its model, and the cost of a step.
type Limit = (Policy, Box<dyn Model>, Box<dyn Fn(Step) -> Amount>);

/// Plays the steps, compares every decision with the model's, and returns the grants.
fn play(
    policy: &Policy,
    model: &mut impl Model,
    steps: &[Step],
    cost: impl Fn(Step) -> Amount,
) -> Vec<Grant> {
    let mut simulation = Simulation::new();
    let mut grants = Vec::new();
    let mut last: Option<LimitOutcome> = None;
    for step in steps {
        simulation.go(step.pause, last.as_ref());
        let cost = cost(*step);
        let before = simulation.peek(policy, cost);
        assert_eq!(
            facts(only(&before)),
            model.answer(cost, simulation.moment(), false),
            "a peek"
        );
        let decision = simulation.check(policy, cost);
        assert_eq!(
            facts(only(&decision)),
            model.answer(cost, simulation.moment(), true),
            "a check"
        );
        // At one time the remaining permits decrease only by grants.
        let taken = if decision.is_allowed() { cost } else { Amount::ZERO };
        let (before, after) = (only(&before).remaining(), only(&decision).remaining());
        assert_eq!(
            before.as_thousandths(),
            after.as_thousandths() + taken.as_thousandths()
        );
        if decision.is_allowed() {
            grants.push(simulation.grant(cost, false));
        }
        last = Some(only(&decision).clone());
    }
    grants
}

proptest! {
    // A case that found a defect becomes a separate test.
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn level_keeps_bound_and_equals_exact_fractions(level in level(), steps in steps(forward())) {
        let grants = play(&level.policy("p"), &mut LevelModel::new(level), &steps, |step| level.cost(step));
        promise::level(&grants, level.capacity, (level.amount, level.period)).unwrap();
    }

    #[test]
    fn window_keeps_bound_and_equals_log(window in window(), steps in steps(forward())) {
        let grants = play(&window.policy("p"), &mut Log::new(window), &steps, |step| window.cost(step));
        promise::window(&grants, window.limit, window.length).unwrap();
    }

    /// Steps back count as zero time.
    #[test]
    fn clock_step_back_keeps_bounds(
        level in level(), window in window(), steps in steps(in_both_directions()),
    ) {
        let policies = [level.policy("l"), window.policy("w")];
        let mut grants = [Vec::new(), Vec::new()];
        for (policy, grants) in policies.iter().zip(&mut grants) {
            let mut simulation = Simulation::new();
            let mut last: Option<LimitOutcome> = None;
            for step in &steps {
                simulation.go(step.pause, last.as_ref());
                let cost = if policy.name() == "l" { level.cost(*step) } else { window.cost(*step) };
                let decision = simulation.check(policy, cost);
                // The longest wait of all, with a microsecond for rounding.
                let longest = policy.window() + micros(1);
                prop_assert!(decision.reset_after() <= longest, "{policy}: locked out, {decision:?}");
                if decision.is_allowed() {
                    grants.push(simulation.grant(cost, false));
                }
                last = Some(only(&decision).clone());
            }
        }
        promise::level(&grants[0], level.capacity, (level.amount, level.period)).unwrap();
        promise::window(&grants[1], window.limit, window.length).unwrap();
    }

    /// For every state that two policies and a clock with backward steps can produce: one
    /// microsecond before the advertised time a call is denied, and at that time it is admitted.
    #[test]
    fn retry_after_is_exact_in_every_state(
        levels in (level(), level()), windows in (window(), window()), steps in steps(in_both_directions()), part in 0..=PARTS,
    ) {
        let second = Level { funnel: levels.0.funnel, ..levels.1 };
        let families = [
            [levels.0.policy("l"), second.policy("l")],
            [windows.0.policy("w"), windows.1.policy("w")],
            [windows.0.counter("c"), windows.1.counter("c")],
            [windows.0.fixed("f"), windows.1.fixed("f")],
        ];
        for family in &families {
            let cost = |policy: &Policy, part: u64| {
                let quota = u64::try_from(policy.quota().as_thousandths()).unwrap();
                let unit = if policy.name() == "l" { 1 } else { 1_000 };
                Amount::from_thousandths((1 + (quota / unit - 1) * part / PARTS) * unit)
            };
            let mut simulation = Simulation::new();
            let mut last: Option<LimitOutcome> = None;
            for step in &steps {
                simulation.go(step.pause, last.as_ref());
                let policy = &family[usize::from(step.second)];
                last = Some(only(&simulation.check(policy, cost(policy, step.part))).clone());
            }
            for policy in family {
                let cost = cost(policy, part);
                let Some(wait) = simulation.check(policy, cost).retry_after() else { continue };
                prop_assert!(!wait.is_zero(), "{policy}");
                simulation.clock.advance(wait - micros(1));
                let early = simulation.peek(policy, cost);
                prop_assert_eq!(early.retry_after(), Some(micros(1)), "{}", policy);
                simulation.clock.advance(micros(1));
                prop_assert!(simulation.check(policy, cost).is_allowed(), "{policy}");
            }
        }
    }

    /// Several limits admit together if each model alone fits, and charge all of them or none.
    #[test]
    fn several_limits_equal_their_models_together(
        levels in vec(level(), 0..3), windows in vec(window(), 1..3), steps in steps(forward()),
    ) {
        let mut simulation = Simulation::new();
        let mut limits: Vec<Limit> = Vec::new();
        for level in levels {
            let policy = level.policy(&format!("p{}", limits.len()));
            limits.push((policy, Box::new(LevelModel::new(level)), Box::new(move |step| level.cost(step))));
        }
        for window in windows {
            let policy = window.policy(&format!("p{}", limits.len()));
            limits.push((policy, Box::new(Log::new(window)), Box::new(move |step| window.cost(step))));
        }
        let mut last: Option<LimitOutcome> = None;
        for step in steps {
            simulation.go(step.pause, last.as_ref());
            let moment = simulation.moment();
            let mut all_fit = true;
            for (_, model, cost) in &mut limits {
                all_fit &= model.answer(cost(step), moment, false).0;
            }
            let requests = limits.iter().map(|(policy, _, cost)| LimitRequest::new(policy, KEY).cost(cost(step)));
            let decision = now(simulation.limits.check_all(requests)).unwrap();
            prop_assert_eq!(decision.is_allowed(), all_fit);
            let mut waits = Vec::new();
            for (outcome, (policy, model, cost)) in decision.limits().iter().zip(&mut limits) {
                prop_assert_eq!(outcome.policy(), &*policy);
                prop_assert_eq!(facts(outcome), model.answer(cost(step), moment, all_fit), "{}", policy);
                if !outcome.is_allowed() {
                    waits.push(outcome.retry_after());
                }
            }
            prop_assert_eq!(decision.retry_after(), waits.into_iter().max());
            last = decision.denied_by().or(decision.limits().first()).cloned();
        }
    }

    /// Old and new policy alternate in any order: over any time they admit at most the larger
    /// capacity and the faster rate.
    #[test]
    fn alternating_levels_create_no_permits(
        old in level(), new in level(), same_rate in any::<bool>(), steps in steps(forward()),
    ) {
        let (amount, period) = if same_rate { (old.amount, old.period) } else { (new.amount, new.period) };
        let new = Level { funnel: old.funnel, amount, period, ..new };
        let grants = Simulation::new().run_steps(steps, |step| {
            let level = if step.second { new } else { old };
            (level.policy("p"), level.cost(step))
        });
        let is_faster = u128::from(new.amount) * u128::from(old.period) > u128::from(old.amount) * u128::from(new.period);
        let faster = if is_faster { new } else { old };
        promise::level(&grants, old.capacity.max(new.capacity), (faster.amount, faster.period)).unwrap();
    }

    /// A window with a changing limit admits no more than the larger limit in any window.
    #[test]
    fn alternating_windows_create_no_permits(old in window(), limit in 1..40_u64, steps in steps(forward())) {
        let new = Window { limit, ..old };
        let grants = Simulation::new().run_steps(steps, |step| {
            let window = if step.second { new } else { old };
            (window.policy("p"), window.cost(step))
        });
        promise::window_of_each(&grants, [(old.limit, old.length), (new.limit, new.length)]).unwrap();
    }

    /// Two counters: over any time no more than the larger limit, and that much again in each of
    /// the shorter windows.
    #[test]
    fn alternating_counter_windows_create_no_permits(
        old in window(), new in window(), same_window in any::<bool>(), steps in steps(forward()),
    ) {
        let new = Window { length: if same_window { old.length } else { new.length }, ..new };
        let grants = Simulation::new().run_steps(steps, |step| {
            let window = if step.second { new } else { old };
            (window.counter("p"), window.cost(step))
        });
        let (limit, length) = (old.limit.max(new.limit), old.length.min(new.length));
        promise::level(&grants, limit * 1_000, (limit * 1_000, length)).unwrap();
    }

    /// Each period admits at most the larger limit and is at least as long as the shorter window,
    /// unless a running period is shortened to the window of the deciding policy.
    #[test]
    fn alternating_fixed_windows_create_no_permits(
        old in window(), new in window(), steps in steps(in_both_directions()),
    ) {
        let mut simulation = Simulation::new();
        let mut grants: Vec<Grant> = Vec::new();
        let mut last: Option<LimitOutcome> = None;
        for step in steps {
            simulation.go(step.pause, last.as_ref());
            let window = if step.second { new } else { old };
            let cost = window.cost(step);
            let decision = simulation.check(&window.fixed("p"), cost);
            prop_assert!(decision.reset_after() <= micros(window.length));
            if decision.is_allowed() {
                grants.push(simulation.grant(cost, step.second));
            }
            last = Some(only(&decision).clone());
        }
        let (limit, length) = (old.limit.max(new.limit), old.length.min(new.length));
        let (mut until, mut sum) = (0, 0);
        for grant in grants {
            // A period that begins with a grant is over a window later at the earliest.
            if grant.at >= until {
                (until, sum) = (grant.at + length, 0);
            }
            sum += grant.cost;
            prop_assert!(sum <= 2 * limit * 1_000, "{sum} in one window");
        }
    }
}
