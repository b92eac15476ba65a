//! The effect of a change in numbers, computed by the algorithms themselves with a clock of their
//! own.
//!
//! A simulation charges a key of an in-process limiter under the old policy, replaces the policy,
//! and peeks. It thus states the remaining permits for each treatment of usage, the curve of
//! admitted permits and the next resets of aligned periods. Policies without a finite computation
//! (concurrency, quotas of `MAX_QUOTA` and more) have no numbers. No key of a store is read.
//!
//! Tests: below, and `tests/pages/preview.rs`.

use std::time::Duration;

use limiter_core::{Inheritance, Limiter, ManualClock, Policy, Timestamp};
use serde_json::{Map, Value, json};

use crate::policy_text::PolicyText;

/// The key of the computation.
const KEY: &str = "example";
/// The number of points of a curve.
const POINTS: u32 = 48;
/// The number of resets that are shown.
const SHOWN_RESETS: usize = 3;
/// The treatments of the usage of keys, by their names in the API.
const INHERITANCES: [(&str, Inheritance); 3] = [
    ("as_is", Inheritance::AsIs),
    ("proportional", Inheritance::Proportional),
    ("reset", Inheritance::Reset),
];
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

/// Returns whether the usage of a policy can be computed: it denies calls, and has a usual size.
fn is_computable(policy: &Policy) -> bool {
    let quota = policy.quota().whole();
    policy.algorithm_name() != "concurrency" && (1..MAX_QUOTA).contains(&quota)
}

/// A key whose state is computed after the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedKey {
    /// The parts of the key, separated by ` / `; `None` for an example.
    key: Option<String>,
    /// The permits that the key has used.
    used: u64,
}

impl UsedKey {
    /// Creates a key that has used some permits.
    #[must_use]
    pub fn new(key: &str, used: u64) -> Self {
        Self {
            key: Some(key.to_owned()),
            used,
        }
    }

    /// Returns an example that has used 60 % of its quota.
    fn example(policy: &Policy) -> Self {
        Self {
            key: None,
            used: policy.quota().whole().saturating_mul(3) / 5,
        }
    }
}

/// Returns the remaining permits of keys before and after the change, for each treatment of their
/// usage.
pub(super) async fn effects(before: Option<&PolicyText>, new: &PolicyText, keys: &[UsedKey]) -> Vec<Value> {
    let Some(before) = before else {
        return Vec::new();
    };
    let old = before.entry().policy();
    if !is_computable(old) || !is_computable(new.entry().policy()) {
        return Vec::new();
    }
    let mut effects = Vec::new();
    for key in [&UsedKey::example(old)].into_iter().chain(keys) {
        let mut after = Map::new();
        let mut left_before = None;
        for (name, inheritance) in INHERITANCES {
            // The usage of an exact window cannot be scaled.
            if let Some((left, changed)) = effect(before, new, key.used, inheritance).await {
                left_before = Some(left);
                after.insert(name.to_owned(), changed);
            }
        }
        if let Some(left) = left_before {
            let of = old.quota().whole();
            effects.push(json!({ "key": key.key, "before": { "left": left, "of": of }, "after": after }));
        }
    }
    effects
}

/// Returns the permits that are left before the change, and the state after it.
async fn effect(
    before: &PolicyText,
    new: &PolicyText,
    used: u64,
    inheritance: Inheritance,
) -> Option<(u64, Value)> {
    let simulation = Simulation::start();
    let old = before.entry().policy();
    let used = used.min(old.quota().whole());
    if used > 0 {
        simulation.charge(old, used).await?;
    }
    let left_before = simulation.remaining(old).await?;
    // Only usage from before the change is converted.
    simulation.clock.advance(Duration::from_micros(1));
    let now: Timestamp = simulation.clock.now();
    let replaced = new.replacing(before, inheritance, now).ok()?;
    let policy = replaced.entry().policy();
    let left = simulation.remaining(policy).await?;
    let changed = json!({ "left": left, "of": policy.quota().whole() });
    Some((left_before, changed))
}

/// Returns the next resets of a policy whose periods are aligned; none for other policies.
pub(super) async fn resets(new: &PolicyText, now: Timestamp) -> Vec<Timestamp> {
    let policy = new.entry().policy();
    if alignment(new).is_none() || !is_computable(policy) {
        return Vec::new();
    }
    let simulation = Simulation::start();
    simulation.clock.set(now);
    let mut resets = Vec::new();
    for _ in 0..SHOWN_RESETS {
        if simulation.charge(policy, 1).await.is_none() {
            break;
        }
        let Ok(decision) = simulation.limiter.peek(policy, KEY).await else {
            break;
        };
        simulation.clock.advance(decision.reset_after());
        resets.push(simulation.clock.now());
    }
    resets
}

/// Returns the offset of local time to which the periods of a policy are aligned.
pub(super) fn alignment(text: &PolicyText) -> Option<String> {
    let table = text.to_toml().parse::<toml::Table>().ok()?;
    let align = table.get("policy")?.get(text.name())?.get("align")?;
    align.as_str().map(str::to_owned)
}

/// Returns the admitted permits over time of a key that always asks for all of them.
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

/// Returns the length of the curves of a change: two windows of the slower policy, one hour at
/// most.
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
        let acme = UsedKey::new("acme", 90);
        let effects = effects(Some(&bucket(100)), &bucket(50), &[acme]).await;
        let left = |number: usize, inheritance: &str| effects[number]["after"][inheritance]["left"].as_u64();
        assert_eq!(effects[0]["before"], json!({ "left": 40, "of": 100 }));
        let example = ["as_is", "proportional", "reset"].map(|of| left(0, of));
        assert_eq!(example, [Some(40), Some(20), Some(50)], "{effects:?}");
        assert_eq!(effects[1]["key"], "acme");
        assert_eq!((left(1, "as_is"), left(1, "proportional")), (Some(10), Some(5)));
    }

    #[tokio::test]
    async fn resets_of_aligned_periods_are_computed() {
        let text = "[policy.a]\nalgorithm = 'fixed_window'\nlimit = 5\nwindow = '1d'\n";
        let aligned = PolicyText::parse("a", &format!("{text}align = '+02:00'\n")).unwrap();
        // 2026-11-23T14:03:00Z.
        let now = Timestamp::from_micros(1_795_442_580_000_000);
        let days = [0, 1, 2].map(|day| Timestamp::from_micros(1_795_471_200_000_000 + day * 86_400_000_000));
        assert_eq!(resets(&aligned, now).await, days);
        let plain = PolicyText::parse("a", text).unwrap();
        assert_eq!(resets(&plain, now).await, []);
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
