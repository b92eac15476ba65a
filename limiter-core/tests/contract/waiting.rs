//! Waiting for permits: in the order of arrival, bounded by the timeout.

use std::time::Duration;

use limiter_core::{Allowed, Amount, Policy, Rejection};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::support::{KEY, PATIENT, Subject, bucket, funnel, left, one_of_each, secs, window};

pub(crate) type Answer = Result<limiter_core::Decision, Rejection>;

/// A waiter in its own task. Tasks of a test queue in the order in which they are spawned.
pub(crate) fn waiter(subject: &Subject, policy: &Policy, cost: u32, timeout: Duration) -> JoinHandle<Answer> {
    let (limits, policy) = (subject.limits.clone(), policy.clone());
    tokio::spawn(async move {
        limits
            .acquire(&policy, KEY)
            .cost(cost)
            .timeout(timeout)
            .await
            .map(Allowed::into_decision)
    })
}

/// Lets every ready task run, and waits for pending replies.
pub(crate) async fn settle(subject: &Subject, policy: &Policy) {
    for _ in 0..3 {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        let answered = subject.limits.peek(policy, "another key").await;
        assert!(answered.is_ok(), "{answered:?}");
    }
}

/// The result of a waiter, which must arrive without a further step of the clock.
pub(crate) async fn answer(waiter: JoinHandle<Answer>) -> Answer {
    tokio::time::timeout(PATIENT, waiter)
        .await
        .expect("the waiter hangs")
        .unwrap()
}

/// Waits until a waiter has its permit.
pub(crate) async fn served(waiter: JoinHandle<Answer>) {
    assert!(answer(waiter).await.unwrap().is_allowed());
}

pub(crate) async fn available_permit_is_granted_at_once(subject: Subject) {
    for policy in one_of_each() {
        let acquire = subject.limits.acquire(&policy, KEY);
        let decision = acquire.cost(2).timeout(Duration::ZERO).await.unwrap();
        assert!(decision.is_allowed());
        assert_eq!(left(&decision), Amount::from(3_u32), "{policy}");
    }
}

pub(crate) async fn waiter_is_served_at_announced_time(subject: Subject) {
    for policy in one_of_each() {
        subject.use_up(&policy).await;
        let wait = subject.peek(&policy).await.retry_after().unwrap();
        let due = subject.clock.now().after(wait);
        let waiting = waiter(&subject, &policy, 1, secs(60));
        settle(&subject, &policy).await;
        subject.clock.advance(wait - Duration::from_micros(1));
        settle(&subject, &policy).await;
        assert!(!waiting.is_finished(), "{policy}");
        subject.clock.advance(Duration::from_micros(1));
        let decision = answer(waiting).await.unwrap();
        assert_eq!(
            (decision.is_allowed(), decision.decided_at()),
            (true, due),
            "{policy}"
        );
    }
}

pub(crate) async fn waiters_are_served_in_the_order_of_arrival(subject: Subject) {
    for policy in [bucket("p", 5, 1), funnel("p", 5, 1), window("p", 1, "1s")] {
        subject.use_up(&policy).await;
        let (served, mut order) = mpsc::unbounded_channel();
        for number in 0..8 {
            let (limits, policy, served) = (subject.limits.clone(), policy.clone(), served.clone());
            tokio::spawn(async move {
                let decision = limits.acquire(&policy, KEY).await.unwrap();
                assert!(decision.is_allowed());
                served.send(number).unwrap();
            });
        }
        settle(&subject, &policy).await;
        for expected in 0..8 {
            assert!(order.try_recv().is_err(), "{policy}: served too early");
            subject.clock.advance(secs(1));
            let number = tokio::time::timeout(PATIENT, order.recv()).await.unwrap();
            assert_eq!(number, Some(expected), "{policy}");
            settle(&subject, &policy).await;
        }
    }
}

/// A cheap call does not overtake an earlier expensive one.
pub(crate) async fn small_cost_does_not_overtake_large_one(subject: Subject) {
    let policy = bucket("p", 5, 1);
    subject.use_up(&policy).await;
    let large = waiter(&subject, &policy, 4, secs(60));
    let small = waiter(&subject, &policy, 1, secs(60));
    for _ in 0..3 {
        settle(&subject, &policy).await;
        subject.clock.advance(secs(1));
    }
    settle(&subject, &policy).await;
    assert!(!large.is_finished() && !small.is_finished());
    subject.clock.advance(secs(1));
    served(large).await;
    settle(&subject, &policy).await;
    assert!(!small.is_finished());
    subject.clock.advance(secs(1));
    served(small).await;
    assert_eq!(subject.remaining(&policy).await, Amount::ZERO);
}

/// Queues are per key: a waiter of one key does not delay those of another.
pub(crate) async fn waiters_of_other_keys_are_not_blocked(subject: Subject) {
    let policy = bucket("p", 5, 1);
    subject.use_up(&policy).await;
    let waiting = waiter(&subject, &policy, 5, secs(60));
    settle(&subject, &policy).await;
    let other = subject.limits.acquire(&policy, "other").timeout(Duration::ZERO);
    assert!(other.await.unwrap().is_allowed());
    assert!(!waiting.is_finished());
    subject.clock.advance(secs(5));
    served(waiting).await;
}

pub(crate) async fn several_limits_share_one_wait(subject: Subject) {
    let (fast, slow) = (bucket("fast", 1, 1), window("slow", 2, "5s"));
    let requests = || [&fast, &slow].map(|policy| limiter_core::LimitRequest::new(policy, KEY));
    for _ in 0..2 {
        assert!(subject.limits.check_all(requests()).await.unwrap().is_allowed());
        subject.clock.advance(secs(1));
    }
    let (limits, policies) = (subject.limits.clone(), [fast.clone(), slow.clone()]);
    let waiting = tokio::spawn(async move {
        let requests = policies
            .each_ref()
            .map(|policy| limiter_core::LimitRequest::new(policy, KEY));
        limits.acquire_all(requests).await.map(Allowed::into_decision)
    });
    settle(&subject, &fast).await;
    subject.clock.advance(secs(2));
    settle(&subject, &fast).await;
    assert!(
        !waiting.is_finished(),
        "the window denies until its first permit is five seconds old"
    );
    assert_eq!(
        subject.remaining(&fast).await,
        Amount::ONE,
        "a waiting call is not charged"
    );
    subject.clock.advance(secs(1));
    served(waiting).await;
}

/// Waiters are served in the order of arrival, none too early and none omitted; cancelled waiters
/// cost no permit.
pub(crate) async fn thousand_waiters_are_served_in_order_while_half_leave(subject: Subject) {
    let policy = bucket("p", 1, "100/s");
    subject.use_up(&policy).await;
    let (served, mut order) = mpsc::unbounded_channel();
    let waiters: Vec<_> = (0..1_000_usize)
        .map(|number| {
            let (limits, policy, served) = (subject.limits.clone(), policy.clone(), served.clone());
            tokio::spawn(async move {
                let _ = limits.acquire(&policy, KEY).await.unwrap();
                served.send(number).unwrap();
            })
        })
        .collect();
    settle(&subject, &policy).await;
    for waiter in waiters.iter().step_by(2) {
        waiter.abort();
    }
    settle(&subject, &policy).await;
    for expected in (1..1_000).step_by(2) {
        assert!(order.try_recv().is_err(), "too early");
        subject.clock.advance(Duration::from_millis(10));
        let number = tokio::time::timeout(PATIENT, order.recv()).await.unwrap();
        assert_eq!(number, Some(expected));
    }
    subject.clock.advance(Duration::from_millis(10));
    assert_eq!(subject.remaining(&policy).await, Amount::ONE);
}

/// An early refund goes to the waiter that has waited longest.
pub(crate) async fn refund_wakes_waiter(subject: Subject) {
    for policy in one_of_each() {
        subject.use_up(&policy).await;
        let first = waiter(&subject, &policy, 1, secs(60));
        let second = waiter(&subject, &policy, 1, secs(60));
        settle(&subject, &policy).await;
        subject.limits.refund(&policy, KEY).await.unwrap();
        served(first).await;
        settle(&subject, &policy).await;
        assert!(!second.is_finished(), "{policy}");
        subject.limits.reset(&policy, KEY).await.unwrap();
        served(second).await;
    }
}

/// A refund of one limit wakes waiters for several limits, and a refund of several wakes waiters
/// for one.
pub(crate) async fn refund_wakes_waiters_of_several_limits(subject: Subject) {
    let (hour, day) = (window("hour", 1, "1h"), window("day", 9, "1d"));
    let limits = &subject.limits;
    let both = |patience| {
        let (limits, policies) = (limits.clone(), [day.clone(), hour.clone()]);
        tokio::spawn(async move {
            let requests = policies
                .each_ref()
                .map(|policy| limiter_core::LimitRequest::new(policy, KEY));
            let acquire = limits.acquire_all(requests).timeout(patience);
            acquire.await.map(Allowed::into_decision)
        })
    };
    let patience = secs(7_200);

    subject.use_up(&hour).await;
    let waiting = both(patience);
    settle(&subject, &hour).await;
    limits.refund(&hour, KEY).await.unwrap();
    served(waiting).await;

    let waiting = both(patience);
    settle(&subject, &hour).await;
    limits.reset(&hour, KEY).await.unwrap();
    served(waiting).await;

    limits.reset(&hour, KEY).await.unwrap();
    let reserved = limits.reserve(&hour, KEY).await.unwrap();
    let waiting = both(patience);
    settle(&subject, &hour).await;
    reserved.cancel().await.unwrap();
    served(waiting).await;

    limits.reset(&hour, KEY).await.unwrap();
    let requests = [&hour, &day].map(|policy| limiter_core::LimitRequest::new(policy, KEY));
    let reserved = limits.reserve_all(requests).await.unwrap();
    let alone = waiter(&subject, &hour, 1, patience);
    settle(&subject, &hour).await;
    reserved.cancel().await.unwrap();
    served(alone).await;
}

/// A waiter under an old policy does not block waiters under a new one, and is served by the new
/// one too.
pub(crate) async fn newer_policy_is_not_blocked_by_earlier_waiters(subject: Subject) {
    let policies = [
        [bucket("b", 5, "1/h"), bucket("b", 5, "100/s")],
        [funnel("f", 5, "1/h"), funnel("f", 5, "100/s")],
        [window("w", 1, "1h"), window("w", 100, "1s")],
    ];
    for [old, new] in policies {
        subject.use_up(&old).await;
        let first = waiter(&subject, &old, 1, secs(7_200));
        settle(&subject, &old).await;
        let second = waiter(&subject, &new, 1, secs(2));
        settle(&subject, &old).await;
        subject.clock.advance(secs(1));
        served(first).await;
        served(second).await;
    }
}

/// A waiter that a new policy never admits blocks no other and is rejected.
pub(crate) async fn waiter_above_new_quota_is_rejected(subject: Subject) {
    for [old, new] in [
        [bucket("b", 5, "1/h"), bucket("b", 2, "1/s")],
        [window("w", 5, "1h"), window("w", 2, "1s")],
    ] {
        subject.use_up(&old).await;
        let much = waiter(&subject, &old, 3, secs(7_200));
        settle(&subject, &old).await;
        let little = waiter(&subject, &new, 1, secs(60));
        let result = answer(much).await;
        assert!(matches!(result, Err(Rejection::NeverFits { .. })), "{result:?}");
        settle(&subject, &old).await;
        subject.clock.advance(secs(4));
        served(little).await;
    }
}

/// The unpolled waiter keeps its place and its permit, and takes none of the others' permits.
pub(crate) async fn unpolled_waiter_delays_queue_briefly(subject: Subject) {
    for policy in [bucket("b", 5, 1), funnel("f", 5, 1), window("w", 1, "1s")] {
        subject.use_up(&policy).await;
        let mut kept = std::pin::pin!(subject.limits.acquire(&policy, KEY).into_future());
        let polled = tokio::time::timeout(Duration::ZERO, &mut kept).await;
        assert!(polled.is_err(), "{policy}");
        let second = waiter(&subject, &policy, 1, secs(60));
        let third = waiter(&subject, &policy, 1, secs(60));
        settle(&subject, &policy).await;
        // The first permit is available after one second, and its waiter is not polled.
        subject.clock.advance(Duration::from_millis(1_500));
        settle(&subject, &policy).await;
        assert!(!second.is_finished() && !third.is_finished(), "{policy}");
        for _ in 0..7 {
            subject.clock.advance(Duration::from_millis(1_000));
            settle(&subject, &policy).await;
        }
        served(second).await;
        served(third).await;
        let polled = tokio::time::timeout(PATIENT, kept)
            .await
            .expect("it has its permit");
        assert!(polled.unwrap().is_allowed());
    }
}

/// A refund for the unpolled first waiter is not lost, and neither is its permit when it is
/// dropped.
pub(crate) async fn grant_of_cancelled_unpolled_waiter_goes_to_next(subject: Subject) {
    for policy in [bucket("b", 5, "1/h"), funnel("f", 5, "1/h"), window("w", 5, "1h")] {
        subject.use_up(&policy).await;
        let patience = secs(86_400);
        let mut kept = Box::pin(
            subject
                .limits
                .acquire(&policy, KEY)
                .timeout(patience)
                .into_future(),
        );
        assert!(tokio::time::timeout(Duration::ZERO, &mut kept).await.is_err());
        let second = waiter(&subject, &policy, 1, patience);
        let third = waiter(&subject, &policy, 1, patience);
        settle(&subject, &policy).await;
        subject.limits.refund(&policy, KEY).cost(2).await.unwrap();
        for _ in 0..3 {
            settle(&subject, &policy).await;
            subject.clock.advance(Duration::from_millis(1_010));
        }
        served(second).await;
        settle(&subject, &policy).await;
        assert!(!third.is_finished(), "{policy}: the other future is not polled");
        drop(kept);
        served(third).await;
        assert_eq!(subject.remaining(&policy).await, Amount::ZERO, "{policy}");
    }
}

/// The charge of a grant refills while its waiter is not polled, so a late refund returns nothing.
pub(crate) async fn late_refund_of_unpolled_grant_creates_no_permits(subject: Subject) {
    for policy in [bucket("b", 5, 1), funnel("f", 5, 1), window("w", 5, "5s")] {
        subject.use_up(&policy).await;
        let mut kept = Box::pin(subject.limits.acquire(&policy, KEY).into_future());
        assert!(tokio::time::timeout(Duration::ZERO, &mut kept).await.is_err());
        let second = waiter(&subject, &policy, 1, secs(60));
        settle(&subject, &policy).await;
        for _ in 0..10 {
            subject.clock.advance(Duration::from_millis(1_010));
            settle(&subject, &policy).await;
        }
        served(second).await;
        subject.clock.advance(secs(60));
        subject.use_up(&policy).await;
        drop(kept);
        settle(&subject, &policy).await;
        assert_eq!(subject.remaining(&policy).await, Amount::ZERO, "{policy}");
    }
}
