//! Waits that end without a permit: timeout, cancellation, shutdown.

use std::time::Duration;

use limiter_core::{Allowed, Policy, Rejection, StoreErrorKind};

use crate::support::{KEY, PATIENT, Subject, bucket, funnel, millis, one_of_each, secs, window};
use crate::waiting::{answer, served, settle, waiter};

/// Permits that are due too late may be refunded earlier, so a wait lasts for its timeout and then
/// returns the last denial.
pub(crate) async fn short_wait_lasts_for_its_timeout(subject: Subject) {
    for policy in one_of_each() {
        subject.use_up(&policy).await;
        let wait = subject.peek(&policy).await.retry_after().unwrap();
        let too_short = wait - Duration::from_micros(1);
        let waiting = waiter(&subject, &policy, 1, too_short);
        settle(&subject, &policy).await;
        subject.clock.advance(too_short - Duration::from_micros(1));
        settle(&subject, &policy).await;
        assert!(!waiting.is_finished(), "{policy}");
        subject.clock.advance(Duration::from_micros(1));
        let answer = answer(waiting).await;
        let Err(Rejection::TimedOut { decision, limit }) = answer else {
            unreachable!("{answer:?}")
        };
        assert_eq!(limit, too_short, "{policy}");
        let denied = decision.unwrap();
        assert_eq!(
            denied.decided_at().after(denied.retry_after().unwrap()),
            subject.clock.now().after(Duration::from_micros(1)),
            "{policy}"
        );

        subject.limits.reset(&policy, KEY).await.unwrap();
        subject.use_up(&policy).await;
        let long_enough = waiter(&subject, &policy, 1, wait);
        settle(&subject, &policy).await;
        subject.clock.advance(wait);
        served(long_enough).await;
    }
}

/// Permits that were due too late are released in time: by a refund, a reset, or another policy.
pub(crate) async fn waiter_is_served_by_early_refund(subject: Subject) {
    for policy in [bucket("b", 5, "1/h"), funnel("f", 5, "1/h"), window("w", 5, "1h")] {
        let reserved = subject.limits.reserve(&policy, KEY).cost(5).await.unwrap();
        let waiting = waiter(&subject, &policy, 1, secs(30));
        settle(&subject, &policy).await;
        subject.clock.advance(secs(20));
        settle(&subject, &policy).await;
        reserved.settle(4).await.unwrap();
        served(waiting).await;
    }
}

/// A call that does not wait is denied, as by a check, for every method and with or without other
/// waiters.
pub(crate) async fn zero_timeout_is_a_check(subject: Subject) {
    let limits = &subject.limits;
    let expect_denial = |rejection: Rejection, retry_after| {
        assert!(matches!(rejection, Rejection::Limited(_)), "{rejection:?}");
        assert_eq!(rejection.retry_after(), retry_after, "{rejection:?}");
    };
    for policy in one_of_each() {
        subject.use_up(&policy).await;
        let wait = subject.call(&policy).await.retry_after();
        let acquired = limits.acquire(&policy, KEY).timeout(Duration::ZERO).await;
        expect_denial(acquired.unwrap_err(), wait);
        let reserved = limits.reserve(&policy, KEY).timeout(Duration::ZERO).await;
        expect_denial(reserved.unwrap_err(), wait);
    }

    let exports = Policy::concurrency("export")
        .max(1)
        .deadline(PATIENT)
        .build()
        .unwrap();
    let held = limits
        .acquire_concurrency(&exports, KEY)
        .timeout(Duration::ZERO)
        .await
        .unwrap();
    let entered = limits
        .acquire_concurrency(&exports, KEY)
        .timeout(Duration::ZERO)
        .await;
    expect_denial(entered.unwrap_err(), None);
    drop(held);

    // The delay is one second, which the call does not wait for; the permit is refunded.
    let paced = Policy::funnel("paced").capacity(2).rate("1/s").paced();
    let paced = paced.deadline(PATIENT).build().unwrap();
    assert!(limits.acquire(&paced, KEY).timeout(Duration::ZERO).await.is_ok());
    let late = limits.acquire(&paced, KEY).timeout(Duration::ZERO).await;
    expect_denial(late.unwrap_err(), Some(secs(1)));

    // Behind another call it is denied for the time that both need.
    let bucket = bucket("p", 5, "1/m");
    subject.use_up(&bucket).await;
    let head = waiter(&subject, &bucket, 2, secs(300));
    settle(&subject, &bucket).await;
    let behind = limits.acquire(&bucket, KEY).timeout(Duration::ZERO).await;
    expect_denial(behind.unwrap_err(), Some(secs(180)));
    subject.clock.advance(secs(120));
    served(head).await;
}

/// The time in the queue counts towards the timeout.
pub(crate) async fn time_in_queue_counts_towards_timeout(subject: Subject) {
    let policy = bucket("p", 5, 1);
    subject.use_up(&policy).await;
    let first = waiter(&subject, &policy, 1, millis(1_500));
    let second = waiter(&subject, &policy, 1, millis(1_500));
    settle(&subject, &policy).await;
    subject.clock.advance(secs(1));
    served(first).await;
    settle(&subject, &policy).await;
    subject.clock.advance(millis(500));
    let timed_out = answer(second).await;
    assert!(
        matches!(timed_out, Err(Rejection::TimedOut { .. })),
        "{timed_out:?}"
    );
}

/// Another caller takes the awaited permit: the deadline does not change.
pub(crate) async fn timeout_covers_all_attempts(subject: Subject) {
    let (one, two) = (window("p", 1, "1s"), window("p", 2, "1s"));
    assert!(subject.call(&one).await.is_allowed());
    let waiting = waiter(&subject, &one, 1, millis(1_200));
    settle(&subject, &one).await;
    subject.clock.advance(millis(500));
    assert!(
        subject.call(&two).await.is_allowed(),
        "the larger limit still fits"
    );
    settle(&subject, &one).await;
    subject.clock.advance(millis(500));
    settle(&subject, &one).await;
    subject.clock.advance(millis(200));
    let timed_out = answer(waiting).await;
    assert!(
        matches!(timed_out, Err(Rejection::TimedOut { .. })),
        "{timed_out:?}"
    );
}

pub(crate) async fn waiter_behind_head_times_out(subject: Subject) {
    let policy = bucket("p", 5, "1/m");
    subject.use_up(&policy).await;
    let head = waiter(&subject, &policy, 1, secs(300));
    let behind = waiter(&subject, &policy, 1, secs(2));
    settle(&subject, &policy).await;
    subject.clock.advance(secs(2));
    let timed_out = answer(behind).await.unwrap_err();
    assert!(matches!(timed_out, Rejection::TimedOut { .. }), "{timed_out:?}");
    assert_eq!(timed_out.retry_after(), Some(secs(118)), "after the head");
    assert!(!head.is_finished());
    subject.clock.advance(secs(58));
    served(head).await;
}

pub(crate) async fn cancelled_waiter_is_replaced_by_next(subject: Subject) {
    for policy in [bucket("p", 5, 1), funnel("p", 5, 1), window("p", 1, "1s")] {
        subject.use_up(&policy).await;
        let [head, second, third, fourth] = [(); 4].map(|()| waiter(&subject, &policy, 1, secs(60)));
        settle(&subject, &policy).await;
        head.abort();
        third.abort();
        settle(&subject, &policy).await;
        subject.clock.advance(secs(1));
        served(second).await;
        settle(&subject, &policy).await;
        assert!(!fourth.is_finished(), "{policy}");
        subject.clock.advance(secs(1));
        served(fourth).await;
        // The queue is empty, and the cancelled waiters were not charged.
        subject.clock.advance(policy.window());
        assert_eq!(subject.remaining(&policy).await, policy.quota(), "{policy}");
    }
}

pub(crate) async fn wait_for_more_than_quota_ends_at_once(subject: Subject) {
    for policy in one_of_each() {
        subject.use_up(&policy).await;
        let answer = answer(waiter(&subject, &policy, 6, secs(60))).await;
        assert!(
            matches!(answer, Err(Rejection::NeverFits { .. })),
            "{policy}: {answer:?}"
        );
    }
}

pub(crate) async fn shutdown_ends_waits_and_rejects_later_calls(subject: Subject) {
    let policy = bucket("p", 5, 1);
    subject.use_up(&policy).await;
    let waiters = [(); 3].map(|()| waiter(&subject, &policy, 1, secs(60)));
    settle(&subject, &policy).await;
    tokio::time::timeout(PATIENT, subject.limits.shutdown(PATIENT * 2))
        .await
        .unwrap();
    let mut answers = Vec::new();
    for waiter in waiters {
        answers.push(answer(waiter).await);
    }
    answers.push(subject.limits.check(&policy, KEY).await);
    answers.push(subject.limits.peek(&policy, KEY).await);
    answers.push(
        subject
            .limits
            .acquire(&policy, KEY)
            .await
            .map(Allowed::into_decision),
    );
    for answer in answers {
        let Err(Rejection::Unavailable { error, .. }) = answer else {
            unreachable!("{answer:?}")
        };
        assert_eq!(error.kind(), StoreErrorKind::ShutDown);
    }
    assert!(subject.limits.reset(&policy, KEY).await.is_err());
}
