//! Calls at any moments under any policies: no panic, no limit broken, no wait misjudged.

#[path = "../../../limiter-core/tests/support/promise.rs"]
#[expect(dead_code, reason = "the tests use the rest of it")]
mod promise;

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use arbitrary::Arbitrary;
use limiter_core::{Amount, Decision, Limiter, ManualClock, Policy, Rate};
use promise::Grant;

/// A policy and the events under it.
#[derive(Arbitrary, Debug)]
pub struct Trace {
    shape: TracePolicy,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum TracePolicy {
    Level {
        funnel: bool,
        capacity: u64,
        amount: u32,
        period: u32,
    },
    Window {
        limit: u16,
        micros: u64,
    },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    /// Requests a part of the quota.
    Call(u16),
    Advance(u32),
    Leap(u64),
    /// Moves to the moment that the last answer named.
    Retry,
    Back(u32),
    Reset,
}

const KEY: &str = "k";

impl Trace {
    /// Plays the trace on the store in process.
    pub fn check(&self) {
        let Some(policy) = self.shape.policy() else { return };
        let clock = ManualClock::new();
        let limits = Limiter::in_process().clock(&clock).build();
        let ask = |cost| now(limits.check(&policy, KEY).cost(cost)).expect("a decision");
        let mut world = World {
            passed: 0,
            grants: Vec::new(),
        };
        let mut retry = Duration::ZERO;
        for step in self.steps.iter().take(64) {
            match *step {
                Step::Call(part) => {
                    let cost = self.shape.cost(part, &policy);
                    let peeked = now(limits.peek(&policy, KEY).cost(cost)).expect("a decision");
                    let decision = ask(cost);
                    assert_eq!(
                        peeked.is_allowed(),
                        decision.is_allowed(),
                        "a peek predicts the check"
                    );
                    assert_eq!(peeked.retry_after(), decision.retry_after());
                    retry = decision.retry_after().unwrap_or_default();
                    world.record(&decision, cost, &policy);
                    if !decision.is_allowed() {
                        assert!(!retry.is_zero(), "{decision:?}");
                        retry_is_exact(&limits, &clock, &policy, cost, retry);
                    }
                }
                Step::Advance(micros) => world.advance(&clock, Duration::from_micros(micros.into())),
                Step::Leap(micros) => world.advance(&clock, Duration::from_micros(micros % (1 << 44))),
                Step::Retry => world.advance(&clock, retry),
                Step::Back(micros) => clock.step_back(Duration::from_micros(micros.into())),
                Step::Reset => {
                    now(limits.reset(&policy, KEY)).expect("a reset");
                    world.grants.clear();
                }
            }
        }
        self.shape.check_promise(&world.grants);
    }
}

/// The call does not fit one microsecond before the advertised time, and fits at this time.
fn retry_is_exact(limits: &Limiter, clock: &ManualClock, policy: &Policy, cost: Amount, retry: Duration) {
    let moment = clock.now();
    let fits = |span: Duration| {
        clock.set(moment.after(span));
        let reached = clock.now() == moment.after(span);
        let decision = now(limits.peek(policy, KEY).cost(cost)).expect("a decision");
        // The clock ends in the year 2112.
        (decision.is_allowed(), reached)
    };
    let early = fits(retry - Duration::from_micros(1));
    let (there, reached) = fits(retry);
    clock.set(moment);
    assert!(
        !early.0,
        "too early by a microsecond: {policy}, {cost} after {retry:?}"
    );
    assert!(
        there || !reached,
        "not at the moment that was named: {policy}, {cost} after {retry:?}"
    );
}

/// The elapsed time without backward steps, and the grants.
struct World {
    passed: u64,
    grants: Vec<Grant>,
}

impl World {
    fn advance(&mut self, clock: &ManualClock, span: Duration) {
        let before = clock.now();
        clock.advance(span);
        self.passed += clock.now().as_micros() - before.as_micros();
    }

    fn record(&mut self, decision: &Decision, cost: Amount, policy: &Policy) {
        let [limit] = decision.limits() else {
            unreachable!("the decision has one limit")
        };
        assert!(limit.remaining() <= policy.quota(), "{decision:?}");
        assert!(limit.reset_after() <= limit.expires_after(), "{decision:?}");
        if decision.is_allowed() {
            self.grants.push(Grant {
                at: self.passed,
                cost: u64::try_from(cost.as_thousandths()).expect("at most the quota"),
                second: false,
            });
        }
    }
}

impl TracePolicy {
    fn policy(self) -> Option<Policy> {
        match self {
            Self::Level {
                funnel,
                capacity,
                amount,
                period,
            } => {
                let rate = Rate::per(
                    Amount::from_thousandths(amount.into()),
                    Duration::from_micros(period.into()),
                );
                let new = if funnel {
                    Policy::funnel
                } else {
                    Policy::token_bucket
                };
                let capacity = Amount::from_thousandths(capacity);
                new("p".to_owned())
                    .capacity(capacity)
                    .rate(rate.ok()?)
                    .build()
                    .ok()
            }
            Self::Window { limit, micros } => {
                let window = Duration::from_micros(micros);
                Policy::sliding_window("p")
                    .limit(limit)
                    .window(window)
                    .build()
                    .ok()
            }
        }
    }

    /// Some part of the quota, never nothing.
    fn cost(self, part: u16, policy: &Policy) -> Amount {
        let unit = if matches!(self, Self::Window { .. }) {
            1_000
        } else {
            1
        };
        let units = policy.quota().as_thousandths() / unit;
        let cost = (1 + (units - 1) * u128::from(part) / u128::from(u16::MAX)) * unit;
        Amount::from_thousandths(u64::try_from(cost).expect("at most the quota"))
    }

    fn check_promise(self, grants: &[Grant]) {
        let kept = match self {
            Self::Level {
                capacity,
                amount,
                period,
                ..
            } => promise::level(grants, capacity, (amount.into(), period.into())),
            Self::Window { limit, micros } => promise::window(grants, limit.into(), micros),
        };
        kept.unwrap_or_else(|broken| panic!("{self:?}: {broken}"));
    }
}

/// In process a decision is ready at once.
fn now<T>(answer: impl IntoFuture<Output = T>) -> T {
    let answer = pin!(answer.into_future());
    match answer.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("a decision in process waits for nothing"),
    }
}
