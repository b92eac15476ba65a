//! Trial values of a policy, on the store.

use limiter_core::registry::KeyOverride;
use limiter_core::{Enforcement, Policy};

use crate::support::{KEY, PATIENT, Subject, bucket, funnel, secs, window};

fn with_trial(policy: &Policy, numbers: &Policy, subject: &Subject) -> Policy {
    let end = subject.clock.now().after(secs(3_600));
    policy.with_trial(numbers, end).unwrap()
}

async fn left_in_trial(subject: &Subject, policy: &Policy) -> u64 {
    let (trial, _) = policy.trial().unwrap();
    subject.limits.peek(trial, KEY).await.unwrap().remaining()
}

/// The trial has its own state, is charged by its own decisions, and changes no decision.
pub(crate) async fn trial_is_decided_beside_the_policy(subject: Subject) {
    for (policy, small, large) in [
        (
            bucket("b", 3, "1/d"),
            bucket("b", 1, "1/d"),
            bucket("b", 9, "1/d"),
        ),
        (
            funnel("f", 3, "1/d"),
            funnel("f", 1, "1/d"),
            funnel("f", 9, "1/d"),
        ),
        (window("w", 3, "1d"), window("w", 1, "1d"), window("w", 9, "1d")),
    ] {
        let smaller = with_trial(&policy, &small, &subject);
        assert_eq!(subject.calls(&smaller, 5).await, "PPPDD", "{policy}");
        assert_eq!(left_in_trial(&subject, &smaller).await, 0, "{policy}");
        // The policy is used up, and the trial starts again.
        let larger = with_trial(&policy, &large, &subject);
        let (trial, _) = larger.trial().unwrap();
        subject.limits.reset(trial, KEY).await.unwrap();
        assert_eq!(subject.calls(&larger, 2).await, "DD", "{policy}");
        assert_eq!(left_in_trial(&subject, &larger).await, 7, "{policy}");
    }
}

pub(crate) async fn trial_ends_by_the_clock(subject: Subject) {
    let policy = with_trial(&bucket("p", 9, "1/d"), &bucket("p", 5, "1/d"), &subject);
    assert_eq!(subject.calls(&policy, 1).await, "P");
    assert_eq!(left_in_trial(&subject, &policy).await, 4);
    subject.clock.advance(secs(3_600));
    assert_eq!(subject.calls(&policy, 1).await, "P");
    assert_eq!(left_in_trial(&subject, &policy).await, 4);
}

/// Each kind of call that charges has a trial, and others have none.
pub(crate) async fn trial_follows_charged_calls_only(subject: Subject) {
    let policy = with_trial(&bucket("p", 9, "1/d"), &bucket("p", 7, "1/d"), &subject);
    let limits = &subject.limits;
    limits.peek(&policy, KEY).await.unwrap().require().unwrap();
    assert_eq!(left_in_trial(&subject, &policy).await, 7);
    limits.acquire(&policy, KEY).timeout(secs(1)).await.unwrap();
    assert_eq!(left_in_trial(&subject, &policy).await, 6);
    assert!(!limits.admit(&policy, KEY).await.unwrap().is_degraded());
    assert_eq!(left_in_trial(&subject, &policy).await, 5);
    let other = bucket("q", 9, "1/d");
    let both = limits.check_all([(&policy, KEY), (&other, KEY)]).await.unwrap();
    assert_eq!((both.is_allowed(), both.limits().len()), (true, 2));
    assert_eq!(left_in_trial(&subject, &policy).await, 4);
    let reservation = limits.reserve(&policy, KEY).cost(2).await.unwrap();
    reservation.settle(2).await.unwrap();
    assert_eq!(left_in_trial(&subject, &policy).await, 2);
    limits.refund(&policy, KEY).cost(2).await.unwrap();
    assert_eq!(left_in_trial(&subject, &policy).await, 2);
    limits.set_enforcement(Enforcement::Off);
    limits.check(&policy, KEY).await.unwrap().require().unwrap();
    limits.set_enforcement(Enforcement::Enforce);
    assert_eq!(left_in_trial(&subject, &policy).await, 2);
    // A key with a quota of its own has no trial.
    limits.registry().set(&policy);
    let own = KeyOverride::new(bucket("p", 20, "1/d"), "vip");
    limits.registry().set_override(own).unwrap();
    for (key, left) in [("vip", 7), ("other", 6)] {
        limits.named("p").check(key).await.unwrap().require().unwrap();
        let (trial, _) = policy.trial().unwrap();
        assert_eq!(limits.peek(trial, key).await.unwrap().remaining(), left, "{key}");
    }
    // A cost above the trial's quota does not affect the call.
    limits.reset(&policy, KEY).await.unwrap();
    assert!(limits.check(&policy, KEY).cost(9).await.unwrap().is_allowed());
}

/// A key list or a block decides the call without the store.
pub(crate) async fn forbidden_call_is_not_part_of_trial(subject: Subject) {
    let policy = with_trial(&bucket("p", 9, "1/d"), &bucket("p", 7, "1/d"), &subject);
    let listed = Policy::token_bucket("q").capacity(9).rate("1/d");
    let listed = listed.deny_keys([KEY]).deadline(PATIENT).build().unwrap();
    let limits = &subject.limits;
    let both = [(&policy, KEY), (&listed, KEY)];
    assert!(!limits.check_all(both).await.unwrap().is_allowed());
    assert!(limits.acquire_all(both).timeout(secs(1)).await.is_err());
    assert_eq!(left_in_trial(&subject, &policy).await, 7);
}

pub(crate) async fn invalid_trials_are_named(subject: Subject) {
    let end = subject.clock.now().after(secs(1));
    let rejected = bucket("p", 1, "1/s")
        .with_trial(&window("p", 1, "1s"), end)
        .unwrap_err();
    assert!(
        rejected.to_string().contains("expected the algorithm of p"),
        "{rejected}"
    );
    let export = Policy::concurrency("export")
        .max(1)
        .deadline(PATIENT)
        .build()
        .unwrap();
    let rejected = export.with_trial(&export, end).unwrap_err();
    assert!(rejected.to_string().contains("concurrency"), "{rejected}");
    let tried = with_trial(&bucket("p", 1, "1/s"), &bucket("p", 2, "1/s"), &subject);
    assert_eq!(tried.without_trial(), bucket("p", 1, "1/s"));
    assert_eq!(
        tried.with_numbers_of(tried.trial().unwrap().0).without_trial(),
        bucket("p", 2, "1/s")
    );
}
