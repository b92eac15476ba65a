//! Tests of the record of keys.

use crate::gateway::activity::*;

const MINUTE: i64 = MICROS_PER_MINUTE;

fn call(policy: &str, numbers: (u64, u64)) -> DecidedCall<'_> {
    DecidedCall {
        policy,
        peer: None,
        is_allowed: numbers.0 > 0,
        numbers: Some(numbers),
        origin: Origin::Memory,
    }
}

fn kept(key: impl Into<String>) -> KeptCall {
    KeptCall {
        key: key.into(),
        rule: None,
        revision: 1,
    }
}

fn shown(activity: &KeyActivity, range: (i64, i64)) -> Vec<(String, u64, u8)> {
    let keys = activity.keys("search", range).into_iter();
    keys.map(|of| (of.key, of.denied, of.used_percent)).collect()
}

#[test]
fn denied_and_full_keys_are_kept_by_minute() {
    let activity = KeyActivity::new(0);
    for (key, numbers, at) in [
        ("idle", (9, 10), 1),
        ("full", (2, 10), 2),
        ("denied", (0, 10), 3),
        ("denied", (0, 10), MINUTE + 1),
    ] {
        activity.record(call("search", numbers), || kept(key), at);
    }
    let row = |key: &str, denied, used| (key.to_owned(), denied, used);
    assert_eq!(
        shown(&activity, (0, MINUTE)),
        [row("denied", 2, 100), row("full", 0, 80)]
    );
    assert_eq!(shown(&activity, (MINUTE, MINUTE)), [row("denied", 1, 100)]);
    assert_eq!(shown(&activity, (2 * MINUTE, 3 * MINUTE)), []);
    assert_eq!(activity.last_call("search").map(|call| call.at), Some(MINUTE + 1));
    assert_eq!(activity.last_call("absent"), None);
}

#[test]
fn key_has_the_rule_and_the_revision_of_its_last_denial() {
    let activity = KeyActivity::new(0);
    let calls = [(0, "first", 3, 1), (0, "second", 4, 2), (5, "third", 5, 3)];
    for (remaining, rule, revision, at) in calls {
        let kept = || KeptCall {
            rule: Some(rule.to_owned()),
            revision,
            ..kept("ann")
        };
        activity.record(call("search", (remaining, 10)), kept, at * MINUTE);
    }
    let keys = activity.keys("search", (0, 3 * MINUTE));
    let ann = &keys[0];
    assert_eq!((ann.denied, ann.first_at, ann.last_at), (2, MINUTE, 3 * MINUTE));
    assert_eq!((ann.rule.as_deref(), ann.revision), (Some("second"), Some(4)));
    assert_eq!(ann.origin, Some(Origin::Memory));
    assert_eq!(activity.policies(), ["search"]);
}

#[test]
fn most_denied_keys_survive_many_others_with_a_stated_error() {
    let activity = KeyActivity::new(0);
    for number in 0..2_000_u32 {
        activity.record(call("search", (0, 1)), || kept(format!("once {number}")), 5);
        activity.record(call("search", (0, 1)), || kept("often"), 6);
    }
    let keys = activity.keys("search", (0, 10));
    assert_eq!(keys.len(), KEYS_PER_MINUTE);
    assert_eq!((keys[0].key.as_str(), keys[0].denied), ("often", 2_000));
    assert!(keys[1..].iter().all(|of| of.denied - of.error <= 1));
}

#[test]
fn memory_is_bounded() {
    let activity = KeyActivity::new(0);
    for minute in 0..2_000 {
        for number in 0..KEYS_PER_MINUTE {
            let key = || kept(format!("{number} {}", "x".repeat(1_000)));
            activity.record(call("search", (0, 1)), key, minute * MINUTE);
        }
    }
    let shard = activity.locked("search");
    let tables = &shard["search"].minutes;
    let keys: usize = tables.iter().map(|table| table.keys.len()).sum();
    assert!(keys <= MAX_KEYS + KEYS_PER_MINUTE, "{keys}");
    assert_eq!(tables[0].keys[0].key.chars().count(), KEPT_CHARS);
    drop(shard);
    for number in 0..20_000 {
        activity.record(call(&number.to_string(), (9, 10)), || kept(""), 0);
    }
    let policies: usize = activity.shards.iter().map(|of| of.lock().unwrap().len()).sum();
    assert!(policies <= SHARDS * MAX_POLICIES);
}

#[test]
fn utilisation_is_that_of_the_newest_minute() {
    let activity = KeyActivity::new(0);
    assert_eq!(activity.utilisation("search"), None);
    let record = |key: &str, remaining, minute| {
        activity.record(call("search", (remaining, 10)), || kept(key), minute * MINUTE);
    };
    let utilisation = |minute, highest_percent, fullest: Option<&str>, nearly_full| {
        Some(Utilisation {
            at: minute * MINUTE,
            highest_percent,
            fullest: fullest.map(str::to_owned),
            nearly_full,
            is_lower_bound: false,
        })
    };
    for (key, remaining) in [("denied", 0), ("full", 1), ("used", 2)] {
        record(key, remaining, 1);
    }
    assert_eq!(
        activity.utilisation("search"),
        utilisation(1, 100, Some("denied"), 2)
    );
    // A usage below that of kept keys is known as well.
    record("idle", 7, 2);
    assert_eq!(activity.utilisation("search"), utilisation(2, 30, None, 0));
    for number in 0..=KEYS_PER_MINUTE {
        record(&number.to_string(), 1, 3);
    }
    let of_many = activity.utilisation("search").unwrap();
    assert_eq!(
        (of_many.nearly_full, of_many.is_lower_bound),
        (KEYS_PER_MINUTE, true)
    );
}

#[test]
fn new_policy_replaces_one_that_is_not_called() {
    let activity = KeyActivity::new(0);
    let names: Vec<String> = (0..4 * SHARDS * MAX_POLICIES)
        .map(|of| format!("old{of}"))
        .collect();
    for name in &names {
        activity.record(call(name, (9, 10)), || kept("ann"), 0);
    }
    assert_eq!(activity.policies().len(), SHARDS * MAX_POLICIES);
    let later = (FULL_KEPT + 1) * MINUTE;
    activity.record(call("search", (0, 10)), || kept("ann"), FULL_KEPT * MINUTE);
    assert_eq!(activity.last_call("search"), None, "all are in use");
    activity.record(call("search", (0, 10)), || kept("ann"), later);
    assert_eq!(shown(&activity, (later, later)), [("ann".to_owned(), 1, 100)]);
    assert_eq!(activity.policies().len(), SHARDS * MAX_POLICIES);
}
