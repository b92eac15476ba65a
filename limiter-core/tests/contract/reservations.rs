//! Reservations by an estimate, their settlement by the actual cost, and debts.

use limiter_core::{Amount, Enforcement, LimitRequest, Policy, Rejection};

use crate::support::{
    KEY, PATIENT, Subject, bucket, funnel, left, micros, millis, one_of_each, only, secs, wait_of, window,
};
use crate::waiting::{answer, settle, waiter};

pub(crate) async fn unused_estimate_is_refunded(subject: Subject) {
    for policy in one_of_each() {
        let reservation = subject.limits.reserve(&policy, KEY).cost(4).await.unwrap();
        assert!(reservation.decision().is_allowed());
        assert_eq!(subject.remaining(&policy).await, Amount::ONE, "{policy}");
        reservation.settle(1).await.unwrap();
        assert_eq!(subject.remaining(&policy).await, Amount::from(4_u32), "{policy}");
        let reservation = subject.limits.reserve(&policy, KEY).cost(4).await.unwrap();
        reservation.cancel().await.unwrap();
        assert_eq!(subject.remaining(&policy).await, Amount::from(4_u32), "{policy}");
    }
}

/// Usage above the estimate is a debt that delays later calls.
pub(crate) async fn cost_above_estimate_is_a_debt(subject: Subject) {
    for policy in [bucket("b", 5, 1), funnel("f", 5, 1)] {
        let reservation = subject.limits.reserve(&policy, KEY).cost(4).await.unwrap();
        reservation.settle(8).await.unwrap();
        let peeked = subject.peek(&policy).await;
        assert_eq!(left(&peeked), Amount::ZERO, "{policy}");
        assert_eq!(wait_of(&peeked), secs(4), "{policy}");
        assert_eq!(peeked.reset_after(), secs(8), "{policy}");
        assert_eq!(only(&peeked).expires_after(), secs(8), "{policy}");
        subject.clock.advance(secs(4) - micros(1));
        assert!(!subject.call(&policy).await.is_allowed(), "{policy}");
        subject.clock.advance(micros(1));
        assert_eq!(subject.calls(&policy, 2).await, "PD", "{policy}");
        subject.clock.advance(secs(5));
        assert_eq!(subject.remaining(&policy).await, policy.quota(), "{policy}");
    }
}

/// A debt of a window ends with the window.
pub(crate) async fn debt_of_window_lasts_one_window(subject: Subject) {
    let policy = window("w", 3, "10s");
    let reservation = subject.limits.reserve(&policy, KEY).cost(2).await.unwrap();
    subject.clock.advance(secs(4));
    reservation.settle(9).await.unwrap();
    let denied = subject.call(&policy).await;
    assert_eq!(wait_of(&denied), secs(10));
    assert_eq!(denied.reset_after(), secs(10));
    subject.clock.advance(secs(10));
    assert_eq!(subject.calls(&policy, 4).await, "PPPD");
}

/// The newest permits count, at every position of the ring.
pub(crate) async fn debt_removes_oldest_permits_of_window(subject: Subject) {
    let policy = window("w", 3, "10s");
    for _ in 0..3 {
        assert!(subject.call(&policy).await.is_allowed());
        subject.clock.advance(secs(1));
    }
    subject.limits.charge(&policy, KEY).cost(2).await.unwrap();
    // At 2 s, and two at 3 s.
    assert_eq!(wait_of(&subject.call(&policy).await), secs(9));
    subject.clock.advance(secs(9));
    assert_eq!(subject.calls(&policy, 2).await, "PD");
    subject.clock.advance(secs(1));
    assert_eq!(subject.calls(&policy, 3).await, "PPD");
}

pub(crate) async fn late_cost_is_charged_unconditionally(subject: Subject) {
    for policy in one_of_each() {
        subject.limits.charge(&policy, KEY).await.unwrap();
        subject.limits.charge(&policy, KEY).cost(2).await.unwrap();
        assert_eq!(subject.remaining(&policy).await, Amount::from(2_u32), "{policy}");
        subject.limits.charge(&policy, KEY).cost(0).await.unwrap();
        subject.limits.charge(&policy, KEY).cost(7).await.unwrap();
        assert_eq!(subject.calls(&policy, 1).await, "D", "{policy}");
        let refused = subject.limits.charge(&policy, KEY).cost(-1).await;
        assert!(
            matches!(refused, Err(Rejection::Config(_))),
            "{policy}: {refused:?}"
        );
    }
}

/// A refund reduces the debt first.
pub(crate) async fn refund_repays_debt(subject: Subject) {
    for policy in [bucket("b", 5, 1), funnel("f", 5, 1)] {
        subject.limits.charge(&policy, KEY).cost(9).await.unwrap();
        subject.limits.refund(&policy, KEY).cost(3).await.unwrap();
        assert_eq!(wait_of(&subject.call(&policy).await), secs(2), "{policy}");
        subject.limits.refund(&policy, KEY).cost(3).await.unwrap();
        assert_eq!(subject.remaining(&policy).await, Amount::from(2_u32), "{policy}");
    }
}

/// A reservation that is not settled stays charged at its estimate, which refills like other usage.
pub(crate) async fn dropped_reservation_stays_charged(subject: Subject) {
    for policy in one_of_each() {
        drop(subject.limits.reserve(&policy, KEY).cost(5).await.unwrap());
        assert_eq!(subject.calls(&policy, 1).await, "D", "{policy}");
        subject.clock.advance(secs(5));
        assert_eq!(subject.remaining(&policy).await, policy.quota(), "{policy}");
    }
}

/// Refilled permits are not refunded again, even if they were used since.
pub(crate) async fn settlement_creates_no_permits(subject: Subject) {
    for policy in one_of_each() {
        let early = subject.limits.reserve(&policy, KEY).cost(5).await.unwrap();
        subject.clock.advance(secs(5));
        assert!(subject.call_of(&policy, 5).await.is_allowed(), "{policy}");
        early.cancel().await.unwrap();
        assert_eq!(subject.calls(&policy, 1).await, "D", "{policy}");
    }
    // A part is refilled before a part is refunded.
    for policy in [bucket("p", 5, 1), funnel("p", 5, 1)] {
        let early = subject.limits.reserve(&policy, KEY).cost(5).await.unwrap();
        subject.clock.advance(secs(3));
        subject.use_up(&policy).await;
        early.cancel().await.unwrap();
        assert_eq!(subject.remaining(&policy).await, Amount::from(2_u32), "{policy}");
    }
}

pub(crate) async fn oversized_reservation_is_denied(subject: Subject) {
    for policy in one_of_each() {
        assert!(subject.call_of(&policy, 3).await.is_allowed());
        let refused = subject.limits.reserve(&policy, KEY).cost(3).await;
        assert!(
            matches!(&refused, Err(Rejection::Limited(_))),
            "{policy}: {refused:?}"
        );
        let refused = subject.limits.reserve(&policy, KEY).cost(6).await;
        assert!(
            matches!(&refused, Err(Rejection::NeverFits { .. })),
            "{policy}: {refused:?}"
        );
        assert_eq!(subject.remaining(&policy).await, Amount::from(2_u32), "{policy}");
    }
}

/// A reservation can wait, and a settlement wakes waiters.
pub(crate) async fn settlement_wakes_waiters(subject: Subject) {
    for policy in one_of_each() {
        let reservation = subject.limits.reserve(&policy, KEY).cost(5).await.unwrap();
        let waiting = waiter(&subject, &policy, 2, secs(60));
        settle(&subject, &policy).await;
        assert!(!waiting.is_finished(), "{policy}");
        reservation.settle(3).await.unwrap();
        assert!(answer(waiting).await.unwrap().is_allowed(), "{policy}");
        assert_eq!(subject.remaining(&policy).await, Amount::ZERO, "{policy}");
    }
}

pub(crate) async fn reservation_can_wait_for_permits(subject: Subject) {
    let policy = bucket("p", 5, 1);
    subject.use_up(&policy).await;
    let waiting = tokio::spawn({
        let (limits, policy) = (subject.limits.clone(), policy.clone());
        async move { limits.reserve(&policy, KEY).cost(2).timeout(secs(9)).await }
    });
    settle(&subject, &policy).await;
    subject.clock.advance(secs(2));
    let reservation = tokio::time::timeout(crate::support::PATIENT, waiting).await;
    reservation.unwrap().unwrap().unwrap().settle(1).await.unwrap();
    assert_eq!(subject.remaining(&policy).await, Amount::ONE);
}

/// For example requests and their tokens: one decision, and each limit settled by its own amount.
pub(crate) async fn several_limits_are_settled_together(subject: Subject) {
    let (calls, tokens) = (window("calls", 10, "1m"), bucket("tokens", 1_000, 10));
    let limit_requests = || {
        [
            LimitRequest::new(&calls, KEY),
            LimitRequest::new(&tokens, KEY).cost(500),
        ]
    };
    let remaining = async |policy: &Policy| subject.remaining(policy).await.whole();

    let reservation = subject.limits.reserve_all(limit_requests()).await.unwrap();
    reservation.settle_each([1, 320]).await.unwrap();
    assert_eq!((remaining(&calls).await, remaining(&tokens).await), (9, 680));
    let reservation = subject.limits.reserve_all(limit_requests()).await.unwrap();
    reservation.settle_each([0, 700]).await.unwrap();
    assert_eq!((remaining(&calls).await, remaining(&tokens).await), (9, 0));
    assert_eq!(wait_of(&subject.call(&tokens).await), secs(2) + millis(100));
}

/// An amount that one of the limits cannot count settles no limit.
pub(crate) async fn invalid_amount_settles_nothing(subject: Subject) {
    let (level, ring) = (bucket("b", 5, 1), window("w", 5, "5s"));
    let limit_requests = || {
        [
            LimitRequest::new(&level, KEY).cost(2),
            LimitRequest::new(&ring, KEY).cost(2),
        ]
    };
    let reserve = async || subject.limits.reserve_all(limit_requests()).await.unwrap();
    let refused = [
        reserve().await.settle_each([0.5, 0.5]).await,
        reserve().await.settle_each([0]).await,
    ];
    for refused in refused {
        assert!(matches!(refused, Err(Rejection::Config(_))), "{refused:?}");
    }
    for policy in [&level, &ring] {
        assert_eq!(subject.remaining(policy).await, Amount::ONE, "{policy}");
    }
}

/// A debt of a bucket applies under every policy of its name, in full.
pub(crate) async fn debt_survives_policy_change(subject: Subject) {
    for (small, large) in [
        (bucket("b", 5, 1), bucket("b", 10, 2)),
        (funnel("f", 5, 1), funnel("f", 10, 2)),
    ] {
        subject.limits.charge(&small, KEY).cost(25).await.unwrap();
        let result = wait_of(&subject.call(&large).await);
        assert!(result >= secs(8), "{large}: {result:?}");
        subject.clock.advance(result);
        assert!(subject.call(&large).await.is_allowed(), "{large}");
    }
}

/// A settlement affects only limits that were charged.
pub(crate) async fn uncharged_limit_is_not_settled(subject: Subject) {
    let policy = |name: &str| {
        let policy = Policy::token_bucket(name).capacity(5).rate("1/h");
        policy.deadline(PATIENT)
    };
    let plain = policy("plain").build().unwrap();
    let shadow = policy("shadow").enforcement(Enforcement::Shadow).build().unwrap();
    let off = policy("off").enforcement(Enforcement::Off).build().unwrap();
    let listed = policy("listed").allow_keys([KEY]).build().unwrap();
    let limits = &subject.limits;

    let all = [&off, &plain, &listed, &shadow].map(|policy| LimitRequest::new(policy, KEY));
    let reservation = limits.reserve_all(all).cost(4).await.unwrap();
    reservation.settle_each([1, 2, 3, 3]).await.unwrap();
    assert_eq!(subject.remaining(&plain).await, Amount::from(3_u32));
    assert_eq!(subject.remaining(&shadow).await, Amount::from(2_u32));

    // Allowed by shadow mode without a charge: there is no refund.
    let reservation = limits.reserve(&shadow, KEY).cost(4).await.unwrap();
    assert!(reservation.decision().would_deny());
    reservation.settle(1).await.unwrap();
    assert_eq!(subject.remaining(&shadow).await, Amount::from(2_u32));
    for policy in [&off, &listed] {
        limits.charge(policy, KEY).cost(5).await.unwrap();
        limits
            .reserve(policy, KEY)
            .cost(1)
            .await
            .unwrap()
            .settle(5)
            .await
            .unwrap();
    }
    limits.set_enforcement(Enforcement::Shadow);
    let enforced = policy("off").build().unwrap();
    assert_eq!(
        subject.remaining(&enforced).await,
        Amount::from(5_u32),
        "nothing was ever charged"
    );
}
