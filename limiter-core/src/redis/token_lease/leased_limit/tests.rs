//! Differential test: scripts and pure functions agree under one clock, for random histories of
//! charges, leases, reports, refunds and unconditional charges.

use fastrand::Rng;
use limiter_testing::RedisServer;

use crate::algorithm::StepState;
use crate::policy::Rate;
use crate::redis::RedisStore;
use crate::redis::settings::{Certificates, Deployment, NodeSettings, Topology};
use crate::redis::token_lease::leased_limit::*;
use crate::request::{DecisionRequest, LimitRequest};
use crate::support::clock::ManualClock;
use crate::units::MAX_EXACT;

const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn store(clock: &ManualClock) -> RedisStore {
    store_on(RedisServer::shared(), clock)
}

/// A store with a namespace of its own.
pub(crate) fn store_on(server: &RedisServer, clock: &ManualClock) -> RedisStore {
    static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let deployment = Deployment {
        topology: Topology::Standalone(server.url().into()),
        certificates: Certificates::default(),
        node: NodeSettings {
            connections: 1,
            max_in_flight: 100,
        },
    };
    let namespace = format!("account:{}:{number}", std::process::id());
    RedisStore::new(
        deployment,
        Namespace::new("", &namespace),
        Clock::Manual(clock.clone()),
    )
    .unwrap()
}

fn policy(rng: &mut Rng, kind: u8) -> Policy {
    let capacity = match rng.u8(0..4) {
        0 => crate::Amount::from_thousandths(rng.u64(1..3_000)),
        1 => crate::Amount::from_thousandths(rng.u64(1..1 << 50)),
        _ => crate::Amount::from(rng.u64(1..40)),
    };
    let rate: Rate = match rng.u8(0..4) {
        0 => "7/3s".parse().unwrap(),
        1 => Rate::per(rng.u32(1..9), Duration::from_micros(rng.u64(1..3_000_000))).unwrap(),
        2 => "999983/d".parse().unwrap(),
        _ => Rate::per_second(rng.u32(1..40)).unwrap(),
    };
    let built = match kind {
        0 => Policy::token_bucket("p")
            .capacity(capacity)
            .rate(rate)
            .deadline(PATIENCE)
            .build(),
        1 => Policy::funnel("p")
            .capacity(capacity)
            .rate(rate)
            .deadline(PATIENCE)
            .build(),
        _ => Policy::sliding_window("p")
            .limit(rng.u64(1..20))
            .window(Duration::from_micros(rng.u64(1..3_000_000)))
            .deadline(PATIENCE)
            .build(),
    };
    match built {
        Ok(policy) => policy,
        Err(_) => policy(rng, kind),
    }
}

fn go(rng: &mut Rng, clock: &ManualClock, spent: &mut bool) {
    match rng.u8(0..8) {
        0..3 => {}
        3 | 4 => clock.advance(Duration::from_micros(rng.u64(1..1_000))),
        5 => clock.advance(Duration::from_micros(rng.u64(1..3_000_000))),
        6 => clock.advance(Duration::from_secs(rng.u64(1..100))),
        _ => *spent = true,
    }
}

async fn history(rng: &mut Rng, clock: &ManualClock, redis: &RedisStore, key: &str) {
    let kind = rng.u8(0..3);
    let policies: Vec<Policy> = (0..1 + rng.usize(0..2)).map(|_| policy(rng, kind)).collect();
    let lender = redis.lender();
    let mut model = StepState::Absent;
    let mut loans: Vec<LeaseGrant> = Vec::new();
    let mut steps = Vec::new();
    for _ in 0..25 {
        let mut back = false;
        go(rng, clock, &mut back);
        let policy = &policies[rng.usize(0..policies.len())];
        let (quota, algorithm) = (policy.algorithm().quota(), policy.algorithm());
        let cost = match rng.u8(0..4) {
            0 => 0,
            1 => rng.u64(0..=quota),
            _ => 1.max(quota / 10),
        };
        let amount = if kind == 2 {
            crate::Amount::from(cost)
        } else {
            crate::Amount::from_thousandths(cost)
        };
        let mode = if rng.u8(0..5) == 0 {
            Mode::Peek
        } else {
            Mode::Charge
        };
        let request =
            DecisionRequest::new([LimitRequest::new(policy, key).cost(amount)], mode, true).unwrap();
        if back && !model.is_expired(clock.now().as_micros()) {
            clock.step_back(Duration::from_micros(rng.u64(1..2_000_000)));
        }
        let now = clock.now().as_micros();
        let operation = rng.u8(0..12);
        steps.push(format!("{now} {policy} {operation} {mode:?} {cost}"));
        let (ours, theirs) = match operation {
            0..4 => {
                let outcome = algorithm::step(algorithm, &mut model, cost, now, mode);
                (outcome, redis.decide(&request).await.unwrap())
            }
            4..6 | 10..12 => {
                let change = match operation {
                    4 => UsageCorrection::Refund { whole_at: 0 },
                    5 => UsageCorrection::Refund {
                        whole_at: now + rng.u64(0..3_000_000) - 500_000,
                    },
                    _ => UsageCorrection::ForceCharge,
                };
                let mut limit = request.limits[0].clone();
                if change == UsageCorrection::ForceCharge {
                    limit.cost = match rng.u8(0..6) {
                        0 => cost.saturating_mul(3).min(MAX_EXACT),
                        1 if kind < 2 => MAX_EXACT,
                        _ => cost,
                    };
                }
                steps.push(format!("  {change:?} {}", limit.cost));
                let outcome = algorithm::change(algorithm, &mut model, limit.cost, change, now);
                (outcome, redis.change(&limit, change).await.unwrap())
            }
            _ if kind == 2 => continue,
            _ => {
                let mut report = UsageReport::default();
                if !loans.is_empty() && rng.bool() {
                    let loan = &mut loans[0];
                    report.epoch = loan.epoch;
                    report.spent = rng.u64(0..=loan.amount);
                    report.returned = rng.u64(0..=loan.amount - report.spent);
                    loan.amount -= report.spent + report.returned;
                }
                let lease_request = LeaseRequest {
                    cost,
                    want: rng.u64(0..=quota),
                    epoch: rng.u64(1..2_000_000),
                    report,
                };
                steps.push(format!("  {lease_request:?}"));
                let (outcome, loan) = algorithm::grant_lease(algorithm, &mut model, &lease_request, now);
                let lending = lender
                    .grant_lease(&lender.leased_limit(&request.limits[0]), &lease_request)
                    .await
                    .unwrap();
                assert_eq!(loan, lending.loan, "{}", steps.join("\n"));
                if loan.amount > 0 {
                    loans.insert(0, loan);
                }
                (outcome, lending.verdict)
            }
        };
        assert_eq!(
            (ours, now),
            (theirs.outcomes[0], theirs.decided_at.as_micros()),
            "model, Redis\n{}\n{model:?}",
            steps.join("\n")
        );
    }
}

#[expect(clippy::print_stdout, reason = "the seed repeats a failed run")]
#[tokio::test]
async fn scripts_equal_pure_functions_for_leases_refunds_and_debts() {
    let setting = |name: &str| std::env::var(name).ok().map(|value| value.parse().unwrap());
    let seed = setting("LIMITER_SEED").unwrap_or_else(|| fastrand::u64(..));
    let traces = setting("LIMITER_TRACES").unwrap_or(300);
    println!("LIMITER_SEED={seed}");
    let clock = ManualClock::new();
    let redis = store(&clock);
    for number in 0..traces {
        clock.set(ManualClock::new().now());
        let mut rng = Rng::with_seed(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        history(&mut rng, &clock, &redis, &number.to_string()).await;
    }
}
