//! Admission and its costs.

use limiter_core::Amount;

use crate::support::{
    Subject, bucket, funnel, left, micros, millis, one_of_each, only, secs, wait_of, window,
};

/// Capacity 10, two a second, twenty calls, a pause of two seconds before the fifteenth.
pub(crate) async fn funnel_admits_drained_amount(subject: Subject) {
    let policy = funnel("p", 10, 2);
    assert_eq!(subject.calls(&policy, 14).await, "PPPPPPPPPPDDDD");
    subject.clock.advance(secs(2));
    assert_eq!(subject.calls(&policy, 6).await, "PPPPDD");
}

pub(crate) async fn bucket_admits_refilled_amount(subject: Subject) {
    let policy = bucket("p", 5, 5);
    assert_eq!(subject.calls(&policy, 10).await, "PPPPPDDDDD");
    subject.clock.advance(secs(1));
    assert_eq!(subject.calls(&policy, 10).await, "PPPPPDDDDD");
}

pub(crate) async fn window_admits_its_limit_at_once(subject: Subject) {
    let policy = window("p", 5, "60s");
    assert_eq!(subject.calls(&policy, 20).await, "PPPPPDDDDDDDDDDDDDDD");
    subject.clock.advance(secs(60));
    assert_eq!(subject.calls(&policy, 6).await, "PPPPPD");
}

/// A permit of a window expires exactly one window after it was charged, not a microsecond earlier.
pub(crate) async fn window_permit_lasts_exactly_one_window(subject: Subject) {
    let policy = window("p", 3, "1s");
    assert_eq!(subject.calls(&policy, 4).await, "PPPD");
    subject.clock.advance(micros(999_999));
    assert_eq!(subject.calls(&policy, 1).await, "D");
    subject.clock.advance(micros(1));
    assert_eq!(subject.calls(&policy, 4).await, "PPPD");
}

/// The replies of the command `CL.THROTTLE k 15 30 60` of redis-cell: a limit of 16, one every two
/// seconds.
pub(crate) async fn levels_reproduce_redis_cell_replies(subject: Subject) {
    for policy in [bucket("p", 16, "30/60s"), funnel("p", 16, "30/60s")] {
        let first = subject.call(&policy).await;
        assert_eq!(
            (first.is_allowed(), first.remaining(), first.reset_after()),
            (true, 15, secs(2))
        );
        subject.clock.advance(secs(2));

        let whole = subject.call_of(&policy, 16).await;
        assert_eq!(
            (whole.is_allowed(), whole.remaining(), whole.reset_after()),
            (true, 0, secs(32))
        );
        assert_eq!(wait_of(&subject.call(&policy).await), secs(2));
        let never = subject.limits.check(&policy, "fresh").cost(17).await;
        assert!(
            matches!(never, Err(limiter_core::Rejection::NeverFits { .. })),
            "{never:?}"
        );
    }
}

pub(crate) async fn first_call_is_charged(subject: Subject) {
    for policy in one_of_each() {
        let first = subject.call(&policy).await;
        assert!(first.is_allowed());
        assert_eq!(first.remaining(), 4, "{policy}");
        assert_eq!(subject.calls(&policy, 5).await, "PPPPD", "{policy}");
    }
}

pub(crate) async fn denial_consumes_nothing(subject: Subject) {
    for policy in one_of_each() {
        assert!(subject.call_of(&policy, 4).await.is_allowed());
        for _ in 0..10 {
            let denied = subject.call_of(&policy, 2).await;
            assert_eq!((denied.is_allowed(), denied.remaining()), (false, 1), "{policy}");
        }
        assert_eq!(subject.calls(&policy, 2).await, "PD", "{policy}");
    }
}

pub(crate) async fn denied_call_does_not_extend_wait(subject: Subject) {
    for policy in one_of_each() {
        subject.use_up(&policy).await;
        let wait = wait_of(&subject.call(&policy).await);
        let step = wait / 10;
        for passed in 1..10 {
            subject.clock.advance(step);
            let left = wait - step * passed;
            assert_eq!(wait_of(&subject.call(&policy).await), left, "{policy}");
        }
        subject.clock.advance(step);
        assert!(subject.call(&policy).await.is_allowed(), "{policy}");
    }
}

/// Entries with the same time remain separate, and so do those of neighbouring microseconds.
pub(crate) async fn simultaneous_calls_do_not_collapse(subject: Subject) {
    let policy = window("p", 6, "1s");
    assert_eq!(subject.calls(&policy, 3).await, "PPP");
    subject.clock.advance(micros(1));
    assert_eq!(subject.calls(&policy, 1).await, "P");
    subject.clock.advance(micros(1));
    assert_eq!(subject.calls(&policy, 4).await, "PPDD");
    subject.clock.advance(micros(999_998));
    assert_eq!(
        subject.calls(&policy, 4).await,
        "PPPD",
        "the three calls at the first time expire"
    );
    subject.clock.advance(micros(1));
    assert_eq!(
        subject.calls(&policy, 2).await,
        "PD",
        "the call at the second time expires"
    );
    subject.clock.advance(micros(1));
    assert_eq!(
        subject.calls(&policy, 3).await,
        "PPD",
        "the two calls at the third time expire"
    );
}

pub(crate) async fn cost_counts_as_multiple_calls(subject: Subject) {
    for policy in one_of_each() {
        assert_eq!(subject.call_of(&policy, 3).await.remaining(), 2, "{policy}");
        assert!(!subject.call_of(&policy, 3).await.is_allowed(), "{policy}");
        assert_eq!(subject.call_of(&policy, 2).await.remaining(), 0, "{policy}");
        assert_eq!(subject.calls(&policy, 1).await, "D", "{policy}");
    }
}

pub(crate) async fn buckets_and_funnels_count_thousandths(subject: Subject) {
    for policy in [bucket("p", 1, "1/s"), funnel("p", 1, "1/s")] {
        let decision = subject.call_of(&policy, 0.001).await;
        assert_eq!(left(&decision), Amount::from_thousandths(999), "{policy}");
        assert_eq!(decision.remaining(), 0, "whole permits, rounded down: {policy}");
        assert_eq!(wait_of(&subject.call(&policy).await), millis(1), "{policy}");
        assert!(subject.call_of(&policy, 0.999).await.is_allowed(), "{policy}");
        assert_eq!(
            wait_of(&subject.call_of(&policy, 0.25).await),
            millis(250),
            "{policy}"
        );
    }
    let half = bucket("half", 0.5, "0.5/s");
    assert!(subject.call_of(&half, 0.5).await.is_allowed());
    assert_eq!(wait_of(&subject.call_of(&half, 0.5).await), secs(1));
}

pub(crate) async fn remaining_can_be_acquired_next(subject: Subject) {
    for policy in one_of_each() {
        for (cost, after) in [(1, 4), (2, 2), (3, 2), (2, 0), (1, 0)] {
            let decision = subject.call_of(&policy, cost).await;
            assert_eq!(decision.remaining(), after, "{policy}, cost {cost}");
        }
        subject.clock.advance(secs(5));
        assert_eq!(subject.remaining(&policy).await, policy.quota(), "{policy}");
    }
    let window = window("sliding", 4, "10s");
    for expected in [3, 2, 1] {
        assert_eq!(subject.call(&window).await.remaining(), expected);
        subject.clock.advance(secs(4));
    }
    // The first is 12 s old, the second 8 s, the third 4 s.
    assert_eq!(subject.remaining(&window).await, Amount::from(2_u32));
    let refilled = bucket("refilled", 4, "1/4s");
    assert_eq!(subject.call_of(&refilled, 4).await.remaining(), 0);
    subject.clock.advance(secs(5));
    assert_eq!(
        subject.remaining(&refilled).await,
        Amount::from_thousandths(1_250)
    );
}

/// The whole quota at once, and again as soon as it is refilled.
pub(crate) async fn call_can_cost_the_whole_quota(subject: Subject) {
    for policy in one_of_each() {
        for _ in 0..3 {
            let decision = subject.call_of(&policy, 5).await;
            assert!(decision.is_allowed(), "{policy}");
            assert_eq!(only(&decision).reset_after(), secs(5), "{policy}");
            assert_eq!(wait_of(&subject.call_of(&policy, 5).await), secs(5), "{policy}");
            subject.clock.advance(secs(5));
        }
    }
}

pub(crate) async fn keys_have_separate_budgets(subject: Subject) {
    for policy in one_of_each() {
        for key in ["ann", "bob", "ann:1", "Ann"] {
            let decision = subject.limits.check(&policy, key).cost(5).await.unwrap();
            assert!(decision.is_allowed(), "{policy} {key}");
        }
    }
}

/// A policy's name and its algorithm are part of the identity; its numbers are not.
pub(crate) async fn policies_have_separate_budgets(subject: Subject) {
    let policies = [
        bucket("a", 5, 1),
        bucket("b", 5, 1),
        funnel("a", 5, 1),
        window("a", 5, "5s"),
    ];
    for policy in &policies {
        assert!(subject.call_of(policy, 5).await.is_allowed(), "{policy}");
    }
    assert!(!subject.call(&bucket("a", 6, 2)).await.is_allowed());
}
