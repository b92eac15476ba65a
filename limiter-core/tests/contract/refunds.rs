//! Refunds of unused permits.

use limiter_core::{Amount, Policy};

use crate::support::{KEY, PATIENT, Subject, bucket, micros, one_of_each, only, secs, wait_of, window};

pub(crate) async fn refund_is_available_at_once(subject: Subject) {
    for policy in one_of_each() {
        subject.use_up(&policy).await;
        subject.limits.refund(&policy, KEY).cost(2).await.unwrap();
        assert_eq!(subject.remaining(&policy).await, Amount::from(2_u32), "{policy}");
        assert_eq!(subject.calls(&policy, 3).await, "PPD", "{policy}");
    }
}

/// A refund of any amount leaves at most the quota.
pub(crate) async fn refund_returns_at_most_usage(subject: Subject) {
    for policy in one_of_each() {
        assert!(subject.call_of(&policy, 2).await.is_allowed());
        for cost in [5, 1, 100] {
            subject.limits.refund(&policy, KEY).cost(cost).await.unwrap();
            assert_eq!(subject.remaining(&policy).await, policy.quota(), "{policy}");
        }
        assert_eq!(subject.calls(&policy, 6).await, "PPPPPD", "{policy}");
    }
}

/// The usage exceeds the quota by a debt, and a refund of all of it leaves none.
pub(crate) async fn refund_above_quota_repays_debt(subject: Subject) {
    let fixed = Policy::fixed_window("fixed").limit(5).window("5s");
    let counters = Policy::counter_window("counters").limit(5).window("5s");
    let windows = [
        fixed.deadline(PATIENT).build(),
        counters.deadline(PATIENT).build(),
    ];
    let policies = one_of_each().into_iter().chain(windows.map(Result::unwrap));
    for policy in policies {
        subject.limits.charge(&policy, KEY).cost(12).await.unwrap();
        assert!(!subject.call(&policy).await.is_allowed(), "{policy}");
        subject.limits.refund(&policy, KEY).cost(12).await.unwrap();
        assert_eq!(subject.remaining(&policy).await, policy.quota(), "{policy}");
    }
}

pub(crate) async fn refund_of_zero_or_unknown_key_changes_nothing(subject: Subject) {
    for policy in one_of_each() {
        subject.limits.refund(&policy, KEY).await.unwrap();
        subject.limits.refund(&policy, KEY).cost(0).await.unwrap();
        assert_eq!(subject.redis_keys(), Vec::<String>::new(), "{policy}");
        subject.use_up(&policy).await;
        subject.limits.refund(&policy, KEY).cost(0).await.unwrap();
        assert!(!subject.call(&policy).await.is_allowed(), "{policy}");
        subject.limits.reset(&policy, KEY).await.unwrap();
    }
}

/// A full refund leaves the state as if no call had been made.
pub(crate) async fn full_refund_leaves_no_state(subject: Subject) {
    for policy in one_of_each() {
        subject.use_up(&policy).await;
        subject.limits.refund(&policy, KEY).cost(5).await.unwrap();
        let peeked = subject.peek(&policy).await;
        assert!(
            peeked.reset_after().is_zero() && only(&peeked).expires_after().is_zero(),
            "{policy}"
        );
        assert_eq!(subject.redis_keys(), Vec::<String>::new(), "{policy}");
    }
}

/// A window refunds the permits that would expire next, so waiters for those now wait for the
/// others.
pub(crate) async fn window_refunds_oldest_permits(subject: Subject) {
    let policy = window("w", 3, "10s");
    for _ in 0..3 {
        assert!(subject.call(&policy).await.is_allowed());
        subject.clock.advance(secs(1));
    }
    assert_eq!(wait_of(&subject.call(&policy).await), secs(7));
    subject.limits.refund(&policy, KEY).await.unwrap();
    assert!(subject.call(&policy).await.is_allowed());
    assert_eq!(
        wait_of(&subject.call(&policy).await),
        secs(8),
        "the second permit is now the oldest"
    );
    assert_eq!(subject.peek(&policy).await.reset_after(), secs(10));
    // All but the newest; then across the end of the ring.
    subject.limits.refund(&policy, KEY).cost(2).await.unwrap();
    assert_eq!(subject.calls(&policy, 3).await, "PPD");
    subject.clock.advance(secs(10) - micros(1));
    assert_eq!(subject.calls(&policy, 1).await, "D");
    subject.clock.advance(micros(1));
    assert_eq!(subject.calls(&policy, 4).await, "PPPD");
}

/// A window that reaches back before the epoch.
pub(crate) async fn window_of_a_century_is_refundable(subject: Subject) {
    let policy = window("w", 3, "5000w");
    subject.use_up(&policy).await;
    subject.limits.refund(&policy, KEY).cost(2).await.unwrap();
    assert_eq!(subject.calls(&policy, 3).await, "PPD");
    let longer = window("w", 3, "7000w");
    assert_eq!(subject.calls(&longer, 1).await, "D");
    subject.limits.refund(&longer, KEY).cost(3).await.unwrap();
    assert_eq!(subject.calls(&longer, 4).await, "PPPD");
}

pub(crate) async fn refund_keeps_refilled_permits(subject: Subject) {
    let policy = bucket("b", 5, 1);
    subject.use_up(&policy).await;
    subject.clock.advance(secs(1) + micros(500_000));
    subject.limits.refund(&policy, KEY).cost(0.5).await.unwrap();
    assert_eq!(subject.remaining(&policy).await, Amount::from(2_u32));
    assert_eq!(subject.peek(&policy).await.reset_after(), secs(3));
}

pub(crate) async fn refund_of_invalid_amount_is_rejected(subject: Subject) {
    for policy in one_of_each() {
        let refused = subject.limits.refund(&policy, KEY).cost(-1).await;
        assert!(
            matches!(refused, Err(limiter_core::Rejection::Config(_))),
            "{policy}: {refused:?}"
        );
    }
    let refused = subject.limits.refund(&one_of_each()[2], KEY).cost(0.5).await;
    assert!(matches!(refused, Err(limiter_core::Rejection::Config(_))));
}
