//! `retry_after` of denied calls: exact to the microsecond, in both directions.

use limiter_core::lease::LeaseReport;
use limiter_core::{Amount, LimitRequest, Policy};

use crate::support::{
    KEY, Subject, bucket, funnel, micros, millis, one_of_each, only, secs, wait_of, window,
};

/// A policy of each algorithm with non-terminating fractions.
fn uneven() -> [Policy; 6] {
    [
        bucket("sevens", 10, "7/3s"),
        bucket("day", 1_000, "999_983/day"),
        funnel("sevens", 10, "7/3s"),
        funnel("fast", 50, "1_000_000/s"),
        window("sevens", 10, "3s"),
        window("odd", 50, "999983us"),
    ]
}

/// Denied now, denied one microsecond before the retry time, admitted at the retry time.
async fn call_is_admitted_exactly_at_retry_time(subject: &Subject, policy: &Policy, cost: Amount) {
    let wait = wait_of(&subject.call_of(policy, cost).await);
    assert!(!wait.is_zero(), "{policy}, cost {cost}");
    subject.clock.advance(wait - micros(1));
    let early = subject.call_of(policy, cost).await;
    assert_eq!(
        wait_of(&early),
        micros(1),
        "{policy}, cost {cost}, after {wait:?}"
    );
    subject.clock.advance(micros(1));
    let due = subject.call_of(policy, cost).await;
    assert!(due.is_allowed(), "{policy}, cost {cost}, after {wait:?}");
}

pub(crate) async fn retry_after_is_exact(subject: Subject) {
    for policy in uneven() {
        subject.use_up(&policy).await;
        let quota = policy.quota().whole();
        for (round, cost) in [1, 2, quota / 2, 1, quota, quota - 1, 3].into_iter().enumerate() {
            // Odd gaps produce remainders and different times in the window.
            subject.clock.advance(micros([0, 1, 7, 13][round % 4]));
            subject.use_up(&policy).await;
            call_is_admitted_exactly_at_retry_time(&subject, &policy, Amount::from(cost)).await;
        }
    }
}

pub(crate) async fn retry_after_is_exact_for_fractions(subject: Subject) {
    for policy in [
        bucket("p", 3, "7/3s"),
        funnel("p", 3, "7/3s"),
        bucket("slow", 1, "1/30d"),
    ] {
        subject.use_up(&policy).await;
        for thousandths in [1, 2, 333, 999, 1_000] {
            let cost = Amount::from_thousandths(thousandths);
            call_is_admitted_exactly_at_retry_time(&subject, &policy, cost).await;
        }
    }
}

pub(crate) async fn retry_after_covers_the_whole_cost(subject: Subject) {
    for policy in [bucket("p", 10, 1), funnel("p", 10, 1)] {
        subject.use_up(&policy).await;
        for cost in 1..=10 {
            assert_eq!(
                wait_of(&subject.call_of(&policy, cost).await),
                secs(cost),
                "{policy}"
            );
        }
    }
    let policy = window("p", 4, "60s");
    for _ in 0..4 {
        assert!(subject.call(&policy).await.is_allowed());
        subject.clock.advance(secs(10));
    }
    // The permits are 40, 30, 20 and 10 seconds old.
    for cost in 1..=4 {
        assert_eq!(
            wait_of(&subject.call_of(&policy, cost).await),
            secs(10 + 10 * cost)
        );
    }
}

pub(crate) async fn retry_after_of_denial_is_never_zero(subject: Subject) {
    for policy in [
        bucket("p", 1, "1_000_000/s"),
        funnel("p", 1, "1_000_000/s"),
        window("p", 1, "1us"),
    ] {
        for _ in 0..5 {
            assert!(subject.call(&policy).await.is_allowed(), "{policy}");
            assert_eq!(wait_of(&subject.call(&policy).await), micros(1), "{policy}");
            subject.clock.advance(micros(1));
        }
    }
}

pub(crate) async fn allowed_call_has_no_retry_after(subject: Subject) {
    for policy in one_of_each() {
        let decision = subject.call_of(&policy, 5).await;
        assert_eq!(decision.retry_after(), None, "{policy}");
        assert!(only(&decision).retry_after().is_zero(), "{policy}");
    }
}

/// The largest of the limits that deny; limits that fit do not count.
pub(crate) async fn retry_after_of_several_limits_is_the_largest(subject: Subject) {
    let short = bucket("short", 2, "1/s");
    let long = window("long", 3, "7s");
    let roomy = funnel("roomy", 10, "1/h");
    let all = || [&short, &long, &roomy].map(|policy| LimitRequest::new(policy, KEY));
    for _ in 0..2 {
        assert!(subject.limits.check_all(all()).await.unwrap().is_allowed());
    }
    let denied = subject.limits.check_all(all()).await.unwrap();
    assert_eq!(wait_of(&denied), secs(1), "only the bucket denies");

    subject.clock.advance(secs(1));
    assert!(subject.limits.check_all(all()).await.unwrap().is_allowed());
    let denied = subject.limits.check_all(all()).await.unwrap();
    let waits: Vec<_> = denied.limits().iter().map(|limit| limit.retry_after()).collect();
    assert_eq!(waits, [secs(1), secs(6), secs(0)]);
    assert_eq!(wait_of(&denied), secs(6));

    subject.clock.advance(secs(6) - micros(1));
    let denied = subject.limits.check_all(all()).await.unwrap();
    assert_eq!(wait_of(&denied), micros(1));
    subject.clock.advance(micros(1));
    assert!(subject.limits.check_all(all()).await.unwrap().is_allowed());
}

/// At `reset_after` the usage is zero; one microsecond earlier it is not.
pub(crate) async fn reset_after_is_exact(subject: Subject) {
    for policy in uneven() {
        for costs in [&[1][..], &[3, 2], &[10]] {
            for (place, cost) in costs.iter().enumerate() {
                subject.clock.advance(micros(if place == 0 { 0 } else { 5 }));
                assert!(subject.call_of(&policy, *cost).await.is_allowed(), "{policy}");
            }
            let used = subject.peek(&policy).await;
            assert_eq!(only(&used).expires_after(), used.reset_after(), "{policy}");
            subject.clock.advance(used.reset_after() - micros(1));
            let early = subject.call_of(&policy, policy.quota()).await;
            assert_eq!(wait_of(&early), micros(1), "{policy}");
            assert_eq!(early.reset_after(), micros(1), "{policy}");
            subject.clock.advance(micros(1));
            let fresh = subject.peek(&policy).await;
            assert_eq!(only(&fresh).remaining(), policy.quota(), "{policy}");
            assert!(
                fresh.reset_after().is_zero() && only(&fresh).expires_after().is_zero(),
                "{policy}"
            );
        }
    }
}

/// At `next_after` one more permit remains; one microsecond earlier it does not, after charges at
/// several times too.
pub(crate) async fn next_after_is_exact(subject: Subject) {
    for policy in uneven().into_iter().chain(one_of_each()) {
        for costs in [&[1][..], &[3, 2], &[1, 4, 5]] {
            for (place, cost) in costs.iter().enumerate() {
                subject
                    .clock
                    .advance(micros(if place == 0 { 0 } else { 700_001 }));
                let _ = subject.call_of(&policy, *cost).await;
            }
            let used = subject.peek(&policy).await;
            let (remaining, next) = (used.remaining(), only(&used).next_after());
            assert!(!next.is_zero() && next <= used.reset_after(), "{policy}");
            subject.clock.advance(next - micros(1));
            assert_eq!(subject.peek(&policy).await.remaining(), remaining, "{policy}");
            subject.clock.advance(micros(1));
            let later = subject.peek(&policy).await;
            assert!(later.remaining() > remaining, "{policy}");
            subject.clock.advance(later.reset_after());
            assert!(
                only(&subject.peek(&policy).await).next_after().is_zero(),
                "{policy}"
            );
        }
    }
}

pub(crate) async fn reset_after_of_several_limits_is_the_largest(subject: Subject) {
    let quick = bucket("quick", 10, "10/s");
    let slow = window("slow", 10, "1m");
    let requests = [
        LimitRequest::new(&quick, KEY).cost(5),
        LimitRequest::new(&slow, KEY),
    ];
    let decision = subject.limits.check_all(requests).await.unwrap();
    let resets: Vec<_> = decision
        .limits()
        .iter()
        .map(|limit| limit.reset_after())
        .collect();
    assert_eq!(resets, [millis(500), secs(60)]);
    assert_eq!(decision.reset_after(), secs(60));
}

/// Leased permits return when their lease ends, and the holder refills its bucket until then.
pub(crate) async fn available_after_is_never_too_short_beside_leases(subject: Subject) {
    let (limits, clock) = (&subject.limits, &subject.clock);
    for (number, steady) in [0, 500_000, 1_000_000].into_iter().enumerate() {
        let number = number.to_string();
        for policy in [bucket(&number, 10, "7/3s"), funnel(&number, 10, "7/3s")] {
            let lease = || limits.token_lease(&policy, KEY, "node").lifetime(secs(60));
            let unused = lease().read().await.unwrap();
            let report = LeaseReport::default().wanted(5_u32).held(5_u32);
            let report = report.steady_millionths(steady);
            lease().renew(&unused, report).await.unwrap();
            clock.advance(millis(1));
            let decision = subject.call_of(&policy, 2).await;
            let start = clock.now();
            for cost in 1..=10_u32 {
                let after = only(&decision).available_after(Amount::from(cost)).unwrap();
                clock.set(start.after(after));
                let peeked = limits.peek(&policy, KEY).cost(cost).await.unwrap();
                assert!(peeked.is_allowed(), "{policy}: {cost} after {after:?}");
            }
        }
    }
}
