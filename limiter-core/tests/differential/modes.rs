//! Enforced, shadow and off limits in one decision, changed at any call: stores agree on charges
//! and decisions.

use std::time::Duration;

use fastrand::Rng;
use limiter_core::{Amount, Decision, Enforcement, Key, LimitRequest, ManualClock, Origin, Policy};

use super::support::{Kind, Subject};
use super::{PATIENCE, STEPS, setting};

const MODES: [Enforcement; 3] = [Enforcement::Enforce, Enforcement::Shadow, Enforcement::Off];

#[tokio::test]
async fn stores_agree_on_enforcement_modes() {
    let traces = setting("LIMITER_TRACES", 10_000) / 80;
    let seed = setting("LIMITER_SEED", fastrand::u64(..));
    println!("LIMITER_SEED={seed} LIMITER_TRACES={}", 80 * traces);
    let clock = ManualClock::new();
    let model = Subject::with_clock(Kind::Memory, clock.clone());
    let redis = Subject::without_deny_cache(Kind::Standalone, clock.clone());
    let mut tally = [0_u64; 3];
    for number in 0..traces {
        let mut rng = Rng::with_seed(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        trace(&mut rng, number, [&model, &redis], &clock, &mut tally).await;
    }
    println!(
        "allowed {}, would be denied {}, denied {}",
        tally[0], tally[1], tally[2]
    );
    // The traces mean something only if they go all ways.
    assert!(tally.iter().all(|count| *count > traces / 2), "{tally:?}");
}

async fn trace(rng: &mut Rng, number: u64, stores: [&Subject; 2], clock: &ManualClock, tally: &mut [u64; 3]) {
    let key = Key::from(format!("modes:{number}"));
    let families: Vec<[Policy; 3]> = (0..1 + rng.usize(0..3))
        .map(|family| in_each_mode(rng, family))
        .collect();
    let mut history = Vec::new();
    for _ in 0..STEPS {
        if rng.bool() {
            clock.advance(Duration::from_micros(rng.u64(0..1_500_000)));
        }
        let for_all = MODES[rng.usize(0..12).saturating_sub(9)];
        let chosen: Vec<(&Policy, Amount)> = families
            .iter()
            .map(|family| {
                let policy = &family[rng.usize(0..MODES.len())];
                (policy, Amount::from(rng.u64(0..=policy.quota().whole())))
            })
            .collect();
        let (operation, actual) = (rng.u8(0..12), rng.u64(0..6));
        let modes: Vec<_> = chosen.iter().map(|(policy, _)| policy.enforcement()).collect();
        history.push(format!(
            "{} {for_all:?} {chosen:?} {modes:?}: {operation}, {actual}",
            clock.now().as_micros()
        ));
        let mut result = Vec::new();
        for store in stores {
            store.limits.set_enforcement(for_all);
            let requests = || {
                chosen
                    .iter()
                    .map(|(policy, cost)| LimitRequest::new(policy, &key).cost(*cost))
            };
            let (first, cost) = chosen[0];
            let decision = match operation {
                0 => {
                    store.limits.refund(first, &key).cost(cost).await.unwrap();
                    store.limits.peek_all(requests()).await.unwrap()
                }
                1 => {
                    store.limits.charge(first, &key).cost(actual).await.unwrap();
                    store.limits.peek_all(requests()).await.unwrap()
                }
                2 | 3 => {
                    if let Ok(reserved) = store.limits.reserve_all(requests()).await {
                        let actuals = chosen.iter().map(|_| actual);
                        reserved.settle_each(actuals).await.unwrap();
                    }
                    store.limits.peek_all(requests()).await.unwrap()
                }
                4 => store.limits.peek_all(requests()).await.unwrap(),
                _ => store.limits.check_all(requests()).await.unwrap(),
            };
            tally[match (decision.is_allowed(), decision.would_deny()) {
                (true, false) => 0,
                (true, true) => 1,
                (false, _) => 2,
            }] += 1;
            result.push(facts(&decision));
            // The charges contain more than the decision reports.
            store.limits.set_enforcement(Enforcement::Enforce);
            for family in &families {
                let peeked = store.limits.peek(&family[0], &key).cost(0).await.unwrap();
                result.push(facts(&peeked));
            }
        }
        let (ours, theirs) = result.split_at(result.len() / 2);
        assert_eq!(
            ours,
            theirs,
            "trace {number}: model, Redis\n{}",
            history.join("\n")
        );
    }
}

/// One limit in each mode.
fn in_each_mode(rng: &mut Rng, family: usize) -> [Policy; 3] {
    let (name, algorithm, quota) = (format!("p{family}"), rng.u8(0..5), rng.u64(1..9));
    let (rate, window) = (
        format!("{}/{}ms", rng.u32(1..9), rng.u32(100..4_000)),
        Duration::from_micros(rng.u64(1..4_000_000)),
    );
    MODES.map(|mode| {
        let policy = match algorithm {
            0 => {
                let bucket = Policy::token_bucket(&name).capacity(quota).rate(&*rate);
                bucket.deadline(PATIENCE).enforcement(mode).build()
            }
            1 => {
                let funnel = Policy::funnel(&name).capacity(quota).rate(&*rate);
                funnel.deadline(PATIENCE).enforcement(mode).build()
            }
            2 => {
                let exact = Policy::sliding_window(&name).limit(quota).window(window);
                exact.deadline(PATIENCE).enforcement(mode).build()
            }
            3 => {
                let counters = Policy::counter_window(&name).limit(quota).window(window);
                counters.deadline(PATIENCE).enforcement(mode).build()
            }
            _ => {
                let fixed = Policy::fixed_window(&name).limit(quota).window(window);
                fixed.deadline(PATIENCE).enforcement(mode).build()
            }
        };
        policy.unwrap()
    })
}

/// All that two stores must agree on.
type Facts = (bool, bool, bool, Vec<(bool, Amount, [Duration; 4])>);

fn facts(decision: &Decision) -> Facts {
    let is_decided = match decision.origin() {
        Origin::Memory | Origin::Redis => true,
        Origin::Off => false,
        origin => unreachable!("{origin:?}"),
    };
    let limits = decision.limits().iter().map(|limit| {
        let times = [
            limit.retry_after(),
            limit.reset_after(),
            limit.expires_after(),
            limit.delay(),
        ];
        (limit.is_allowed(), limit.remaining(), times)
    });
    (
        decision.is_allowed(),
        decision.would_deny(),
        is_decided,
        limits.collect(),
    )
}
