//! Every entry point returns the same decision.
//!
//! A table of conditions (enforced, shadow, off, suspensions, blocks, key lists, penalty, trial
//! values, entries and quotas before and after their end, unknown policy) defines one result for
//! each situation. Every entry point must return this result, in process, with Redis and on a
//! cluster. With Redis, an earlier denial has filled the deny cache, so an entry point that reads
//! the cache before it evaluates the condition fails. Trial values must not change the result, and
//! each charged call must be decided with them and counted.
//!
//! To add an entry point, add a variant to [`entry::Entry`]. To add a condition, add a row to
//! [`condition::CONDITIONS`].
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

#[path = "entry_points/answer.rs"]
mod answer;
#[path = "entry_points/condition.rs"]
mod condition;
#[path = "entry_points/end.rs"]
mod end;
#[path = "entry_points/entry.rs"]
mod entry;
#[path = "entry_points/layer.rs"]
mod layer;
#[path = "entry_points/overlay.rs"]
mod overlay;
#[path = "entry_points/settling.rs"]
mod settling;

use limiter_core::registry::{OnUnknownPolicy, PolicyRegistry, SuspensionMode};
use limiter_core::usage::{UsageCell, UsageCursor, UsageReporting};
use limiter_core::{Enforcement, Key, LimitRequest, Limiter, ManualClock, Policy};
use limiter_testing::{RedisCluster, RedisServer};

use answer::Answer;
use condition::{CONDITIONS, Condition, Situation};
use end::{End, TRIAL_QUOTA};
use entry::{ENTRIES, Entry};
use overlay::{APP, Overlay, remove_overlays};
use settling::Settling;
use support::{PATIENT, namespace};

/// The quota of the policy that is tested.
const QUOTA: u64 = 2;
const ABOVE_QUOTA: u64 = QUOTA + 1;

#[derive(Clone, Copy, Debug)]
enum Store {
    InProcess,
    Redis,
    Cluster,
}

/// A limiter with a fixed clock and a registry.
fn limiter(store: Store, condition: &Condition) -> Limiter {
    let (clock, registry) = (ManualClock::new(), PolicyRegistry::new());
    let on_unknown_policy = condition.on_unknown_policy.unwrap_or_default();
    match store {
        Store::InProcess => {
            let builder = Limiter::in_process().clock(&clock).registry(&registry).app(APP);
            builder.on_unknown_policy(on_unknown_policy).build()
        }
        Store::Redis => {
            let builder = Limiter::redis(RedisServer::shared().url()).namespace(namespace());
            let builder = builder.clock(&clock).registry(&registry).app(APP);
            let builder = builder.usage(UsageReporting::Counts);
            builder.on_unknown_policy(on_unknown_policy).build().unwrap()
        }
        Store::Cluster => {
            let builder = Limiter::redis_cluster(RedisCluster::shared().urls()).namespace(namespace());
            let builder = builder.clock(&clock).registry(&registry).app(APP);
            let builder = builder.usage(UsageReporting::Counts);
            builder.on_unknown_policy(on_unknown_policy).build().unwrap()
        }
    }
}

/// Brings a key into the situation, under the policies of before the condition.
async fn prepare(limits: &Limiter, condition: &Condition, situation: Situation, key: &Key<'_>) {
    limits.set_enforcement(Enforcement::Enforce);
    remove_overlays(limits.registry());
    let (first, second) = (condition.before("p"), condition.before("q"));
    for policy in [&first, &second] {
        limits.reset(policy, key).await.unwrap();
    }
    if let Some((trial, _)) = condition.policy("p").trial() {
        limits.reset(trial, key).await.unwrap();
    }
    if situation == Situation::UsedUp {
        assert!(limits.check(&first, key).cost(QUOTA).await.unwrap().is_allowed());
        for _ in 0..condition::DENIALS {
            assert!(!limits.check(&first, key).await.unwrap().is_allowed());
            let both = [LimitRequest::new(&first, key), LimitRequest::new(&second, key)];
            assert!(!limits.check_all(both).await.unwrap().is_allowed());
        }
    }
}

/// Puts the condition in force.
fn apply(limits: &Limiter, condition: &Condition, key: &Key<'_>) {
    let registry = limits.registry();
    for name in ["p", "q"] {
        match condition.on_unknown_policy {
            None => {
                registry.set(condition.policy(name));
                if let Some(quota) = condition.end.and_then(|end| end.key_override(name, key)) {
                    registry.set_override(quota).unwrap();
                }
            }
            Some(_) => {
                registry.remove(name);
            }
        }
    }
    limits.set_enforcement(condition.of_limiter);
    if let Some(overlay) = condition.overlay {
        overlay.put_into(registry, ManualClock::new().now());
    }
}

/// All results under these conditions that differ from the table.
async fn differences(store: Store, conditions: impl Iterator<Item = &Condition>) -> Vec<String> {
    let mut differences = Vec::new();
    for condition in conditions {
        let limits = limiter(store, condition);
        for (number, entry) in ENTRIES
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.applies_to(condition))
        {
            for situation in [Situation::Fresh, Situation::UsedUp] {
                for cost in [1, ABOVE_QUOTA] {
                    let key = entry.key(format!("{number} {situation:?} {cost}"));
                    prepare(&limits, condition, situation, &key).await;
                    apply(&limits, condition, &key);
                    let answer = entry.call(&limits, condition, &key, cost).await;
                    let quota = entry.quota(condition);
                    let expected = condition.answer(situation, cost, quota);
                    let left = left(&limits, condition, &key).await;
                    let of_policy = match entry.charges() {
                        true => condition.left_after(situation, cost, quota),
                        false => condition::left(situation),
                    };
                    let is_charged_in_trial = entry.trial(condition, cost) == Some(true);
                    let of_trial = TRIAL_QUOTA - u64::from(is_charged_in_trial);
                    let expected_left = (of_policy, left.1.map(|_| of_trial));
                    if !answer.agrees_with(&expected) || left != expected_left {
                        differences.push(format!(
                            "{condition} {situation:?} cost {cost}: {entry:?} answers {answer:?} with {left:?} left, expected \
                             {expected:?} with {expected_left:?} left"
                        ));
                    }
                }
            }
        }
    }
    differences
}

/// Returns the remaining permits of the policy and of its trial, regardless of the condition.
async fn left(limits: &Limiter, condition: &Condition, key: &Key<'_>) -> (u64, Option<u64>) {
    limits.set_enforcement(Enforcement::Enforce);
    remove_overlays(limits.registry());
    let left_of = async |policy: &Policy| limits.peek(policy, key).cost(0).await.unwrap().remaining();
    let of_trial = match condition.policy("p").trial() {
        Some((trial, _)) => Some(left_of(trial).await),
        None => None,
    };
    (left_of(&condition::plain("p")).await, of_trial)
}

#[tokio::test]
async fn entry_points_agree_in_process() {
    fail_on(&differences(Store::InProcess, CONDITIONS.iter()).await);
}

#[tokio::test]
async fn entry_points_agree_on_redis() {
    fail_on(&differences(Store::Redis, CONDITIONS.iter()).await);
}

#[tokio::test]
async fn entry_points_agree_on_a_cluster() {
    fail_on(&differences(Store::Cluster, CONDITIONS.iter()).await);
}

/// The counts of the policy `p` that are reported, and those that the table expects.
async fn counts(
    store: Store,
    condition: &Condition,
    (number, entry): (usize, &Entry),
) -> (UsageCell, UsageCell) {
    let limits = limiter(store, condition);
    let mut expected = UsageCell::default();
    for situation in [Situation::Fresh, Situation::UsedUp] {
        for cost in [1, ABOVE_QUOTA] {
            let key = entry.key(format!("{number} {situation:?} {cost}"));
            prepare(&limits, condition, situation, &key).await;
            if situation == Situation::UsedUp {
                expected.allowed += 1;
                expected.denied += 2 * u64::from(condition::DENIALS);
            }
            apply(&limits, condition, &key);
            let _ = entry.call(&limits, condition, &key, cost).await;
            if entry.charges() {
                let answer = condition.answer(situation, cost, entry.quota(condition));
                answer.count(&mut expected);
            }
            match entry.trial(condition, cost) {
                Some(true) => expected.trial_allowed += 1,
                Some(false) => expected.trial_denied += 1,
                None => {}
            }
        }
    }
    limits.shutdown(PATIENT).await;
    let usage = limits.fleet_usage().unwrap();
    let minutes = usage.changed_minutes(&mut UsageCursor::default()).await.unwrap();
    let mut cells = minutes.into_iter().flat_map(|minute| minute.cells);
    (
        cells.find(|cell| cell.policy == "p").unwrap_or_default(),
        expected,
    )
}

/// Each call is counted once in the usage of its policy, by its result, and once by the result of
/// its trial; a peek is not counted.
async fn wrong_counts(store: Store, conditions: impl Iterator<Item = &Condition>) -> Vec<String> {
    let shown = |cell: &UsageCell| {
        let of_calls = [cell.allowed, cell.denied, cell.would_deny, cell.failed];
        (of_calls, [cell.trial_allowed, cell.trial_denied])
    };
    let mut differences = Vec::new();
    for condition in conditions {
        let entries = ENTRIES
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.applies_to(condition));
        for (number, entry) in entries {
            let (actual, expected) = counts(store, condition, (number, entry)).await;
            if shown(&actual) != shown(&expected) {
                differences.push(format!(
                    "{condition}: {entry:?} has {actual:?}, expected {expected:?}"
                ));
            }
        }
    }
    differences
}

#[tokio::test]
async fn entry_points_count_each_call_once() {
    fail_on(&wrong_counts(Store::Redis, CONDITIONS.iter()).await);
}

#[tokio::test]
async fn entry_points_count_each_trial_on_a_cluster() {
    let tried = |condition: &&Condition| condition.end == Some(End::LaterTrial);
    fail_on(&wrong_counts(Store::Cluster, CONDITIONS.iter().filter(tried)).await);
}

fn fail_on(differences: &[String]) {
    let shown: Vec<_> = differences.iter().take(20).map(String::as_str).collect();
    assert!(
        differences.is_empty(),
        "{} differences:\n{}",
        differences.len(),
        shown.join("\n")
    );
}

/// A refund and a later charge have an effect where a decision charges, and nowhere else.
#[tokio::test]
async fn refunds_and_charges_follow_the_condition_of_decisions() {
    for store in [Store::InProcess, Store::Redis, Store::Cluster] {
        for condition in CONDITIONS {
            let limits = limiter(store, condition);
            for settling in Settling::ALL
                .iter()
                .filter(|settling| settling.applies_to(condition))
            {
                for cost in [1, ABOVE_QUOTA] {
                    let key = Key::from(format!("{cost} {settling:?}"));
                    prepare(&limits, condition, Situation::Fresh, &key).await;
                    let taken = limits.check(&condition.before("p"), &key).await.unwrap();
                    assert!(taken.is_allowed());
                    apply(&limits, condition, &key);
                    settling.call(&limits, condition, &key, cost).await.unwrap();
                    let expected = match (condition.settles(), settling.is_refund()) {
                        (false, _) => QUOTA - 1,
                        (true, true) => QUOTA,
                        (true, false) => 0,
                    };
                    let (left, of_trial) = left(&limits, condition, &key).await;
                    assert!(
                        of_trial.is_none_or(|left| left == TRIAL_QUOTA),
                        "{store:?} {settling:?}"
                    );
                    assert_eq!(left, expected, "{store:?} {condition} {settling:?} cost {cost}");
                }
            }
        }
    }
}

/// The table is complete: it has each mode, each list, a penalty, and an unknown policy.
#[test]
fn table_has_every_condition() {
    let has = |is: fn(&Condition) -> bool| CONDITIONS.iter().any(is);
    for mode in [Enforcement::Enforce, Enforcement::Shadow, Enforcement::Off] {
        assert!(CONDITIONS.iter().any(|condition| condition.of_policy == mode));
        assert!(CONDITIONS.iter().any(|condition| condition.of_limiter == mode));
    }
    assert!(has(|condition| condition.allows_key) && has(|condition| condition.denies_key));
    assert!(has(|condition| condition.has_penalty));
    for answer in [OnUnknownPolicy::Allow, OnUnknownPolicy::Deny] {
        assert!(
            CONDITIONS
                .iter()
                .any(|condition| condition.on_unknown_policy == Some(answer))
        );
    }
    for mode in [SuspensionMode::Off, SuspensionMode::Shadow, SuspensionMode::Deny] {
        let is_suspended = |overlay| {
            overlay == Overlay::SuspendedPolicies(mode)
                || overlay == Overlay::SuspendedApp(mode)
                || overlay == Overlay::SuspendedAll(mode)
        };
        assert!(
            CONDITIONS
                .iter()
                .any(|condition| condition.overlay.is_some_and(is_suspended))
        );
    }
    assert!(has(|condition| matches!(
        condition.overlay,
        Some(Overlay::Expired(_))
    )));
    assert!(has(|condition| condition.overlay == Some(Overlay::Blocked)));
    for end in End::ALL {
        assert!(CONDITIONS.iter().any(|condition| condition.end == Some(*end)));
    }
    assert!(ENTRIES.iter().any(Entry::charges) && !ENTRIES.iter().all(Entry::charges));
    assert_ne!(Answer::NeverFits, Answer::Forbidden);
}
