//! The pure algorithms and the Lua scripts are equal: under one clock, random traces get the same
//! decisions from the memory store, which runs the former, and from Redis, which runs the latter.
//!
//! `LIMITER_TRACES` sets the number of traces, `LIMITER_SEED` repeats a run.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]
#![expect(clippy::print_stdout, reason = "the seed repeats a failed run")]

#[path = "differential/deny_cache.rs"]
mod deny_cache;
#[path = "differential/modes.rs"]
mod modes;
mod support;

use std::time::Duration;

use fastrand::Rng;
use limiter_core::{
    Amount, Decision, Key, LimitRequest, ManualClock, Origin, Policy, Rate, Rejection, UtcOffset,
};
use support::{Kind, Subject};

const STEPS: usize = 20;
const WORKERS: usize = 16;
/// The test compares decisions, not their timing.
const PATIENCE: Duration = Duration::from_secs(30);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .map_or(default, |value| value.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pure_steps_and_scripts_agree_on_random_traces() {
    let traces = setting("LIMITER_TRACES", 10_000);
    let seed = setting("LIMITER_SEED", fastrand::u64(..));
    println!("LIMITER_SEED={seed} LIMITER_TRACES={traces}");
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..WORKERS as u64 {
        workers.spawn(async move {
            let clock = ManualClock::new();
            let model = Subject::with_clock(Kind::Memory, clock.clone());
            let redis = Subject::without_deny_cache(Kind::Standalone, clock.clone());
            let mut decided = Tally::default();
            for number in (worker..traces).step_by(WORKERS) {
                let mut rng = Rng::with_seed(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                decided.add(&trace(&mut rng, number, &clock, &model, &redis).await);
            }
            decided
        });
    }
    let mut decided = Tally::default();
    while let Some(tally) = workers.join_next().await {
        decided.add(&tally.unwrap());
    }
    println!("{decided:?}");
    // The traces mean something only if they go both ways.
    assert!(decided.allowed > traces && decided.denied > traces, "{decided:?}");
    assert_eq!(decided.from_cache, 0, "Redis decides every call");
}

/// Number of decisions of each kind.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    allowed: u64,
    denied: u64,
    /// Number of denials by the deny cache.
    from_cache: u64,
}

impl Tally {
    fn count(&mut self, is_allowed: bool, is_from_cache: bool) {
        self.allowed += u64::from(is_allowed);
        self.denied += u64::from(!is_allowed);
        self.from_cache += u64::from(is_from_cache);
    }

    fn add(&mut self, other: &Self) {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.from_cache += other.from_cache;
    }
}

/// The history of one key.
async fn trace(rng: &mut Rng, number: u64, clock: &ManualClock, model: &Subject, redis: &Subject) -> Tally {
    let key = Key::from(format!("key:{number}"));
    clock.set(ManualClock::new().now());
    let families: Vec<Vec<Policy>> = (0..1 + rng.usize(0..3))
        .map(|family| policies(rng, family))
        .collect();
    let mut history = Vec::new();
    let mut decided = Tally::default();
    for _ in 0..STEPS {
        if let Some(span) = move_clock(rng, clock, &families) {
            remove_expired(&key, &families, model, redis).await;
            clock.step_back(span);
        }
        let chosen: Vec<(&Policy, Amount)> = families
            .iter()
            .map(|family| {
                let policy = &family[if rng.u8(0..4) == 0 {
                    rng.usize(0..family.len())
                } else {
                    0
                }];
                (policy, cost(rng, policy))
            })
            .collect();
        let requests = || {
            chosen
                .iter()
                .map(|(policy, cost)| LimitRequest::new(policy, &key).cost(*cost))
                .collect::<Vec<_>>()
        };
        let messages: Vec<_> = chosen
            .iter()
            .map(|(policy, cost)| format!("{policy} cost {cost}"))
            .collect();
        history.push(format!("{} {}", clock.now().as_micros(), messages.join(" + ")));
        let (ours, theirs) = match rng.u8(0..20) {
            0 => {
                let policy = chosen[0].0;
                model.limits.reset(policy, &key).await.unwrap();
                redis.limits.reset(policy, &key).await.unwrap();
                continue;
            }
            3 => {
                let (policy, cost) = chosen[0];
                history.push("  a refund of the first".to_owned());
                model.limits.refund(policy, &key).cost(cost).await.unwrap();
                redis.limits.refund(policy, &key).cost(cost).await.unwrap();
                (
                    model.limits.peek(policy, &key).cost(0).await,
                    redis.limits.peek(policy, &key).cost(0).await,
                )
            }
            4 => {
                let (policy, cost) = chosen[0];
                let debt = if rng.bool() {
                    cost
                } else {
                    Amount::from(rng.u64(0..40))
                };
                history.push(format!(
                    "  the first is charged {debt} regardless of its remaining permits"
                ));
                model.limits.charge(policy, &key).cost(debt).await.unwrap();
                redis.limits.charge(policy, &key).cost(debt).await.unwrap();
                (
                    model.limits.peek(policy, &key).cost(0).await,
                    redis.limits.peek(policy, &key).cost(0).await,
                )
            }
            5 | 6 => {
                let messages = settle(rng, &chosen, &key, clock, model, redis).await;
                history.push(format!("  {messages}"));
                let policy = chosen[0].0;
                (
                    model.limits.peek(policy, &key).cost(0).await,
                    redis.limits.peek(policy, &key).cost(0).await,
                )
            }
            1 | 2 => {
                let (policy, cost) = chosen[0];
                let ours = model.limits.peek(policy, &key).cost(cost).await;
                (ours, redis.limits.peek(policy, &key).cost(cost).await)
            }
            _ => (
                model.limits.check_all(requests()).await,
                redis.limits.check_all(requests()).await,
            ),
        };
        let is_from_cache = is_from_cache(&theirs);
        let (ours, theirs) = (facts(ours), facts(theirs));
        assert_eq!(
            ours,
            theirs,
            "trace {number}: model, Redis\n{}",
            history.join("\n")
        );
        decided.count(ours.0, is_from_cache);
    }
    decided
}

/// Takes the costs as estimates, and settles them with other amounts later, or drops the
/// reservations. Returns a description.
async fn settle(
    rng: &mut Rng,
    chosen: &[(&Policy, Amount)],
    key: &Key<'_>,
    clock: &ManualClock,
    model: &Subject,
    redis: &Subject,
) -> String {
    let requests = || {
        chosen
            .iter()
            .map(|(policy, cost)| LimitRequest::new(policy, key).cost(*cost))
    };
    let ours = model.limits.reserve_all(requests()).await;
    let theirs = redis.limits.reserve_all(requests()).await;
    let (ours, theirs) = match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => (ours, theirs),
        (Err(_), Err(_)) => return "a reservation that is denied".to_owned(),
        (ours, theirs) => unreachable!("{ours:?} {theirs:?}"),
    };
    let span = Duration::from_micros(rng.u64(0..2_000_000));
    clock.advance(span);
    if rng.u8(0..4) == 0 {
        return format!("a reservation that is dropped, {span:?}");
    }
    let actuals: Vec<Amount> = chosen
        .iter()
        .map(|(_, cost)| match rng.u8(0..3) {
            0 => Amount::from(rng.u64(0..=cost.whole())),
            1 => *cost,
            _ => Amount::from(cost.whole() + rng.u64(0..9)),
        })
        .collect();
    ours.settle_each(actuals.iter().copied()).await.unwrap();
    theirs.settle_each(actuals.iter().copied()).await.unwrap();
    format!("a reservation that is settled at {actuals:?} after {span:?}")
}

/// Policies change in proportion again and again, at moments before, at and after which calls are
/// made.
#[tokio::test]
async fn stores_agree_on_conversions() {
    let traces = setting("LIMITER_TRACES", 10_000) / 20;
    let seed = setting("LIMITER_SEED", fastrand::u64(..));
    println!("LIMITER_SEED={seed} LIMITER_TRACES={}", 20 * traces);
    let clock = ManualClock::new();
    let model = Subject::with_clock(Kind::Memory, clock.clone());
    let redis = Subject::without_deny_cache(Kind::Standalone, clock.clone());
    let mut decided = [0_u64; 2];
    for number in 0..traces {
        let mut rng = Rng::with_seed(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let tally = changes(&mut rng, number, &clock, &model, &redis).await;
        decided[0] += tally[0];
        decided[1] += tally[1];
    }
    assert!(decided[0] > traces && decided[1] > traces / 2, "{decided:?}");
}

async fn changes(
    rng: &mut Rng,
    number: u64,
    clock: &ManualClock,
    model: &Subject,
    redis: &Subject,
) -> [u64; 2] {
    let key = Key::from(format!("changed:{number}"));
    clock.set(ManualClock::new().now());
    let versions = loop {
        let versions = policies(rng, 0);
        if versions.len() > 1 && !format!("{}", versions[0]).contains("sliding window") {
            break versions;
        }
    };
    let mut policy = versions[0].clone();
    let (mut history, mut decided) = (vec![format!("{policy}")], [0; 2]);
    for _ in 0..STEPS {
        match rng.u8(0..8) {
            0..3 => clock.advance(Duration::from_micros(rng.u64(1..1_500_000))),
            3 => {
                let part = u64::try_from(policy.window().as_micros())
                    .unwrap()
                    .clamp(1, 1 << 45);
                clock.advance(Duration::from_micros(rng.u64(1..=part)));
            }
            4 => {
                let next = &versions[rng.usize(..versions.len())];
                let ahead = [0, 1, 700_000][rng.usize(..3)];
                let at = clock.now().after(Duration::from_micros(ahead));
                history.push(format!("at {} {next}", at.as_micros()));
                policy = next.clone().proportional_to(&policy, at).unwrap();
            }
            _ => {}
        }
        // A cost that fits the previous quota while that applies.
        let cost = match policy.before() {
            Some((before, at)) if clock.now() < at => cost(rng, before).min(policy.quota()),
            _ => cost(rng, &policy),
        };
        let operation = rng.u8(0..8);
        history.push(format!("{} {operation} of {cost}", clock.now().as_micros()));
        let (ours, theirs) = match operation {
            0 => {
                model.limits.refund(&policy, &key).cost(cost).await.unwrap();
                redis.limits.refund(&policy, &key).cost(cost).await.unwrap();
                (
                    model.limits.peek(&policy, &key).cost(0).await,
                    redis.limits.peek(&policy, &key).cost(0).await,
                )
            }
            1 => {
                model.limits.charge(&policy, &key).cost(cost).await.unwrap();
                redis.limits.charge(&policy, &key).cost(cost).await.unwrap();
                (
                    model.limits.peek(&policy, &key).cost(0).await,
                    redis.limits.peek(&policy, &key).cost(0).await,
                )
            }
            2 => (
                model.limits.peek(&policy, &key).cost(cost).await,
                redis.limits.peek(&policy, &key).cost(cost).await,
            ),
            _ => (
                model.limits.check(&policy, &key).cost(cost).await,
                redis.limits.check(&policy, &key).cost(cost).await,
            ),
        };
        let (ours, theirs) = (facts(ours), facts(theirs));
        assert_eq!(
            ours,
            theirs,
            "trace {number}: model, Redis\n{}",
            history.join("\n")
        );
        decided[usize::from(!ours.0)] += 1;
    }
    decided
}

fn is_from_cache(answer: &Result<Decision, Rejection>) -> bool {
    answer
        .as_ref()
        .is_ok_and(|decision| decision.origin() == Origin::DenyCache)
}

/// All that two stores must agree on.
type Facts = (bool, u64, Vec<(bool, Amount, [Duration; 5])>);

fn facts(answer: Result<Decision, Rejection>) -> Facts {
    let decision = answer.expect("a decision");
    // The local fallback does not use the scripts.
    assert!(
        matches!(
            decision.origin(),
            Origin::Memory | Origin::Redis | Origin::DenyCache
        ),
        "{decision:?}"
    );
    let limits = decision.limits().iter().map(|limit| {
        (
            limit.is_allowed(),
            limit.remaining(),
            [
                limit.retry_after(),
                limit.reset_after(),
                limit.expires_after(),
                limit.delay(),
                limit.next_after(),
            ],
        )
    });
    (
        decision.is_allowed(),
        decision.decided_at().as_micros(),
        limits.collect(),
    )
}

/// Versions of one policy, as a rollout has them side by side.
fn policies(rng: &mut Rng, family: usize) -> Vec<Policy> {
    let name = format!("p{family}");
    let algorithm = rng.u8(0..5);
    let versions = 1 + rng.usize(0..3);
    (0..versions)
        .map(|_| match algorithm {
            0 => loop {
                let policy = Policy::token_bucket(&name)
                    .capacity(capacity(rng))
                    .rate(rate(rng));
                if let Ok(policy) = policy.deadline(PATIENCE).build() {
                    break policy;
                }
            },
            1 => loop {
                let funnel = Policy::funnel(&name).capacity(capacity(rng)).rate(rate(rng));
                let funnel = if rng.bool() { funnel.paced() } else { funnel };
                if let Ok(policy) = funnel.deadline(PATIENCE).build() {
                    break policy;
                }
            },
            2 => {
                let limit = match rng.u8(0..8) {
                    0 => rng.u64(1..1_000),
                    _ => rng.u64(1..12),
                };
                let window = Duration::from_micros(match rng.u8(0..6) {
                    0 => 1,
                    1 => rng.u64(1..2_592_000_000_000),
                    _ => rng.u64(1..20) * 500_000,
                });
                Policy::sliding_window(&name)
                    .limit(limit)
                    .window(window)
                    .deadline(PATIENCE)
                    .build()
                    .unwrap()
            }
            3 => Policy::counter_window(&name)
                .limit(counted(rng, 1 << 42))
                .window(span(rng, 1 << 42))
                .deadline(PATIENCE)
                .build()
                .unwrap(),
            _ => fixed_window(rng, &name),
        })
        .collect()
}

/// A limit up to this one.
fn counted(rng: &mut Rng, most: u64) -> u64 {
    match rng.u8(0..8) {
        0 => rng.u64(1..=most),
        1 => most,
        2 => rng.u64(1..1_000),
        _ => rng.u64(1..12),
    }
}

/// A window up to this one, in microseconds.
fn span(rng: &mut Rng, most: u64) -> Duration {
    Duration::from_micros(match rng.u8(0..8) {
        0 => 1,
        1 => rng.u64(1..=most),
        2 => most,
        _ => rng.u64(1..20) * 500_000,
    })
}

fn fixed_window(rng: &mut Rng, name: &str) -> Policy {
    let policy = Policy::fixed_window(name)
        .limit(counted(rng, 1 << 52))
        .deadline(PATIENCE);
    let policy = if rng.bool() {
        policy.window(span(rng, 1 << 50))
    } else {
        let offset = UtcOffset::minutes(rng.i16(-1_439..1_440)).unwrap();
        let windows = [
            "1s", "7s", "8s", "1m", "1h", "6h", "1d", "week", "30d", "365d", "month", "month",
        ];
        policy.window(windows[rng.usize(..windows.len())]).aligned(offset)
    };
    policy.build().unwrap()
}

fn capacity(rng: &mut Rng) -> Amount {
    match rng.u8(0..8) {
        0 => Amount::from_thousandths(rng.u64(1..3_000)),
        1 => Amount::from_thousandths(rng.u64(1..1 << 52)),
        2 => Amount::from(rng.u64(1..1_000_000)),
        _ => Amount::from(rng.u64(1..20)),
    }
}

fn rate(rng: &mut Rng) -> Rate {
    loop {
        let rate = match rng.u8(0..9) {
            0 => "7/3s".parse(),
            1 => "0.001/s".parse(),
            2 => "1000000/s".parse(),
            3 => "999983/day".parse(),
            4 => "1/30d".parse(),
            5 => Rate::per(
                Amount::from_thousandths(rng.u64(1..1 << 41)),
                Duration::from_micros(rng.u64(1..1 << 41)),
            ),
            _ => Rate::per_second(rng.u32(1..20)),
        };
        if let Ok(rate) = rate {
            return rate;
        }
    }
}

fn cost(rng: &mut Rng, policy: &Policy) -> Amount {
    let quota = u64::try_from(policy.quota().as_thousandths()).unwrap();
    let whole = policy.quota().whole();
    let fractions = format!("{policy}").contains("window");
    match rng.u8(0..10) {
        0 => Amount::ZERO,
        1 => policy.quota(),
        2 if !fractions => Amount::from_thousandths(rng.u64(0..=quota)),
        3 => Amount::from(rng.u64(0..=whole)),
        _ => Amount::ONE.min(policy.quota()),
    }
}

/// Removes expired states from both stores: a store may delete them at any time, and a backward
/// step of the clock would make the difference visible.
async fn remove_expired(key: &Key<'_>, families: &[Vec<Policy>], model: &Subject, redis: &Subject) {
    for policy in families.iter().map(|family| &family[0]) {
        let peeked = redis.limits.peek(policy, key).cost(0).await.unwrap();
        if peeked.limits()[0].expires_after().is_zero() {
            model.limits.reset(policy, key).await.unwrap();
            redis.limits.reset(policy, key).await.unwrap();
        }
    }
}

/// Moves the clock by nothing, a little or a lot; or returns the duration of a backward step.
fn move_clock(rng: &mut Rng, clock: &ManualClock, families: &[Vec<Policy>]) -> Option<Duration> {
    let window = families[0][0].window();
    match rng.u8(0..20) {
        0..5 => {}
        5..8 => clock.advance(Duration::from_micros(rng.u64(1..1_000))),
        8..13 => clock.advance(Duration::from_micros(rng.u64(1..3_000_000))),
        13..16 => {
            let part = u64::try_from(window.as_micros()).unwrap();
            clock.advance(Duration::from_micros(rng.u64(0..=part.min(1 << 45))));
        }
        16 => clock.advance(window.min(Duration::from_secs(10 * 365 * 86_400))),
        17 => return Some(Duration::from_micros(rng.u64(1..1_000))),
        18 => return Some(Duration::from_secs(rng.u64(1..4_000))),
        _ => clock.advance(Duration::from_secs(rng.u64(1..100_000))),
    }
    None
}
