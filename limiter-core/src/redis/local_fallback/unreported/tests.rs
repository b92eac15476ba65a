use super::*;
use crate::request::LimitRequest;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(1_000_000_000 + micros)
}

/// Refills completely in two seconds; each of two replicas has a half.
fn policy() -> Policy {
    let policy = Policy::token_bucket("p").capacity(20).rate("10/s");
    policy.build().unwrap()
}

fn limit<'a>(policy: &'a Policy, key: &'a str) -> ValidatedLimit<'a> {
    ValidatedLimit::of(LimitRequest::new(policy, key)).unwrap()
}

fn taken(permits: &UnreportedPermits, limit: &ValidatedLimit<'_>, now: Timestamp) -> Option<u64> {
    let report = permits.take(limit, || u64::MAX, now);
    report.map(|report| report.amount)
}

#[test]
fn unreported_permits_decrease_at_share_rate_after_refill() {
    let (policy, permits) = (policy(), UnreportedPermits::new(10));
    let (limit, share) = (limit(&policy, "k"), policy.algorithm().share(2));
    for (age, left) in [(0, 9_000), (2_000_000, 9_000), (3_000_000, 4_000), (4_000_000, 0)] {
        permits.record(&limit, 4_000, &share, at(0));
        permits.record(&limit, 5_000, &share, at(0));
        assert_eq!(taken(&permits, &limit, at(age)), Some(left), "after {age} µs");
        assert_eq!(taken(&permits, &limit, at(age)), None);
    }
    let window = Policy::sliding_window("w").limit(9).window("1s").build().unwrap();
    let limit = ValidatedLimit::of(LimitRequest::new(&window, "k")).unwrap();
    permits.record(&limit, 7, &window.algorithm().share(1), at(0));
    let report = permits.take(&limit, || 3, at(900_000)).unwrap();
    assert_eq!(report.amount, 3, "the other permits have expired");
}

#[test]
fn limit_reconciles_until_one_second_after_its_report() {
    let (policy, permits) = (policy(), UnreportedPermits::new(10));
    let (limit, share) = (limit(&policy, "k"), policy.algorithm().share(2));
    let is_reconciling = |micros| permits.is_reconciling(limit.identity, at(micros));
    permits.record(&limit, 1_000, &share, at(0));
    assert!(!is_reconciling(999_999) && is_reconciling(1_000_000));
    assert_eq!(taken(&permits, &limit, at(1_500_000)), Some(1_000));
    permits.finish(limit.identity, at(1_600_000));
    assert!(is_reconciling(2_599_999) && !is_reconciling(2_600_000));
    permits.remove_settled(at(2_600_000));
    assert!(permits.is_empty());

    permits.record(&limit, 1_000, &share, at(3_000_000));
    assert_eq!(taken(&permits, &limit, at(3_900_000)), Some(1_000));
    permits.finish(limit.identity, at(3_950_000));
    assert!(!is_reconciling(3_960_000), "an outage of less than a second");
}

#[test]
fn unsent_report_is_restored_with_later_permits() {
    let (policy, permits) = (policy(), UnreportedPermits::new(10));
    let (limit, share) = (limit(&policy, "k"), policy.algorithm().share(2));
    permits.record(&limit, 3_000, &share, at(0));
    let report = permits.take(&limit, || 0, at(10)).unwrap();
    permits.record(&limit, 2_000, &share, at(20));
    permits.restore(limit.identity, report);
    assert_eq!(permits.oldest(), Some(at(0)));
    let refunded = ValidatedLimit {
        cost: 1_000,
        ..limit.clone()
    };
    permits.take_back(&refunded, 0, 0);
    assert_eq!(taken(&permits, &limit, at(30)), Some(4_000));
}

#[test]
fn memory_is_bounded_and_batches_contain_all_limits() {
    let (policy, permits) = (policy(), UnreportedPermits::new(100));
    let share = policy.algorithm().share(1);
    for key in 0..200 {
        let key = key.to_string();
        permits.record(&limit(&policy, &key), 1_000, &share, at(0));
    }
    let mut named: Vec<_> = (0..SHARDS).flat_map(|_| permits.batch(1)).collect();
    assert_eq!(permits.batch(usize::MAX).len(), 100);
    named.sort_by_key(|limit| limit.identity.hash());
    named.dedup_by_key(|limit| limit.identity.hash());
    assert_eq!(named.len(), 100);
    for limit in named {
        permits.forget(limit.identity);
    }
    assert!(permits.is_empty());
}

/// A reservation from before a proportional change is settled after later permits were recorded.
#[test]
fn late_settlement_is_converted_and_later_permits_are_kept() {
    let sized = |capacity: u32| Policy::token_bucket("p").capacity(capacity).rate("10/h");
    for (before, after, late, expected) in [(10, 100, 2_000, 70_000), (100, 10, 20_000, 7_000)] {
        let (before, after) = (sized(before).build().unwrap(), sized(after).build().unwrap());
        let after = after.proportional_to(&before, at(0)).unwrap();
        let permits = UnreportedPermits::new(10);
        let (earlier, later) = (limit(&before, "k"), limit(&after, "k"));
        let share = after.algorithm().share(1);
        permits.record(&later, after.algorithm().quota() / 2, &share, at(1));
        permits.record(&earlier, late, &before.algorithm().share(1), at(2));
        let refunded = ValidatedLimit {
            cost: late,
            ..earlier.clone()
        };
        permits.take_back(&refunded, 0, 0);
        permits.record(&earlier, late, &before.algorithm().share(1), at(2));
        assert_eq!(
            taken(&permits, &later, at(3)),
            Some(expected),
            "{before} then {after}"
        );
    }
}
