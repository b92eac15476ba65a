//! Paced funnels: each admitted call gets a delay, so that calls leave evenly.

use std::time::Duration;

use limiter_core::{Enforcement, LimitRequest, Limiter, Policy, Rejection, funnel_limiter};

use crate::support::{KEY, PATIENT, Subject, bucket, micros, millis, secs, wait_of};
use crate::waiting::{answer, served, settle, waiter};

fn paced(name: &str, capacity: u64, rate: &str) -> Policy {
    let policy = Policy::funnel(name).capacity(capacity).rate(rate).paced();
    policy.deadline(PATIENT).build().unwrap()
}

pub(crate) async fn simultaneous_calls_leave_one_by_one(subject: Subject) {
    let policy = paced("p", 5, "2/s");
    for number in 0..5 {
        let decision = subject.call(&policy).await;
        assert!(decision.is_allowed());
        assert_eq!(decision.delay(), millis(500) * number);
    }
    let denied = subject.call(&policy).await;
    assert_eq!((wait_of(&denied), denied.delay()), (millis(500), Duration::ZERO));
    // The freed place is the last of the queue.
    subject.clock.advance(millis(500));
    assert_eq!(subject.call(&policy).await.delay(), secs(2));
    subject.clock.advance(secs(10));
    assert_eq!(
        subject.call(&policy).await.delay(),
        Duration::ZERO,
        "all have left"
    );
}

/// For all arrival times and costs: each call leaves when all earlier ones have drained, and no
/// earlier.
pub(crate) async fn paced_calls_leave_evenly(subject: Subject) {
    let policy = paced("p", 10, "7/3s");
    let mut random = fastrand::Rng::with_seed(7);
    let (mut leaves, mut admitted) = (Duration::ZERO, 0);
    let mut passed = Duration::ZERO;
    for _ in 0..200 {
        let cost = random.u64(1..4);
        let decision = subject.call_of(&policy, cost).await;
        if decision.is_allowed() {
            admitted += 1;
            let delay = decision.delay();
            // Each delay is rounded up to a microsecond, and the rounding does not accumulate.
            assert!(
                passed + delay + micros(1) >= leaves,
                "{delay:?} at {passed:?}, not before {leaves:?}"
            );
            assert!(
                delay <= leaves.saturating_sub(passed) + micros(1),
                "{delay:?} at {passed:?}: {leaves:?}"
            );
            assert!(delay <= policy.window());
            leaves = leaves.max(passed) + secs(3 * cost) / 7;
        }
        let pause = micros(random.u64(0..1_500_000));
        subject.clock.advance(pause);
        passed += pause;
    }
    assert!((50..200).contains(&admitted), "{admitted}");
}

pub(crate) async fn peek_reports_delay(subject: Subject) {
    let policy = paced("p", 3, "1/s");
    assert!(subject.call_of(&policy, 2).await.is_allowed());
    assert_eq!(subject.peek(&policy).await.delay(), secs(2));
    assert_eq!(subject.call(&policy).await.delay(), secs(2));
    let nothing = subject.call_of(&policy, 0).await;
    assert!(nothing.is_allowed() && nothing.delay().is_zero());
}

pub(crate) async fn longest_delay_of_several_limits_applies(subject: Subject) {
    let (slow, quick) = (paced("slow", 5, "1/s"), paced("quick", 5, "10/s"));
    let tight = bucket("tight", 2, "1/h");
    let limits = &subject.limits;
    let decide = || limits.check_all([&slow, &quick, &tight].map(|policy| LimitRequest::new(policy, KEY)));
    assert!(decide().await.unwrap().delay().is_zero());
    let second = decide().await.unwrap();
    assert_eq!(second.delay(), secs(1));
    let delays: Vec<_> = second.limits().iter().map(|limit| limit.delay()).collect();
    assert_eq!(delays, [secs(1), millis(100), Duration::ZERO]);
    let denied = decide().await.unwrap();
    assert!(!denied.is_allowed() && denied.delay().is_zero());
}

pub(crate) async fn pacing_can_start_and_stop_while_calls_wait(subject: Subject) {
    let plain = crate::support::funnel("p", 5, "1/s");
    let policy = paced("p", 5, "1/s");
    assert!(subject.call_of(&plain, 2).await.delay().is_zero());
    assert_eq!(subject.call(&policy).await.delay(), secs(2));
    assert!(subject.call(&plain).await.delay().is_zero());
    assert_eq!(subject.call(&policy).await.delay(), secs(4));
    assert!(!subject.call(&plain).await.is_allowed());
}

pub(crate) async fn cancelled_delayed_call_lets_next_leave_earlier(subject: Subject) {
    let policy = paced("p", 3, "1/s");
    for _ in 0..3 {
        assert!(subject.call(&policy).await.is_allowed());
    }
    subject.limits.refund(&policy, KEY).await.unwrap();
    assert_eq!(subject.call(&policy).await.delay(), secs(2));
}

pub(crate) async fn acquire_waits_for_delay(subject: Subject) {
    let policy = paced("p", 5, "2/s");
    let waiters = [(); 3].map(|()| waiter(&subject, &policy, 1, secs(60)));
    settle(&subject, &policy).await;
    let [first, second, third] = waiters;
    served(first).await;
    assert!(!second.is_finished());
    subject.clock.advance(millis(500));
    served(second).await;
    settle(&subject, &policy).await;
    assert!(!third.is_finished());
    subject.clock.advance(millis(500));
    served(third).await;
}

/// A call with a grant has charged its permit, and keeps the moment at which it is due.
pub(crate) async fn change_in_registry_keeps_delays(subject: Subject) {
    let policy = paced("p", 5, "2/s");
    subject.limits.registry().set(&policy);
    let waiters = [(); 3].map(|()| {
        let limits = subject.limits.clone();
        tokio::spawn(async move { limits.named("p").acquire(KEY).timeout(secs(60)).await })
    });
    settle(&subject, &policy).await;
    subject.limits.registry().set(paced("p", 6, "2/s"));
    settle(&subject, &policy).await;
    for (number, waiter) in waiters.into_iter().enumerate() {
        if number > 0 {
            subject.clock.advance(millis(500));
        }
        let answer = tokio::time::timeout(PATIENT, waiter).await;
        let is_allowed = answer.is_ok_and(|answer| answer.is_ok_and(|allowed| allowed.is_ok()));
        assert!(is_allowed, "call {number} is due");
    }
}

pub(crate) async fn call_above_delay_budget_is_not_charged(subject: Subject) {
    let policy = paced("p", 5, "2/s");
    served(waiter(&subject, &policy, 3, secs(60))).await;
    let late = waiter(&subject, &policy, 1, millis(1_499));
    assert!(matches!(answer(late).await, Err(Rejection::TimedOut { .. })));
    let cancelled = waiter(&subject, &policy, 1, secs(60));
    settle(&subject, &policy).await;
    cancelled.abort();
    let cancelled = cancelled.await;
    assert!(cancelled.is_err_and(|error| error.is_cancelled()));
    let given_back = async {
        while subject.peek(&policy).await.remaining() != 2 {
            settle(&subject, &policy).await;
        }
    };
    tokio::time::timeout(PATIENT, given_back)
        .await
        .expect("a late grant is refunded");
}

#[funnel_limiter(name = "letters", capacity = 3, rate = 1, paced, deadline = "30s", limiter = limits)]
async fn letter(limits: &Limiter) -> Result<(), Rejection> {
    Ok(())
}

pub(crate) async fn cancelled_annotated_call_is_refunded(subject: Subject) {
    let budget = subject.limits.annotation("letters").unwrap().global().unwrap();
    let left = async |wanted: u64| {
        let until_then = async {
            while budget.peek().await.unwrap().remaining() != wanted {
                settle(&subject, budget.policy()).await;
            }
        };
        tokio::time::timeout(PATIENT, until_then)
            .await
            .expect("the permits are charged or refunded");
    };
    assert!(letter(&subject.limits).await.is_ok());
    let limits = subject.limits.clone();
    let cancelled = tokio::spawn(async move { letter(&limits).await });
    left(1).await;
    cancelled.abort();
    assert!(cancelled.await.is_err_and(|error| error.is_cancelled()));
    left(2).await;
}

pub(crate) async fn shadow_limit_causes_no_delay(subject: Subject) {
    subject.limits.set_enforcement(Enforcement::Shadow);
    for _ in 0..5 {
        let result = tokio::time::timeout(PATIENT, letter(&subject.limits)).await;
        assert!(result.expect("no clock is moved").is_ok());
    }
}
