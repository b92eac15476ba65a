//! The effect of a change in numbers, computed by the algorithms themselves with a clock of their
//! own. No key of a store is read.

use std::time::Duration;

use limiter_core::{Inheritance, Limiter, ManualClock, Policy, Timestamp};
use serde_json::{Value, json};

use crate::policy_text::PolicyText;

/// The key of the computation.
const KEY: &str = "example";
/// The number of points of a curve.
const POINTS: u32 = 48;
/// A key of a larger quota is not computed, since usage is charged in single permits at worst.
const MAX_QUOTA: u64 = 1_000_000_000;

/// The limits of one key over time.
struct Simulation {
    limiter: Limiter,
    clock: ManualClock,
}

impl Simulation {
    fn start() -> Self {
        let clock = ManualClock::new();
        Self {
            limiter: Limiter::in_process().clock(&clock).build(),
            clock,
        }
    }

    async fn remaining(&self, policy: &Policy) -> Option<u64> {
        let decision = self.limiter.peek(policy, KEY).await.ok()?;
        Some(decision.remaining())
    }

    async fn charge(&self, policy: &Policy, permits: u64) -> Option<()> {
        let decision = self.limiter.check(policy, KEY).cost(permits).await.ok()?;
        decision.is_allowed().then_some(())
    }
}

/// Whether the usage of a policy can be computed: it denies calls, and has a usual size.
fn is_computable(policy: &Policy) -> bool {
    let quota = policy.quota().whole();
    policy.algorithm_name() != "concurrency" && (1..MAX_QUOTA).contains(&quota)
}

/// The remaining permits of a key that used 60 % before the change, if usage is kept and if it is
/// reset.
pub(super) async fn effects(before: Option<&PolicyText>, new: &PolicyText) -> Vec<Value> {
    let Some(before) = before else {
        return Vec::new();
    };
    let old = before.entry().policy();
    if !is_computable(old) || !is_computable(new.entry().policy()) {
        return Vec::new();
    }
    let mut effects = Vec::new();
    for (name, inheritance) in [("as_is", Inheritance::AsIs), ("reset", Inheritance::Reset)] {
        effects.extend(effect(before, new, name, inheritance).await);
    }
    effects
}

async fn effect(
    before: &PolicyText,
    new: &PolicyText,
    name: &str,
    inheritance: Inheritance,
) -> Option<Value> {
    let simulation = Simulation::start();
    let old = before.entry().policy();
    let used = old.quota().whole().saturating_mul(3) / 5;
    if used > 0 {
        simulation.charge(old, used).await?;
    }
    let left_before = simulation.remaining(old).await?;
    // Only usage from before the change is converted.
    simulation.clock.advance(Duration::from_micros(1));
    let now: Timestamp = simulation.clock.now();
    let replaced = new.replacing(before, inheritance, now).ok()?;
    let policy = replaced.entry().policy();
    Some(json!({
        "inheritance": name,
        "before": { "left": left_before, "of": old.quota().whole() },
        "after": { "left": simulation.remaining(policy).await?, "of": policy.quota().whole() },
    }))
}

/// The admitted permits over time of a key that always asks for all of them.
pub(super) async fn curve(policy: &Policy, length: Duration) -> Vec<Value> {
    if !is_computable(policy) {
        return Vec::new();
    }
    let simulation = Simulation::start();
    let step = length / POINTS;
    let (mut admitted, mut points) = (0_u64, Vec::new());
    for point in 0..=POINTS {
        let Some(left) = simulation.remaining(policy).await else {
            return Vec::new();
        };
        if left > 0 && simulation.charge(policy, left).await.is_some() {
            admitted = admitted.saturating_add(left);
        }
        let seconds = (step * point).as_secs_f64();
        points.push(json!({ "seconds": seconds, "admitted": admitted }));
        simulation.clock.advance(step);
    }
    points
}

/// The length of the curves of a change: two windows of the slower policy, one hour at most.
#[must_use]
pub(super) fn curve_length(before: Option<&PolicyText>, new: &PolicyText) -> Duration {
    const LONGEST: Duration = Duration::from_secs(3_600);
    let windows = before
        .into_iter()
        .chain([new])
        .map(|text| text.entry().policy().window());
    let longest = windows.max().unwrap_or(LONGEST).saturating_mul(2);
    longest.clamp(Duration::from_secs(1), LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(capacity: u32) -> PolicyText {
        let text = format!("[policy.a]\nalgorithm = 'token_bucket'\ncapacity = {capacity}\nrate = '1/s'\n");
        PolicyText::parse("a", &text).unwrap()
    }

    #[tokio::test]
    async fn effects_state_the_remaining_permits_of_each_treatment() {
        let effects = effects(Some(&bucket(100)), &bucket(50)).await;
        let left = |number: usize| effects[number]["after"]["left"].as_u64();
        assert_eq!(effects[0]["before"], json!({ "left": 40, "of": 100 }));
        assert_eq!((left(0), left(1)), (Some(40), Some(50)), "{effects:?}");
    }

    #[tokio::test]
    async fn curve_starts_with_the_burst_and_follows_the_rate() {
        let text = bucket(20);
        let curve = curve(text.entry().policy(), Duration::from_secs(48)).await;
        let admitted: Vec<_> = curve
            .iter()
            .filter_map(|point| point["admitted"].as_u64())
            .collect();
        assert_eq!((admitted[0], admitted[1], admitted[48]), (20, 21, 68));
    }
}
