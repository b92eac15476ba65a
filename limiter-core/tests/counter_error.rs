//! The error of a counter window against a log of all grants: its bound over any time, the worst
//! case of a client that knows the periods, and the result of random calls.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
#![expect(clippy::print_stdout, reason = "what was measured")]

mod support;

use std::time::Duration;

use fastrand::Rng;
use limiter_core::{Limiter, ManualClock, Policy};
use support::{KEY, micros};

const WINDOW: u64 = 1_000_000;

/// Granted permits with their times.
struct Simulation {
    limits: Limiter,
    clock: ManualClock,
    policy: Policy,
    passed: u64,
    grants: Vec<(u64, u64)>,
}

impl Simulation {
    fn new(limit: u64) -> Self {
        let clock = ManualClock::new();
        let limits = Limiter::in_process().clock(&clock).build();
        let policy = Policy::counter_window("p").limit(limit).window(micros(WINDOW));
        Self {
            limits,
            clock,
            policy: policy.build().unwrap(),
            passed: 0,
            grants: Vec::new(),
        }
    }

    fn go_to(&mut self, moment: u64) {
        self.clock.advance(Duration::from_micros(moment - self.passed));
        self.passed = moment;
    }

    async fn call(&mut self, cost: u64) -> bool {
        let decision = self.limits.check(&self.policy, KEY).cost(cost).await.unwrap();
        if decision.is_allowed() {
            self.grants.push((self.passed, cost));
        }
        decision.is_allowed()
    }

    /// Uses all remaining permits.
    async fn use_up(&mut self) {
        let left = self.limits.peek(&self.policy, KEY).await.unwrap().remaining();
        if left > 0 {
            assert!(self.call(left).await);
        }
    }

    /// The maximum granted in any window.
    fn most(&self) -> u64 {
        let (mut first, mut sum, mut most) = (0, 0, 0);
        for (at, cost) in &self.grants {
            sum += cost;
            while self.grants[first].0 + WINDOW <= *at {
                sum -= self.grants[first].1;
                first += 1;
            }
            most = most.max(sum);
        }
        most
    }

    /// From any permit to any later one: at most limit · (1 + T / window).
    fn assert_bound(&self, limit: u64) {
        // As in `promise::level`: a level of this capacity, which loses `limit` in a window.
        let (mut sum, mut least) = (0_i128, i128::MAX);
        for (at, cost) in &self.grants {
            least = least.min(sum * i128::from(WINDOW) - i128::from(limit * at));
            sum += i128::from(*cost);
            let now = sum * i128::from(WINDOW) - i128::from(limit * at);
            assert!(
                now - least <= i128::from(limit * WINDOW),
                "limit {limit}, at {at}"
            );
        }
    }
}

/// One call starts the periods; then all permits are used at the end of one period and at the end
/// of the next.
#[tokio::test]
async fn client_aware_of_periods_gets_less_than_twice_the_limit() {
    for limit in [1, 2, 10, 1_000, 100_000] {
        let mut simulation = Simulation::new(limit);
        assert!(simulation.call(1).await);
        // The usage of the first period decays until the end of the second; the call happens in its
        // last microsecond.
        simulation.go_to(2 * WINDOW - 1);
        simulation.use_up().await;
        let first = simulation.grants.last().unwrap().1;
        simulation.go_to(3 * WINDOW - 2);
        simulation.use_up().await;
        simulation.assert_bound(limit);
        let most = simulation.most();
        println!("limit {limit}: {most} in one window");
        assert!(
            most < 2 * limit || limit == 1 && most <= 2,
            "limit {limit}: {most}"
        );
        assert!(first + 1 >= limit, "limit {limit}: {first}");
        if limit >= 10 {
            // The worst case is reached.
            assert!(
                most >= 2 * limit - 1 - limit.div_ceil(WINDOW / 2),
                "limit {limit}: {most}"
            );
        }
    }
}

/// Calls at random moments: as many as the limit, and several times as many.
#[tokio::test]
async fn random_calls_exceed_limit_slightly() {
    let limit = 100;
    for (times, most_over) in [(0.8, 0.12), (1.0, 0.18), (1.5, 0.18), (3.0, 0.08), (10.0, 0.04)] {
        let mut random = Rng::with_seed(1);
        let mut simulation = Simulation::new(limit);
        let mut at = 0.0_f64;
        while at < 100.0 * 1e6 {
            at += -random.f64().max(1e-12).ln() * 1e6 / (100.0 * times);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a moment")]
            simulation.go_to((at as u64).max(simulation.passed));
            simulation.call(1).await;
        }
        simulation.assert_bound(limit);
        let most = simulation.most();
        let all: u64 = simulation.grants.iter().map(|(_, cost)| cost).sum();
        println!(
            "{times} of the limit: at most {most} of {limit} in any window, {} a window",
            all / 100
        );
        #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
        let over = most as f64 / limit as f64 - 1.0;
        assert!(over <= most_over, "{times} of the limit: {most}");
        assert!(times < 1.0 || all >= 85 * 100, "few calls are denied: {all}");
    }
}

/// Bursts of random sizes at random times respect the bound over any time.
#[tokio::test]
async fn calls_never_exceed_bound_over_any_time() {
    let seed = fastrand::u64(..);
    let mut random = Rng::with_seed(seed);
    println!("seed {seed}");
    for _ in 0..300 {
        let limit = [1, 2, 7, 100, 5_000_000][random.usize(..5)];
        let mut simulation = Simulation::new(limit);
        for _ in 0..100 {
            let end = (simulation.passed / WINDOW + 1) * WINDOW;
            let to = match random.u8(..5) {
                0 => end,
                1 => end - 1,
                2 => simulation.passed + random.u64(..100),
                3 => simulation.passed + random.u64(..3 * WINDOW),
                _ => simulation.passed + random.u64(..WINDOW / 4),
            };
            simulation.go_to(to.max(simulation.passed));
            if random.bool() {
                simulation.use_up().await;
            } else {
                let cost = random.u64(1..=limit);
                simulation.call(cost).await;
            }
        }
        simulation.assert_bound(limit);
        assert!(simulation.most() <= 2 * limit, "limit {limit}");
    }
}
