//! Enforcement modes: enforced, shadow, off.

use std::time::Duration;

use limiter_core::{Enforcement, LimitRequest, OnStoreFailure, Origin, Policy, Rejection};

use crate::support::{KEY, Kind, PATIENT, Subject, bucket, one_of_each, secs, window};

/// A bucket of `capacity` that refills one permit per minute.
fn policy(name: &str, capacity: u32, enforcement: Enforcement) -> Policy {
    Policy::token_bucket(name)
        .capacity(capacity)
        .rate("1/min")
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::Error)
        .enforcement(enforcement)
        .build()
        .unwrap()
}

/// Shadow mode reports for each call the numbers of the enforced decision, and allows the call.
pub(crate) async fn shadow_mode_decides_and_denies_no_call(subject: Subject) {
    let shadow = policy("shadow", 2, Enforcement::Shadow);
    let plain = bucket("plain", 2, "1/min");
    for call in 0..5 {
        let (result, denies) = (subject.call(&shadow).await, subject.call(&plain).await);
        assert!(result.is_allowed(), "call {call}");
        assert_eq!(result.would_deny(), !denies.is_allowed(), "call {call}");
        assert_eq!(result.remaining(), denies.remaining(), "call {call}");
        assert_eq!(result.reset_after(), denies.reset_after(), "call {call}");
        assert_eq!(result.retry_after(), None, "an allowed call has no retry time");
        let limits = (&result.limits()[0], &denies.limits()[0]);
        assert_eq!(limits.0.retry_after(), limits.1.retry_after());
        subject.clock.advance(secs(7));
    }
    let peeked = subject.peek(&shadow).await;
    assert!(peeked.is_allowed() && peeked.would_deny());
    subject.clock.advance(secs(60));
    assert!(!subject.call(&shadow).await.would_deny());
}

/// The limit continues with its shadow usage when it is enforced again.
pub(crate) async fn shadow_usage_counts(subject: Subject) {
    for mode in [Enforcement::Shadow, Enforcement::Enforce] {
        subject.limits.set_enforcement(mode);
        assert_eq!(subject.limits.enforcement(), mode);
        for policy in one_of_each() {
            let answers = subject.calls(&policy, 6).await;
            let expected = if mode == Enforcement::Shadow {
                "PPPPPP"
            } else {
                "DDDDDD"
            };
            assert_eq!(answers, expected, "{policy} {mode}");
        }
    }
}

pub(crate) async fn off_mode_queries_and_charges_nothing(subject: Subject) {
    let off = policy("off", 1, Enforcement::Off);
    for _ in 0..3 {
        let decision = subject.call_of(&off, 7).await;
        assert_eq!((decision.is_allowed(), decision.origin()), (true, Origin::Off));
        assert!(!decision.would_deny() && decision.limits().is_empty());
        assert_eq!(decision.decided_at(), subject.clock.now());
        assert!(subject.limits.acquire(&off, KEY).cost(7).await.is_ok());
    }
    assert_eq!(subject.redis_keys(), Vec::<String>::new());
    subject.limits.set_enforcement(Enforcement::Off);
    for policy in one_of_each() {
        assert_eq!(subject.calls(&policy, 9).await, "PPPPPPPPP", "{policy}");
    }
    subject.limits.set_enforcement(Enforcement::Enforce);
    for policy in one_of_each() {
        assert_eq!(subject.calls(&policy, 6).await, "PPPPPD", "{policy}");
    }
}

pub(crate) async fn looser_mode_of_policy_and_limiter_applies(subject: Subject) {
    use Enforcement::{Enforce, Off, Shadow};
    let mut round = 0;
    for whole in [Enforce, Shadow, Off] {
        subject.limits.set_enforcement(whole);
        for own in [Enforce, Shadow, Off] {
            round += 1;
            let policy = policy(&format!("p{round}"), 1, own);
            assert!(subject.call(&policy).await.is_allowed());
            let second = subject.call(&policy).await;
            let expected = match own.max(whole) {
                Enforce => (false, false, 1),
                Shadow => (true, true, 1),
                _ => (true, false, 0),
            };
            let result = (second.is_allowed(), second.would_deny(), second.limits().len());
            assert_eq!(result, expected, "{own} under {whole}");
        }
    }
}

/// In one decision, shadow limits do not affect enforced limits.
pub(crate) async fn shadow_limit_does_not_affect_enforced_limits(subject: Subject) {
    let shadow = policy("shadow", 1, Enforcement::Shadow);
    let off = policy("off", 1, Enforcement::Off);
    let [first, second] = [bucket("first", 3, "1/min"), window("second", 3, "1m")];
    let requests = || [&shadow, &first, &off, &second].map(|policy| LimitRequest::new(policy, KEY));
    for call in 1..=3 {
        let decision = subject.limits.check_all(requests()).await.unwrap();
        assert!(decision.is_allowed(), "call {call}");
        assert_eq!(decision.would_deny(), call > 1, "call {call}");
        let limits = decision.limits().iter();
        let result: Vec<_> = limits
            .map(|limit| (limit.policy().name(), limit.remaining().whole()))
            .collect();
        assert_eq!(result, [("shadow", 0), ("first", 3 - call), ("second", 3 - call)]);
    }
    // Denied by the enforced limits, which alone are reported; the shadow limit is not charged.
    let fresh = policy("fresh", 1, Enforcement::Shadow);
    let requests = [LimitRequest::new(&fresh, KEY), LimitRequest::new(&first, KEY)];
    let denied = subject.limits.check_all(requests).await.unwrap();
    assert!(!denied.is_allowed() && !denied.would_deny());
    assert_eq!(denied.denied_by().unwrap().policy().name(), "first");
    assert!(denied.outcome_at(0).is_none());
    assert_eq!(denied.outcome_at(1).unwrap().policy().name(), "first");
    assert_eq!(subject.remaining(&fresh).await.whole(), 1);
}

/// Limits that a denied call did not evaluate have no outcome at their positions.
pub(crate) async fn denied_call_has_outcomes_at_positions_of_its_limits(subject: Subject) {
    let shadow = policy("shadow", 5, Enforcement::Shadow);
    let off = policy("off", 5, Enforcement::Off);
    let used = policy("used", 1, Enforcement::Enforce);
    let listed = Policy::token_bucket("listed").capacity(5).rate("1/min");
    let listed = listed.deny_keys([KEY]).deadline(PATIENT).build().unwrap();
    assert!(subject.call(&used).await.is_allowed());
    let limits = &subject.limits;
    for denying in [&used, &listed] {
        let requests = || [&shadow, &off, denying].map(|policy| LimitRequest::new(policy, KEY));
        let rejections = [
            limits
                .acquire_all(requests())
                .timeout(Duration::ZERO)
                .await
                .unwrap_err(),
            limits.reserve_all(requests()).await.unwrap_err(),
        ];
        let denied = limits.check_all(requests()).await.unwrap();
        let denials = rejections.iter().filter_map(Rejection::decision);
        for denied in denials.chain([&denied]) {
            let names = [0, 1, 2].map(|position| Some(denied.outcome_at(position)?.policy().name()));
            assert_eq!(names, [None, None, Some(denying.name())], "{denied:?}");
        }
    }
}

pub(crate) async fn shadow_limit_causes_no_wait(subject: Subject) {
    let shadow = policy("shadow", 1, Enforcement::Shadow);
    let enforced = bucket("enforced", 2, "1/min");
    for call in 0..3 {
        let allowed = subject.limits.acquire(&shadow, KEY).await.unwrap();
        assert_eq!(allowed.would_deny(), call > 0);
    }
    let both = || [LimitRequest::new(&shadow, KEY), LimitRequest::new(&enforced, KEY)];
    for _ in 0..2 {
        assert!(subject.limits.acquire_all(both()).await.unwrap().would_deny());
    }
    let late = subject.limits.acquire_all(both()).timeout(secs(0)).await;
    assert!(matches!(late, Err(Rejection::Limited(_))), "{late:?}");
}

/// In shadow mode each cause of a rejection is reported, and the call continues.
pub(crate) async fn rejected_call_is_allowed_in_shadow(subject: Subject) {
    let shadow = policy("shadow", 1, Enforcement::Shadow);
    for answer in [
        subject.limits.check(&shadow, KEY).cost(2).await,
        subject.limits.check(&shadow, KEY).cost(-1).await,
        subject.limits.check_all([(&shadow, KEY), (&shadow, KEY)]).await,
    ] {
        let decision = answer.unwrap();
        assert!(decision.is_allowed() && decision.would_deny() && decision.limits().is_empty());
        let origin = match subject.kind {
            Kind::Memory => Origin::Memory,
            Kind::Standalone | Kind::Cluster => Origin::Redis,
        };
        assert_eq!(decision.origin(), origin, "the store works");
    }
    subject.limits.shutdown(secs(1)).await;
    let closed = subject.limits.check(&shadow, KEY).await.unwrap();
    assert!(closed.would_deny() && closed.store_error().is_some());
    assert_eq!(closed.origin(), Origin::FailedOpen);
    assert!(subject.limits.check(&bucket("b", 1, 1), KEY).await.is_err());
}

/// An unreadable value rejects no call either.
pub(crate) async fn failing_store_denies_no_shadow_call(subject: Subject) {
    if subject.kind == Kind::Memory {
        return;
    }
    let shadow = policy("shadow", 1, Enforcement::Shadow);
    assert!(subject.call(&shadow).await.is_allowed());
    let [name] = &subject.redis_keys()[..] else {
        unreachable!("one limit")
    };
    subject.command(name, &["SET", name, "not ours"]);
    let result = subject.call(&shadow).await;
    assert!(result.is_allowed() && result.would_deny() && result.store_error().is_some());
}
