//! The decisions of the last day of the demonstration, which no gateway has made.
//!
//! The counts by minute follow the time of day, with a higher share of denials before each raised
//! limit, and each hour has samples of the most denied keys. Tests: below, and `tests/demo.rs`.

use std::collections::BTreeMap;

use crate::demo::{ATTACKER, BUSY_CUSTOMER, SUSPENDED_MINUTES};
use crate::store::{DenialSample, Store, StoreError, UsageKind, UsageSpan, UsageTotals};

const DAY_HOURS: i64 = 24;
/// The source of the samples of denied keys.
const SOURCE: &str = "demo";

/// The usual calls of a policy per minute, and the share that is denied in percent. The generated
/// traffic continues with these numbers.
const USUAL: [(&str, f64, f64); 5] = [
    ("search", 1_800.0, 14.0),
    ("checkout", 540.0, 0.4),
    ("payments", 60.0, 11.0),
    ("login", 360.0, 15.0),
    ("suggestions", 300.0, 22.0),
];

/// The keys whose calls are denied: policy, key, rule.
const DENIED_KEYS: [(&str, &str, &str); 4] = [
    ("search", BUSY_CUSTOMER, "edge: route=search, customer"),
    ("checkout", BUSY_CUSTOMER, "edge: route=checkout, customer"),
    ("payments", BUSY_CUSTOMER, "edge: route=payments, customer"),
    ("login", ATTACKER, "edge: route=login, remote_address"),
];

/// Adds the decisions and the denied keys of the last day.
pub(super) async fn fill(store: &Store, namespace: &str, now: i64) -> Result<(), StoreError> {
    let minute = UsageSpan::Minute.micros();
    let minutes = DAY_HOURS * 60;
    // The traffic adds the rest of the minute that is not over.
    #[expect(clippy::cast_precision_loss, reason = "a minute is short")]
    let elapsed = (now % minute) as f64 / minute as f64;
    let mut samples: BTreeMap<(i64, &str), DenialSample> = BTreeMap::new();
    for ago in (0..=minutes).rev() {
        let part = if ago == 0 { elapsed } else { 1.0 };
        let at = now - ago * minute;
        let usage =
            USUAL.map(|(policy, calls, percent)| (policy, usage_of(policy, calls * part, percent, ago)));
        for (policy, totals) in usage {
            add_sample(&mut samples, (at, policy), totals.denied);
        }
        let counts: Vec<(String, UsageTotals)> = usage
            .into_iter()
            .filter(|(_, totals)| totals.calls() > 0)
            .map(|(policy, totals)| (policy.to_owned(), totals))
            .collect();
        store.add_usage(namespace, UsageKind::Policy, at, &counts).await?;
    }
    let samples: Vec<DenialSample> = samples.into_values().collect();
    store.record_denials(namespace, SOURCE, &samples).await
}

/// Adds the denied calls of a minute to the sample of its hour.
fn add_sample(
    samples: &mut BTreeMap<(i64, &'static str), DenialSample>,
    (at, policy): (i64, &str),
    denied: i64,
) {
    let Some((policy, key, rule)) = DENIED_KEYS.into_iter().find(|(of, ..)| *of == policy) else {
        return;
    };
    if denied == 0 {
        return;
    }
    let start_at = UsageSpan::Hour.start(at);
    let sample = samples.entry((start_at, policy)).or_insert_with(|| DenialSample {
        policy: policy.to_owned(),
        start_at,
        node: String::new(),
        app: None,
        key: key.to_owned(),
        rule: Some(rule.to_owned()),
        revision: None,
        origin: Some("memory".to_owned()),
        first_at: at,
        last_at: at,
        error: 0,
        denied: 0,
    });
    sample.denied += denied;
    sample.last_at = sample.last_at.max(at);
}

/// Returns the usage of a policy some minutes ago.
fn usage_of(policy: &str, calls: f64, percent: f64, minutes_ago: i64) -> UsageTotals {
    #[expect(clippy::cast_precision_loss, reason = "a day has 1,440 minutes")]
    let hours = minutes_ago as f64 / 60.0;
    let wave = (hours * 0.26).cos() * 0.25 + (hours * 7.3).sin() * 0.06 + (hours * 23.0).cos() * 0.04;
    let calls = calls * (0.8 + wave);
    // Each raised limit admits more calls than the one before.
    let factor = match policy {
        "search" if hours > 16.0 => 2.2,
        "search" if hours > 3.0 => 1.5,
        "payments" if hours > 6.0 => 2.0,
        "login" if hours > 9.0 => 0.7,
        _ => 1.0,
    };
    let share = (percent * factor * (1.0 + (hours * 3.1).sin() * 0.4) / 100.0).clamp(0.0, 0.9);
    let whole = |number: f64| {
        #[expect(clippy::cast_possible_truncation, reason = "the number is small")]
        let whole = number.round() as i64;
        whole
    };
    let denied = whole(calls * share);
    let allowed = whole(calls) - denied;
    match policy {
        // A suspended policy passes all calls.
        "suggestions" if minutes_ago < SUSPENDED_MINUTES => UsageTotals {
            allowed: allowed + denied,
            ..UsageTotals::default()
        },
        "suggestions" => UsageTotals {
            allowed,
            would_deny: denied,
            ..UsageTotals::default()
        },
        _ => UsageTotals {
            allowed,
            denied,
            ..UsageTotals::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_the_day_has_a_small_share_of_denials() {
        for (policy, calls, percent) in USUAL {
            let mut sum = UsageTotals::default();
            for ago in SUSPENDED_MINUTES..SUSPENDED_MINUTES + 60 {
                sum = sum.plus(usage_of(policy, calls, percent, ago));
            }
            let refused = sum.denied + sum.would_deny;
            assert!(refused > 0 && refused * 3 < sum.calls(), "{policy}: {sum:?}");
            assert_eq!(sum.denied == 0, policy == "suggestions", "{sum:?}");
        }
    }

    #[test]
    fn suspended_policy_denies_nothing() {
        let usage = usage_of("suggestions", 300.0, 22.0, SUSPENDED_MINUTES - 1);
        assert_eq!(usage.calls(), usage.allowed, "{usage:?}");
    }

    #[test]
    fn samples_have_the_denials_of_their_hour() {
        let (minute, hour) = (UsageSpan::Minute.micros(), UsageSpan::Hour.micros());
        let mut samples = BTreeMap::new();
        for (at, denied) in [(hour, 2), (hour + minute, 3), (2 * hour, 4), (3 * hour, 0)] {
            add_sample(&mut samples, (at, "search"), denied);
            add_sample(&mut samples, (at, "suggestions"), denied);
        }
        let counts: Vec<(i64, i64)> = samples
            .values()
            .map(|of| (of.start_at / hour, of.denied))
            .collect();
        assert_eq!(counts, [(1, 5), (2, 4)]);
        assert_eq!(samples[&(hour, "search")].last_at, hour + minute);
    }
}
