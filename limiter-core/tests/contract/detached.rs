//! Permits and reservations that a client holds by an id.

use std::time::Duration;

use limiter_core::detached::{DetachedPermit, PermitRelease, PermitRenewal, SettlementOutcome};
use limiter_core::{
    Amount, Enforcement, Inheritance, Key, LimitRequest, OnStoreFailure, Origin, Policy, Rejection,
};

use crate::support::{KEY, PATIENT, Subject, bucket, funnel, micros, secs, window};

const LEASE: Duration = secs(30);
const LIFETIME: Duration = secs(600);

fn concurrency(max: u32) -> Policy {
    let policy = Policy::concurrency("p").max(max).lease(LEASE);
    let policy = policy.deadline(PATIENT).on_store_failure(OnStoreFailure::Error);
    policy.build().unwrap()
}

async fn acquire(subject: &Subject, policy: &Policy, cost: u32) -> Result<DetachedPermit, Rejection> {
    let acquire = subject.limits.acquire_concurrency(policy, KEY).cost(cost);
    acquire.detached().await
}

async fn renew(subject: &Subject, policy: &Policy, id: &str) -> PermitRenewal {
    subject.limits.renew_permit(policy, KEY, id).await.unwrap()
}

async fn release(subject: &Subject, policy: &Policy, id: &str) -> PermitRelease {
    subject.limits.release_permit(policy, KEY, id).await.unwrap()
}

async fn remaining(subject: &Subject, policy: &Policy) -> u64 {
    subject.limits.peek(policy, KEY).await.unwrap().remaining()
}

fn is_config_error<T: std::fmt::Debug>(result: Result<T, Rejection>) -> bool {
    matches!(result, Err(Rejection::Config(_)))
}

/// The policy of a settlement may have other numbers than the policy of the decision.
pub(crate) async fn settlement_under_faster_policy_creates_no_permits(subject: Subject) {
    let limits = &subject.limits;
    for (before, after) in [
        (bucket("b", 10, "1/h"), bucket("b", 10, "1/s")),
        (funnel("f", 10, "1/h"), funnel("f", 10, "1/s")),
        (window("w", 10, "1h"), window("w", 10, "10s")),
    ] {
        let reservation = limits.reserve(&before, KEY).cost(10).await.unwrap();
        let reservation = reservation.detach(LIFETIME).await.unwrap();
        assert!(!subject.call(&after).await.is_allowed(), "{after}");
        subject.clock.advance(secs(10));
        assert!(subject.call_of(&after, 10).await.is_allowed(), "{after}");
        let limit = [LimitRequest::new(&after, KEY)];
        let outcome = limits.cancel_reservation(reservation.id(), limit).await.unwrap();
        assert_eq!(outcome, SettlementOutcome::Settled);
        assert_eq!(remaining(&subject, &after).await, 0, "{after}");
    }
}

pub(crate) async fn detached_permit_is_held_until_it_is_released(subject: Subject) {
    let policy = concurrency(5);
    let permit = acquire(&subject, &policy, 3).await.unwrap();
    assert_eq!(permit.decision().remaining(), 2);
    assert_eq!(permit.expires_at(), subject.clock.now().after(LEASE));
    assert!(acquire(&subject, &policy, 3).await.unwrap_err().is_limited());
    let other = acquire(&subject, &policy, 2).await.unwrap();
    assert_ne!(permit.id(), other.id());
    assert_eq!(remaining(&subject, &policy).await, 0);
    assert_eq!(
        release(&subject, &policy, permit.id()).await,
        PermitRelease::Released
    );
    assert_eq!(remaining(&subject, &policy).await, 3);
    assert_eq!(
        release(&subject, &policy, permit.id()).await,
        PermitRelease::NotHeld
    );
    assert_eq!(
        renew(&subject, &policy, permit.id()).await,
        PermitRenewal::NotHeld
    );
    assert_eq!(
        remaining(&subject, &policy).await,
        3,
        "the other permit is still held"
    );
    assert!(!format!("{permit:?}").contains(permit.id()));
}

pub(crate) async fn detached_permit_expires_unless_it_is_renewed(subject: Subject) {
    let policy = concurrency(1);
    let permit = acquire(&subject, &policy, 1).await.unwrap();
    subject.clock.advance(LEASE - micros(1));
    for _ in 0..2 {
        let expires_at = subject.clock.now().after(LEASE);
        let renewed = renew(&subject, &policy, permit.id()).await;
        assert_eq!(renewed, PermitRenewal::Renewed { expires_at });
    }
    subject.clock.advance(LEASE - micros(1));
    assert!(acquire(&subject, &policy, 1).await.is_err());
    subject.clock.advance(micros(1));
    assert_eq!(
        renew(&subject, &policy, permit.id()).await,
        PermitRenewal::NotHeld
    );
    assert_eq!(
        release(&subject, &policy, permit.id()).await,
        PermitRelease::NotHeld
    );
    let next = acquire(&subject, &policy, 1).await.unwrap();
    // The id of the expired permit does not release its successor.
    assert_eq!(
        release(&subject, &policy, permit.id()).await,
        PermitRelease::NotHeld
    );
    assert_eq!(remaining(&subject, &policy).await, 0);
    assert_eq!(
        release(&subject, &policy, next.id()).await,
        PermitRelease::Released
    );
    assert_eq!(remaining(&subject, &policy).await, 1);
}

pub(crate) async fn detached_permit_of_wrong_scope_is_rejected(subject: Subject) {
    let (policy, limits) = (concurrency(2), &subject.limits);
    let other = Policy::concurrency("other")
        .max(2)
        .deadline(PATIENT)
        .build()
        .unwrap();
    let permit = acquire(&subject, &policy, 1).await.unwrap();
    assert!(is_config_error(
        limits.renew_permit(&other, KEY, permit.id()).await
    ));
    assert!(is_config_error(
        limits.release_permit(&other, KEY, permit.id()).await
    ));
    for key in [Key::from("another"), Key::from(KEY).in_group("g")] {
        assert!(is_config_error(
            limits.renew_permit(&policy, key.clone(), permit.id()).await
        ));
        assert!(is_config_error(
            limits.release_permit(&policy, key, permit.id()).await
        ));
    }
    // Another namespace; in process, another limiter.
    let stranger = Subject::new(subject.kind);
    let renewed = stranger.limits.renew_permit(&policy, KEY, permit.id()).await;
    assert!(is_config_error(renewed));
    let rate = bucket("b", 1, 1);
    let used = [LimitRequest::new(&rate, KEY)];
    assert!(is_config_error(
        limits.settle_reservation(permit.id(), used).await
    ));
    assert_eq!(remaining(&subject, &policy).await, 1);
}

pub(crate) async fn forged_permit_id_changes_nothing(subject: Subject) {
    let (policy, limits) = (concurrency(9), &subject.limits);
    let permit = acquire(&subject, &policy, 3).await.unwrap();
    for at in 0..permit.id().len() {
        let mut forged = permit.id().as_bytes().to_vec();
        forged[at] = if forged[at] == b'0' { b'1' } else { b'0' };
        let forged = String::from_utf8(forged).unwrap();
        let renewed = limits.renew_permit(&policy, KEY, &forged).await;
        let released = limits.release_permit(&policy, KEY, &forged).await;
        assert!(is_config_error(renewed) && is_config_error(released), "{at}");
        assert_eq!(remaining(&subject, &policy).await, 6, "{at}");
    }
    let long = "x".repeat(79);
    for text in ["", "p", "r", &long] {
        assert!(is_config_error(limits.release_permit(&policy, KEY, text).await));
    }
    assert_eq!(
        release(&subject, &policy, permit.id()).await,
        PermitRelease::Released
    );
}

pub(crate) async fn reset_releases_detached_permits(subject: Subject) {
    let policy = concurrency(2);
    let permit = acquire(&subject, &policy, 2).await.unwrap();
    let another = subject.limits.acquire_concurrency(&policy, "another").detached();
    another.await.unwrap();
    subject.limits.reset(&policy, KEY).await.unwrap();
    assert_eq!(remaining(&subject, &policy).await, 2);
    assert_eq!(
        renew(&subject, &policy, permit.id()).await,
        PermitRenewal::NotHeld
    );
    let another = subject.limits.peek(&policy, "another").await.unwrap();
    assert_eq!(another.remaining(), 1);
}

pub(crate) async fn shadow_policy_returns_detached_permit_of_nothing(subject: Subject) {
    let shadow = Policy::concurrency("p").max(1).enforcement(Enforcement::Shadow);
    let shadow = shadow.deadline(PATIENT).build().unwrap();
    let held = acquire(&subject, &shadow, 1).await.unwrap();
    let excess = acquire(&subject, &shadow, 1).await.unwrap();
    assert!(excess.decision().would_deny());
    assert!(matches!(
        renew(&subject, &shadow, excess.id()).await,
        PermitRenewal::Renewed { .. }
    ));
    assert_eq!(
        release(&subject, &shadow, excess.id()).await,
        PermitRelease::Released
    );
    let enforced = concurrency(1);
    assert_eq!(remaining(&subject, &enforced).await, 0);
    assert_eq!(
        release(&subject, &shadow, held.id()).await,
        PermitRelease::Released
    );
    assert_eq!(remaining(&subject, &enforced).await, 1);
}

pub(crate) async fn detached_acquire_rejects_a_timeout(subject: Subject) {
    let policy = concurrency(1);
    let acquire = subject.limits.acquire_concurrency(&policy, KEY).timeout(secs(1));
    assert!(is_config_error(acquire.detached().await));
    assert_eq!(remaining(&subject, &policy).await, 1);
}

/// A client's permit in the model: its cost, and when it expires.
struct ModelPermit {
    permit: DetachedPermit,
    cost: u32,
    expires_at: limiter_core::Timestamp,
}

/// Random calls on two handles of one store equal a list of permits.
pub(crate) async fn random_traces_never_exceed_the_maximum(subject: Subject) {
    const MAX: u32 = 4;
    let random = &mut fastrand::Rng::with_seed(7);
    let handles = subject.two_handles();
    let policy = concurrency(MAX);
    let (mut held, mut ended): (Vec<ModelPermit>, Vec<DetachedPermit>) = (Vec::new(), Vec::new());
    for step in 0..400 {
        let (limits, now) = (&handles[random.usize(..2)], subject.clock.now());
        for at in (0..held.len()).rev() {
            if held[at].expires_at <= now {
                ended.push(held.swap_remove(at).permit);
            }
        }
        let used: u32 = held.iter().map(|permit| permit.cost).sum();
        match random.u32(..6) {
            0 | 1 => {
                let cost = random.u32(1..=2);
                let acquired = limits
                    .acquire_concurrency(&policy, KEY)
                    .cost(cost)
                    .detached()
                    .await;
                assert_eq!(acquired.is_ok(), used + cost <= MAX, "step {step}");
                let expires_at = now.after(LEASE);
                held.extend(acquired.ok().map(|permit| ModelPermit {
                    permit,
                    cost,
                    expires_at,
                }));
            }
            2 if !held.is_empty() => {
                let at = random.usize(..held.len());
                let expires_at = now.after(LEASE);
                let renewed = limits
                    .renew_permit(&policy, KEY, held[at].permit.id())
                    .await
                    .unwrap();
                assert_eq!(renewed, PermitRenewal::Renewed { expires_at }, "step {step}");
                held[at].expires_at = expires_at;
            }
            3 if !held.is_empty() => {
                let permit = held.swap_remove(random.usize(..held.len())).permit;
                let released = limits.release_permit(&policy, KEY, permit.id()).await.unwrap();
                assert_eq!(released, PermitRelease::Released, "step {step}");
                ended.push(permit);
            }
            4 if !ended.is_empty() => {
                let id = ended[random.usize(..ended.len())].id();
                let renewed = limits.renew_permit(&policy, KEY, id).await.unwrap();
                assert_eq!(renewed, PermitRenewal::NotHeld, "step {step}");
                let released = limits.release_permit(&policy, KEY, id).await.unwrap();
                assert_eq!(released, PermitRelease::NotHeld, "step {step}");
            }
            _ => subject.clock.advance(secs(random.u64(..12))),
        }
        let now = subject.clock.now();
        let held = held.iter().filter(|permit| permit.expires_at > now);
        let held: u32 = held.map(|permit| permit.cost).sum();
        assert_eq!(
            remaining(&subject, &policy).await,
            u64::from(MAX - held),
            "step {step}"
        );
    }
}

pub(crate) async fn detached_reservation_is_settled_once(subject: Subject) {
    for policy in [bucket("b", 10, 1), funnel("f", 10, 1), window("w", 10, "1h")] {
        for (used, left) in [(2_u32, 8_u32), (0, 10), (7, 3)] {
            let reservation = subject.limits.reserve(&policy, KEY).cost(5).await.unwrap();
            let reservation = reservation.detach(LIFETIME).await.unwrap();
            assert!(reservation.decision().is_allowed());
            assert_eq!(reservation.expires_at(), subject.clock.now().after(LIFETIME));
            assert_eq!(subject.remaining(&policy).await, Amount::from(5_u32), "{policy}");
            let request = || [LimitRequest::new(&policy, KEY).cost(used)];
            for expected in [
                SettlementOutcome::Settled,
                SettlementOutcome::AlreadySettled,
                SettlementOutcome::AlreadySettled,
            ] {
                let settled = subject
                    .limits
                    .settle_reservation(reservation.id(), request())
                    .await;
                assert_eq!(settled.unwrap(), expected, "{policy}");
                assert_eq!(
                    subject.remaining(&policy).await,
                    Amount::from(left),
                    "{policy} {used}"
                );
            }
            let cancelled = subject
                .limits
                .cancel_reservation(reservation.id(), request())
                .await;
            assert_eq!(cancelled.unwrap(), SettlementOutcome::AlreadySettled);
            assert_eq!(
                subject.remaining(&policy).await,
                Amount::from(left),
                "{policy} {used}"
            );
            subject.limits.reset(&policy, KEY).await.unwrap();
        }
    }
}

pub(crate) async fn detached_reservation_of_several_limits_is_settled_together(subject: Subject) {
    let (calls, tokens) = (window("calls", 60, "1h"), bucket("tokens", 1_000, 1));
    let requests = [
        LimitRequest::new(&calls, KEY),
        LimitRequest::new(&tokens, KEY).cost(800),
    ];
    let reservation = subject.limits.reserve_all(requests).await.unwrap();
    let reservation = reservation.detach(LIFETIME).await.unwrap();
    let used = |calls_used: u32, tokens_used: u32| {
        [
            LimitRequest::new(&calls, KEY).cost(calls_used),
            LimitRequest::new(&tokens, KEY).cost(tokens_used),
        ]
    };
    let [first, second] = used(1, 300);
    let limits = &subject.limits;
    assert!(is_config_error(
        limits.settle_reservation(reservation.id(), [first.clone()]).await
    ));
    assert!(is_config_error(
        limits.settle_reservation(reservation.id(), [second, first]).await
    ));
    let settled = limits.settle_reservation(reservation.id(), used(1, 300)).await;
    assert_eq!(settled.unwrap(), SettlementOutcome::Settled);
    assert_eq!(subject.remaining(&calls).await, Amount::from(59_u32));
    assert_eq!(subject.remaining(&tokens).await, Amount::from(700_u32));
}

pub(crate) async fn expired_reservation_keeps_its_estimate(subject: Subject) {
    let policy = window("w", 10, "1d");
    let reservation = subject.limits.reserve(&policy, KEY).cost(5).await.unwrap();
    let reservation = reservation.detach(LIFETIME).await.unwrap();
    subject.clock.advance(LIFETIME);
    let used = [LimitRequest::new(&policy, KEY).cost(1)];
    let settled = subject.limits.settle_reservation(reservation.id(), used).await;
    assert_eq!(settled.unwrap(), SettlementOutcome::Unknown);
    assert_eq!(subject.remaining(&policy).await, Amount::from(5_u32));
}

pub(crate) async fn reservation_id_of_wrong_limits_is_rejected(subject: Subject) {
    let (policy, other, limits) = (bucket("b", 10, 1), bucket("other", 10, 1), &subject.limits);
    let reservation = limits.reserve(&policy, KEY).cost(5).await.unwrap();
    let reservation = reservation.detach(LIFETIME).await.unwrap();
    for request in [
        LimitRequest::new(&other, KEY),
        LimitRequest::new(&policy, "another"),
    ] {
        let settled = limits
            .settle_reservation(reservation.id(), [request.cost(0)])
            .await;
        assert!(is_config_error(settled));
    }
    for at in 0..reservation.id().len() {
        let mut forged = reservation.id().as_bytes().to_vec();
        forged[at] = if forged[at] == b'0' { b'1' } else { b'0' };
        let forged = String::from_utf8(forged).unwrap();
        let request = [LimitRequest::new(&policy, KEY).cost(0)];
        assert!(
            is_config_error(limits.settle_reservation(&forged, request).await),
            "{at}"
        );
    }
    let stranger = Subject::new(subject.kind);
    let request = || [LimitRequest::new(&policy, KEY).cost(0)];
    assert!(is_config_error(
        stranger
            .limits
            .settle_reservation(reservation.id(), request())
            .await
    ));
    assert_eq!(subject.remaining(&policy).await, Amount::from(5_u32));
    let settled = limits.settle_reservation(reservation.id(), request()).await;
    assert_eq!(settled.unwrap(), SettlementOutcome::Settled);
}

pub(crate) async fn uncharged_reservation_is_settled_without_effect(subject: Subject) {
    let off = Policy::token_bucket("off")
        .capacity(10)
        .rate(1)
        .enforcement(Enforcement::Off);
    let off = off.build().unwrap();
    let reservation = subject.limits.reserve(&off, KEY).cost(5).await.unwrap();
    let reservation = reservation.detach(LIFETIME).await.unwrap();
    assert_eq!(reservation.decision().origin(), Origin::Off);
    let used = [LimitRequest::new(&off, KEY).cost(9)];
    let settled = subject.limits.settle_reservation(reservation.id(), used).await;
    assert_eq!(settled.unwrap(), SettlementOutcome::Settled);
    assert_eq!(
        subject.remaining(&bucket("off", 10, 1)).await,
        Amount::from(10_u32)
    );
}

pub(crate) async fn invalid_lifetime_refunds_the_estimate(subject: Subject) {
    let policy = window("w", 10, "1d");
    for lifetime in [Duration::ZERO, secs(7 * 86_400 + 1)] {
        let reservation = subject.limits.reserve(&policy, KEY).cost(5).await.unwrap();
        assert!(is_config_error(reservation.detach(lifetime).await));
        let given_back = async {
            while subject.remaining(&policy).await != Amount::from(10_u32) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENT, given_back)
            .await
            .expect("the estimate stays charged");
    }
}

pub(crate) async fn settlement_after_proportional_change_is_converted(subject: Subject) {
    let sized = |capacity: u32| {
        let policy = Policy::token_bucket("b")
            .capacity(capacity)
            .rate("1/h")
            .deadline(PATIENT);
        policy.build().unwrap()
    };
    let limits = &subject.limits;
    limits.registry().set(sized(10));
    let reservation = limits.named("b").reserve(KEY).cost(5).await.unwrap();
    let reservation = reservation.detach(LIFETIME).await.unwrap();
    subject.clock.advance(micros(1));
    limits
        .registry()
        .change_at(sized(100), Inheritance::Proportional, subject.clock.now())
        .unwrap();
    let policy = limits.policy("b", KEY).unwrap();
    assert_eq!(limits.named("b").peek(KEY).await.unwrap().remaining(), 50);
    let cancelled = limits
        .cancel_reservation(reservation.id(), [(&policy, KEY)])
        .await;
    assert_eq!(cancelled.unwrap(), SettlementOutcome::Settled);
    // The conversion rounds down.
    let left = limits.named("b").peek(KEY).await.unwrap().remaining();
    assert!((99..=100).contains(&left), "{left}");
}

/// Limits beyond the sixteenth are not charged, and do not prevent the settlement of the others.
pub(crate) async fn reservation_beside_many_uncharged_limits_is_settled(subject: Subject) {
    let plain = bucket("plain", 10, "1/h");
    let off = |number: usize| {
        let policy = Policy::token_bucket(format!("off{number}"))
            .capacity(10)
            .rate("1/h");
        policy.enforcement(Enforcement::Off).build().unwrap()
    };
    let off: Vec<Policy> = (0..16).map(off).collect();
    let requests = || {
        [&plain]
            .into_iter()
            .chain(&off)
            .map(|policy| LimitRequest::new(policy, KEY).cost(4))
    };
    let reservation = subject.limits.reserve_all(requests()).await.unwrap();
    let reservation = reservation.detach(LIFETIME).await.unwrap();
    let outcome = subject
        .limits
        .cancel_reservation(reservation.id(), requests())
        .await;
    assert_eq!(outcome.unwrap(), SettlementOutcome::Settled);
    assert_eq!(remaining(&subject, &plain).await, 10);
}

/// The charge is in the state of the earlier generation, and so is its settlement.
pub(crate) async fn id_from_before_reset_remains_valid(subject: Subject) {
    let limits = &subject.limits;
    let (before, other) = (bucket("b", 10, "1/h"), bucket("o", 10, "1/h"));
    let requests = [&before, &other].map(|policy| LimitRequest::new(policy, KEY).cost(4));
    let reservation = limits.reserve_all(requests).await.unwrap();
    let reservation = reservation.detach(LIFETIME).await.unwrap();
    let (after, other) = (before.clone().with_generation(2), other.with_generation(1));
    assert!(subject.call(&after).await.is_allowed());
    for expected in [SettlementOutcome::Settled, SettlementOutcome::AlreadySettled] {
        let used = [&after, &other].map(|policy| LimitRequest::new(policy, KEY).cost(1));
        let settled = limits.settle_reservation(reservation.id(), used).await;
        assert_eq!(settled.unwrap(), expected);
    }
    assert_eq!(subject.remaining(&after).await.whole(), 9, "only the call");
    assert_eq!(subject.remaining(&before).await.whole(), 9, "the settled permit");

    let policy = concurrency(1);
    let permit = acquire(&subject, &policy, 1).await.unwrap();
    let after = policy.clone().with_generation(1);
    let renewed = renew(&subject, &after, permit.id()).await;
    assert!(matches!(renewed, PermitRenewal::Renewed { .. }));
    for expected in [PermitRelease::Released, PermitRelease::NotHeld] {
        assert_eq!(release(&subject, &after, permit.id()).await, expected);
    }
    assert_eq!(remaining(&subject, &policy).await, 1);
}
