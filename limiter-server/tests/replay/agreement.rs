//! A replay decides as the limiter does, and as simple models of the algorithms do.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use limiter_core::registry::PolicyRegistry;
use limiter_core::{Limiter, ManualClock, Rejection, Timestamp};
use limiter_server::replay::report::ReplayReport;
use limiter_server::replay::{KeyField, PolicyChoice, ReplayOptions, replay};
use proptest::prelude::*;

use crate::support::server::Directory;

const START: u64 = 1_767_268_800_000_000;

/// A call: microseconds since the last one, key and cost.
type RecordedCall = (u64, u8, u64);

fn options(directory: &Directory, policies: &str, log: &str, choice: PolicyChoice) -> ReplayOptions {
    let fields = ["key"].map(|field| field.parse::<KeyField>().unwrap());
    ReplayOptions {
        policies: Some(directory.write("policies.toml", policies)),
        compare: None,
        logs: vec![directory.write("log", log)],
        format: None,
        key: fields.to_vec(),
        cost: Some("cost".to_owned()),
        time: None,
        choice,
        app: None,
        max_keys: 1_000,
        suggest: None,
    }
}

fn log_of(calls: &[RecordedCall]) -> String {
    let (mut log, mut at) = (String::new(), START);
    for (step, key, cost) in calls {
        at += step;
        writeln!(log, r#"{{"ts":{at},"key":"k{key}","cost":{cost}}}"#).unwrap();
    }
    log
}

fn replayed(policies: &str, calls: &[RecordedCall]) -> ReplayReport {
    let directory = Directory::new();
    let log = log_of(calls);
    replay(&options(&directory, policies, &log, PolicyChoice::Each), |_| {}).unwrap()
}

/// Polls a call of an in-process limiter, which is ready at once.
fn ready<F: IntoFuture>(call: F) -> F::Output {
    match pin!(call.into_future()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("not ready at once"),
    }
}

/// Admitted and denied calls and the longest wait of each key, as a limiter decides them.
fn decided(
    registry: &PolicyRegistry,
    name: &str,
    calls: &[RecordedCall],
) -> BTreeMap<u8, (u64, u64, Duration)> {
    let clock = ManualClock::new();
    let limits = Limiter::in_process().clock(&clock).registry(registry).build();
    let (mut keys, mut at) = (BTreeMap::<u8, (u64, u64, Duration)>::new(), START);
    for (step, key, cost) in calls {
        at += step;
        clock.set(Timestamp::from_micros(at));
        let text = format!("k{key}");
        let decision = ready(limits.named(name).check(&text).cost(*cost));
        let counts = keys.entry(*key).or_default();
        let wait = match decision {
            Ok(decision) if decision.is_allowed() && !decision.would_deny() => {
                counts.0 += 1;
                decision.delay()
            }
            Ok(decision) => {
                counts.1 += 1;
                decision
                    .limits()
                    .iter()
                    .map(|limit| limit.retry_after())
                    .max()
                    .unwrap_or_default()
            }
            Err(Rejection::NeverFits { .. }) => {
                counts.1 += 1;
                Duration::ZERO
            }
            Err(error) => panic!("{error}"),
        };
        counts.2 = counts.2.max(wait);
    }
    keys
}

fn agree(report: &ReplayReport, name: &str, expected: &BTreeMap<u8, (u64, u64, Duration)>) {
    let policy = report.results[0]
        .policies
        .iter()
        .find(|policy| policy.name == name)
        .unwrap();
    let sum = |of: fn(&(u64, u64, Duration)) -> u64| expected.values().map(of).sum::<u64>();
    assert_eq!(
        (policy.admitted, policy.denied),
        (sum(|key| key.0), sum(|key| key.1)),
        "{name}"
    );
    assert_eq!(policy.undecided, 0, "{name}");
    assert_eq!(policy.keys, expected.len() as u64, "{name}");
    let longest = expected.values().map(|key| key.2).max().unwrap_or_default();
    assert_eq!(policy.waits.longest, longest, "{name}");
    let denied = expected.iter().filter(|(_, counts)| counts.1 > 0);
    let denied: BTreeMap<String, (u64, u64, Duration)> = denied
        .map(|(key, (admitted, denied, wait))| (format!("k{key}"), (admitted + denied, *denied, *wait)))
        .collect();
    let listed = policy.most_denied.iter();
    let listed: BTreeMap<String, (u64, u64, Duration)> = listed
        .map(|key| (key.key.clone(), (key.calls, key.denied, key.longest_wait)))
        .collect();
    assert_eq!(listed, denied, "{name}");
    let series = &policy.over_time.counts;
    let totals = series
        .iter()
        .fold((0, 0), |sum, of| (sum.0 + of.admitted, sum.1 + of.denied));
    assert_eq!(totals, (policy.admitted, policy.denied), "{name}");
}

/// One policy of each algorithm and with each option, with these numbers.
fn policies(capacity: u64, period_ms: u64) -> String {
    format!(
        "
[policy.bucket]
algorithm = 'token_bucket'
capacity = {capacity}
rate = '1/{period_ms}ms'

[policy.funnel]
algorithm = 'funnel'
capacity = {capacity}
rate = '2/{period_ms}ms'

[policy.paced]
algorithm = 'funnel'
capacity = {capacity}
rate = '2/{period_ms}ms'
paced = true

[policy.sliding]
algorithm = 'sliding_window'
limit = {capacity}
window = '{period_ms}ms'

[policy.counter]
algorithm = 'counter_window'
limit = {capacity}
window = '{period_ms}ms'

[policy.fixed]
algorithm = 'fixed_window'
limit = {capacity}
window = '{period_ms}ms'

[policy.shadow]
algorithm = 'token_bucket'
capacity = {capacity}
rate = '1/{period_ms}ms'
enforcement = 'shadow'

[policy.listed]
algorithm = 'token_bucket'
capacity = {capacity}
rate = '1/{period_ms}ms'
allow_keys = ['k1']
deny_keys = ['k2']
"
    )
}

const NAMES: [&str; 8] = [
    "bucket", "funnel", "paced", "sliding", "counter", "fixed", "shadow", "listed",
];

fn calls() -> impl Strategy<Value = Vec<RecordedCall>> {
    let step = prop_oneof![Just(0), 0..2_000_u64, 0..3_000_000_u64];
    proptest::collection::vec((step, 0..4_u8, 0..4_u64), 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn replay_agrees_with_limiter(calls in calls(), capacity in 1..8_u64, period_ms in 1..3_000_u64) {
        let policies = policies(capacity, period_ms);
        let report = replayed(&policies, &calls);
        prop_assert_eq!(report.calls, calls.len() as u64);
        let registry = PolicyRegistry::from_toml(&policies).unwrap();
        for name in NAMES {
            agree(&report, name, &decided(&registry, name, &calls));
        }
        let of = |name: &str| report.results[0].policies.iter().find(|policy| policy.name == name).unwrap();
        prop_assert_eq!(of("bucket").denied, denied_by_bucket(&calls, capacity, period_ms));
        prop_assert_eq!(of("sliding").denied, denied_by_window(&calls, capacity, period_ms));
    }
}

/// A token bucket in exact fractions: one permit is the length of the period.
fn denied_by_bucket(calls: &[RecordedCall], capacity: u64, period_ms: u64) -> u64 {
    let permit = u128::from(period_ms) * 1_000;
    let full = u128::from(capacity) * permit;
    let mut levels: BTreeMap<u8, (u64, u128)> = BTreeMap::new();
    let (mut denied, mut at) = (0, 0);
    for (step, key, cost) in calls {
        at += step;
        let (last, level) = levels.entry(*key).or_insert((at, full));
        *level = (*level + u128::from(at - *last)).min(full);
        *last = at;
        match level.checked_sub(u128::from(*cost) * permit) {
            Some(left) => *level = left,
            None => denied += 1,
        }
    }
    denied
}

/// A window as the list of its permits.
fn denied_by_window(calls: &[RecordedCall], limit: u64, window_ms: u64) -> u64 {
    let window = window_ms * 1_000;
    let mut permits: BTreeMap<u8, Vec<u64>> = BTreeMap::new();
    let (mut denied, mut at) = (0, 0);
    for (step, key, cost) in calls {
        at += step;
        let used = permits.entry(*key).or_default();
        used.retain(|permit| at - permit < window);
        if used.len() as u64 + cost <= limit {
            used.extend((0..*cost).map(|_| at));
        } else {
            denied += 1;
        }
    }
    denied
}

#[test]
fn penalty_and_override_apply_in_replay() {
    let policies = "
[policy.login]
algorithm = 'sliding_window'
limit = 1
window = '10s'
penalty = '5 in 1m: 30s'

[[override]]
policy = 'login'
key = 'k1'
limit = 3
window = '10s'
";
    let calls: Vec<RecordedCall> = (0..40).map(|number| (1_000_000, number % 2, 1)).collect();
    let report = replayed(policies, &calls);
    let registry = PolicyRegistry::from_toml(policies).unwrap();
    agree(&report, "login", &decided(&registry, "login", &calls));
}

#[test]
fn fractional_cost_is_undecided_under_window() {
    let directory = Directory::new();
    let policies = policies(5, 1_000);
    let log = r#"{"ts":1767268800,"key":"a","cost":0.5}"#;
    let report = replay(&options(&directory, &policies, log, PolicyChoice::Each), |_| {}).unwrap();
    let undecided = report.results[0]
        .policies
        .iter()
        .filter(|policy| policy.undecided == 1);
    let names: Vec<&str> = undecided.map(|policy| policy.name.as_str()).collect();
    assert_eq!(names, ["counter", "fixed", "sliding"]);
    assert_eq!(report.results[0].undecided, 1);
}
