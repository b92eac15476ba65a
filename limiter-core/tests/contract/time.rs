//! Clocks that advance, jump and step back.

use std::time::Duration;

use limiter_core::{Amount, ManualClock, Policy};

use crate::support::{Subject, bucket, funnel, micros, millis, one_of_each, only, secs, wait_of, window};

const STEPS_BACK: [Duration; 4] = [micros(1), millis(3), secs(1), secs(3_600)];

const TEN_YEARS: Duration = secs(10 * 365 * 86_400);

pub(crate) async fn clock_step_back_refills_nothing(subject: Subject) {
    for policy in one_of_each() {
        for step in STEPS_BACK {
            subject.use_up(&policy).await;
            for _ in 0..3 {
                subject.clock.step_back(step);
                let denied = subject.call(&policy).await;
                assert!(!denied.is_allowed(), "{policy}, back by {step:?}");
                assert_eq!(denied.remaining(), 0, "{policy}, back by {step:?}");
            }
            subject.limits.reset(&policy, crate::support::KEY).await.unwrap();
        }
    }
}

/// The denial re-anchors the state: from then on the clock counts, independent of the size of the
/// step.
pub(crate) async fn clock_step_back_locks_out_no_client(subject: Subject) {
    for policy in one_of_each() {
        for step in STEPS_BACK {
            subject.use_up(&policy).await;
            subject.clock.step_back(step);
            let denied = subject.call(&policy).await;
            assert!(wait_of(&denied) <= policy.window(), "{policy}, back by {step:?}");
            assert!(
                denied.reset_after() <= policy.window(),
                "{policy}, back by {step:?}"
            );
            assert!(
                only(&denied).expires_after() <= policy.window(),
                "{policy}, back by {step:?}"
            );

            let wait = wait_of(&denied);
            subject.clock.advance(wait - micros(1));
            assert_eq!(
                wait_of(&subject.call(&policy).await),
                micros(1),
                "{policy}, back by {step:?}"
            );
            subject.clock.advance(micros(1));
            assert!(
                subject.call(&policy).await.is_allowed(),
                "{policy}, back by {step:?}"
            );
            subject.limits.reset(&policy, crate::support::KEY).await.unwrap();
        }
    }
}

pub(crate) async fn clock_step_back_keeps_remaining(subject: Subject) {
    for policy in one_of_each() {
        for step in STEPS_BACK {
            assert_eq!(subject.call_of(&policy, 2).await.remaining(), 3, "{policy}");
            subject.clock.step_back(step);
            assert_eq!(
                subject.remaining(&policy).await,
                Amount::from(3_u32),
                "{policy}, {step:?}"
            );
            assert_eq!(
                subject.calls(&policy, 4).await,
                "PPPD",
                "{policy}, back by {step:?}"
            );
            subject.clock.advance(policy.window());
            assert_eq!(
                subject.calls(&policy, 6).await,
                "PPPPPD",
                "{policy}, back by {step:?}"
            );
            subject.limits.reset(&policy, crate::support::KEY).await.unwrap();
        }
    }
}

/// Time counts before and after the step.
pub(crate) async fn time_counts_before_and_after_clock_step_back(subject: Subject) {
    for policy in [bucket("p", 10, 1), funnel("p", 10, 1)] {
        subject.use_up(&policy).await;
        subject.clock.advance(secs(3));
        assert_eq!(subject.call(&policy).await.remaining(), 2, "{policy}");
        subject.clock.step_back(secs(3_600));
        assert_eq!(subject.call(&policy).await.remaining(), 1, "{policy}");
        subject.clock.advance(secs(4));
        assert_eq!(subject.call(&policy).await.remaining(), 4, "{policy}");
    }
    let policy = window("p", 2, "10s");
    assert!(subject.call(&policy).await.is_allowed());
    subject.clock.advance(secs(4));
    assert!(subject.call(&policy).await.is_allowed());
    subject.clock.step_back(secs(3_600));
    // The permits are 4 and 0 seconds old, as they were.
    assert_eq!(wait_of(&subject.call(&policy).await), secs(6));
    subject.clock.advance(secs(6));
    assert_eq!(subject.calls(&policy, 2).await, "PD");
    subject.clock.advance(secs(4));
    assert_eq!(subject.calls(&policy, 2).await, "PD");
}

/// A clock that jitters slightly, like those of two servers, admits no additional permits.
pub(crate) async fn jittering_clock_admits_no_additional_permits(subject: Subject) {
    for policy in one_of_each() {
        let mut admitted = 0_u64;
        let mut passed = Duration::ZERO;
        for round in 0..40_u64 {
            subject.clock.advance(millis(170));
            passed += millis(170);
            admitted += u64::from(subject.call(&policy).await.is_allowed());
            subject.clock.step_back(millis(1 + round % 90));
            admitted += u64::from(subject.call(&policy).await.is_allowed());
        }
        let refills = u64::try_from(passed.as_micros()).unwrap() / 1_000_000;
        assert!(admitted <= 5 + refills, "{policy}: {admitted} in {passed:?}");
        assert!(admitted >= 5, "{policy}: {admitted} in {passed:?}");
    }
}

/// After a jump of any size a budget is full at most once, and the jump back locks out no client.
pub(crate) async fn clock_jump_forward_refills_once(subject: Subject) {
    for policy in one_of_each() {
        subject.use_up(&policy).await;
        subject.clock.advance(TEN_YEARS);
        assert_eq!(subject.calls(&policy, 7).await, "PPPPPDD", "{policy}");
        subject.clock.step_back(TEN_YEARS);
        assert!(
            wait_of(&subject.call(&policy).await) <= policy.window(),
            "{policy}"
        );
        subject.clock.advance(policy.window());
        assert_eq!(subject.calls(&policy, 7).await, "PPPPPDD", "{policy}");
    }
}

/// A state that expired before the clock stepped back equals none.
pub(crate) async fn large_clock_step_back_resets_at_most(subject: Subject) {
    for policy in one_of_each() {
        let start = subject.clock.now();
        assert!(subject.call_of(&policy, 5).await.is_allowed(), "{policy}");
        subject.clock.advance(secs(1_000));
        subject.clock.set(start);
        let decision = subject.call(&policy).await;
        assert!(decision.reset_after() <= policy.window(), "{policy}");
        subject.clock.advance(policy.window());
        assert_eq!(subject.calls(&policy, 6).await, "PPPPPD", "{policy}");
        subject.clock.advance(policy.window());
    }
}

pub(crate) async fn decisions_are_dated_by_the_clock(subject: Subject) {
    for policy in one_of_each() {
        subject.clock.advance(micros(1));
        assert_eq!(subject.call(&policy).await.decided_at(), subject.clock.now());
        subject.clock.step_back(secs(5));
        assert_eq!(subject.call(&policy).await.decided_at(), subject.clock.now());
        assert_eq!(subject.peek(&policy).await.decided_at(), subject.clock.now());
    }
}

/// Microseconds are as exact at the end of a century as today.
pub(crate) async fn microseconds_are_exact_in_the_year_2100(subject: Subject) {
    let far = limiter_core::Timestamp::from_micros(4_102_444_800_000_001);
    subject.clock.set(ManualClock::starting_at(far).now());
    let policies: [Policy; 3] = [
        bucket("p", 3, "7/3s"),
        funnel("p", 3, "7/3s"),
        window("p", 3, "999983us"),
    ];
    for policy in &policies {
        subject.use_up(policy).await;
        for _ in 0..10 {
            let wait = wait_of(&subject.call(policy).await);
            subject.clock.advance(wait - micros(1));
            assert_eq!(wait_of(&subject.call(policy).await), micros(1), "{policy}");
            subject.clock.advance(micros(1));
            assert!(subject.call(policy).await.is_allowed(), "{policy}");
            subject.use_up(policy).await;
        }
    }
}
