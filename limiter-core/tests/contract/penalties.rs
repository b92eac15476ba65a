//! A key that is denied too often is blocked for a while.

use limiter_core::penalty::Penalty;
use limiter_core::{
    Allowed, Decision, Enforcement, LimitRequest, OnDenial, OnStoreFailure, Policy, Rejection,
};

use crate::support::{KEY, PATIENT, Subject, bucket, micros, secs, wait_of};
use crate::waiting::{answer, settle};

/// A bucket of one permit a second; three denials in ten seconds block for a minute.
fn policy(name: &str) -> Policy {
    let policy = Policy::token_bucket(name).capacity(1).rate(1);
    let penalty = Penalty::after(3, "10s").block_for("1m");
    policy
        .penalty(penalty)
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap()
}

async fn until_blocked(subject: &Subject, policy: &Policy) -> Decision {
    for _ in 0..3 {
        let decision = subject.call(policy).await;
        assert!(!decision.is_blocked(), "{decision:?}");
    }
    subject.call(policy).await
}

pub(crate) async fn key_denied_too_often_is_blocked_for_block_time(subject: Subject) {
    let policy = policy("p");
    let third = until_blocked(&subject, &policy).await;
    assert!(third.is_blocked() && !third.is_allowed());
    assert_eq!(
        wait_of(&third),
        secs(60),
        "the denial that exceeds the threshold reports the block"
    );
    let until = subject.clock.now().after(secs(60));
    for passed in [0, 1, 20, 38] {
        subject.clock.advance(secs(passed));
        assert_eq!(
            subject.limits.blocked_until(&policy, KEY).await.unwrap(),
            Some(until)
        );
        let denied = subject.call(&policy).await;
        assert!(denied.is_blocked());
        assert_eq!(wait_of(&denied), until.since(subject.clock.now()));
        assert_eq!(denied.remaining(), 0, "although the bucket is full again");
        assert_eq!(denied.denied_by().unwrap().policy(), &policy);
    }
    subject.clock.advance(secs(1) - micros(1));
    assert_eq!(wait_of(&subject.call(&policy).await), micros(1));
    subject.clock.advance(micros(1));
    assert_eq!(subject.limits.blocked_until(&policy, KEY).await.unwrap(), None);
    let again = until_blocked(&subject, &policy).await;
    assert!(
        again.is_blocked(),
        "the next block needs the full number of denials"
    );
}

pub(crate) async fn other_keys_and_policies_are_not_blocked(subject: Subject) {
    let policy = policy("p");
    assert!(until_blocked(&subject, &policy).await.is_blocked());
    let other = subject.limits.check(&policy, "other").await.unwrap();
    assert!(other.is_allowed() && !other.is_blocked());
    assert!(subject.call(&bucket("other", 1, 1)).await.is_allowed());
    // A policy of the same name without a penalty shares only the bucket.
    subject.clock.advance(secs(1));
    assert!(subject.call(&bucket("p", 1, 1)).await.is_allowed());
    assert!(subject.call(&policy).await.is_blocked());
}

pub(crate) async fn distant_denials_cause_no_block(subject: Subject) {
    let policy = policy("p");
    for _ in 0..3 {
        assert_eq!(subject.calls(&policy, 3).await, "PDD");
        subject.clock.advance(secs(30));
    }
    assert_eq!(subject.limits.blocked_until(&policy, KEY).await.unwrap(), None);
}

pub(crate) async fn peeks_and_calls_in_shadow_do_not_count(subject: Subject) {
    let policy = policy("p");
    subject.use_up(&policy).await;
    for _ in 0..5 {
        assert!(!subject.peek(&policy).await.is_blocked());
    }
    subject.limits.set_enforcement(Enforcement::Shadow);
    for _ in 0..5 {
        assert!(subject.call(&policy).await.would_deny());
    }
    subject.limits.set_enforcement(Enforcement::Enforce);
    assert_eq!(subject.limits.blocked_until(&policy, KEY).await.unwrap(), None);
    assert_eq!(subject.calls(&policy, 2).await, "DD");
    assert!(subject.call(&policy).await.is_blocked());
    // Peeks and shadow mode report the block.
    subject.clock.advance(secs(5));
    assert!(subject.peek(&policy).await.is_blocked());
    subject.limits.set_enforcement(Enforcement::Shadow);
    let result = subject.call(&policy).await;
    assert!(result.is_allowed() && result.would_deny() && result.is_blocked());
}

pub(crate) async fn reset_removes_block_and_denial_count(subject: Subject) {
    let policy = policy("p");
    for _ in 0..2 {
        assert!(until_blocked(&subject, &policy).await.is_blocked());
        subject.limits.reset(&policy, KEY).await.unwrap();
        assert_eq!(subject.redis_keys(), Vec::<String>::new());
    }
    assert_eq!(subject.calls(&policy, 3).await, "PDD");
    subject.limits.reset(&policy, KEY).await.unwrap();
    assert!(
        until_blocked(&subject, &policy).await.is_blocked(),
        "the reset removes the two earlier denials"
    );
}

/// A cost of zero is always allowed and checks no block.
pub(crate) async fn zero_cost_is_never_blocked(subject: Subject) {
    let policy = policy("p");
    assert!(until_blocked(&subject, &policy).await.is_blocked());
    assert!(subject.call_of(&policy, 0).await.is_allowed());
}

pub(crate) async fn block_denies_whole_decision_without_charge(subject: Subject) {
    let (penalized, plain) = (policy("p"), bucket("plain", 5, 1));
    assert!(until_blocked(&subject, &penalized).await.is_blocked());
    subject.clock.advance(secs(2));
    for _ in 0..2 {
        let requests = [LimitRequest::new(&plain, KEY), LimitRequest::new(&penalized, KEY)];
        let denied = subject.limits.check_all(requests).await.unwrap();
        assert!(denied.is_blocked() && wait_of(&denied) == secs(58));
        let fits: Vec<_> = denied.limits().iter().map(|limit| limit.is_allowed()).collect();
        assert_eq!(fits, [true, false]);
    }
    assert_eq!(subject.remaining(&plain).await, plain.quota());
}

/// A bucket and a window of one name have one block, which each call with both checks once.
pub(crate) async fn block_of_two_limits_of_one_name_lasts(subject: Subject) {
    let bucket = policy("p");
    let window = Policy::sliding_window("p")
        .limit(9)
        .window("1s")
        .penalty("3 in 10s: 1m");
    let window = window
        .deadline(PATIENT)
        .on_store_failure(OnStoreFailure::Error)
        .build()
        .unwrap();
    assert!(until_blocked(&subject, &bucket).await.is_blocked());
    subject.clock.advance(secs(20));
    for _ in 0..3 {
        let both = [&bucket, &window].map(|policy| LimitRequest::new(policy, KEY));
        let denied = subject.limits.check_all(both).await.unwrap();
        assert!(denied.is_blocked() && wait_of(&denied) == secs(40), "{denied:?}");
        let blocked = denied.limits().iter().all(|limit| !limit.is_allowed());
        assert!(blocked, "{denied:?}");
    }
}

/// Calls of one queue may charge a penalized limit or only read it. A block concerns those that
/// charge it, whichever call is the newest.
pub(crate) async fn waiter_keeps_block_of_its_own_cost(subject: Subject) {
    let (penalized, slow) = (policy("p"), bucket("slow", 1, "1/30s"));
    assert!(subject.call(&slow).await.is_allowed());
    let start = |cost: u32| {
        let (limits, penalized, slow) = (subject.limits.clone(), penalized.clone(), slow.clone());
        tokio::spawn(async move {
            let both = [
                LimitRequest::new(&penalized, KEY).cost(cost),
                LimitRequest::new(&slow, KEY),
            ];
            let granted = limits.acquire_all(both).timeout(secs(300)).await;
            granted.map(Allowed::into_decision)
        })
    };
    let charges = start(1);
    settle(&subject, &slow).await;
    let reads = start(0);
    settle(&subject, &slow).await;
    assert!(until_blocked(&subject, &penalized).await.is_blocked());
    subject.clock.advance(secs(30));
    let rejection = answer(charges).await.expect_err("the key is blocked");
    assert!(
        rejection.decision().is_some_and(Decision::is_blocked),
        "{rejection:?}"
    );
    let granted = answer(reads).await;
    assert!(granted.is_ok(), "a cost of zero is never blocked: {granted:?}");
}

/// Only the limits that deny count a denial.
pub(crate) async fn denial_counts_for_the_denying_limit(subject: Subject) {
    let (penalized, full) = (policy("p"), bucket("full", 1, "1/h"));
    subject.use_up(&full).await;
    for _ in 0..5 {
        let requests = [LimitRequest::new(&penalized, KEY), LimitRequest::new(&full, KEY)];
        assert!(!subject.limits.check_all(requests).await.unwrap().is_blocked());
    }
    assert!(subject.call(&penalized).await.is_allowed());
}

pub(crate) async fn timed_out_wait_counts_as_one_denial(subject: Subject) {
    let policy = policy("p");
    subject.use_up(&policy).await;
    for call in 1..=3 {
        let late = subject.limits.acquire(&policy, KEY).timeout(micros(0)).await;
        let Err(Rejection::Limited(denied)) = late else {
            unreachable!("{late:?}")
        };
        assert_eq!(denied.is_blocked(), call == 3, "{call}");
    }
    let late = subject.limits.acquire(&policy, KEY).timeout(secs(30)).await;
    assert!(
        matches!(late, Err(Rejection::TimedOut { .. })),
        "a block has its full length immediately"
    );
}

pub(crate) async fn blocked_key_is_not_degraded(subject: Subject) {
    let policy = Policy::sliding_window("w").limit(1).window("1m");
    let policy = policy
        .penalty("2 in 1m: 5m")
        .on_denial(OnDenial::Degrade)
        .deadline(PATIENT)
        .build()
        .unwrap();
    assert!(!subject.limits.admit(&policy, KEY).await.unwrap().is_degraded());
    assert!(subject.limits.admit(&policy, KEY).await.unwrap().is_degraded());
    let blocked = subject.limits.admit(&policy, KEY).await;
    assert!(
        matches!(&blocked, Err(Rejection::Limited(denied)) if denied.is_blocked()),
        "{blocked:?}"
    );
}

/// If the clock steps back during a block, the block lasts for its remaining time, and at most for
/// a whole block.
pub(crate) async fn clock_step_back_extends_no_block(subject: Subject) {
    let policy = policy("p");
    assert!(until_blocked(&subject, &policy).await.is_blocked());
    subject.clock.step_back(secs(3_600));
    let denied = subject.call(&policy).await;
    assert!(denied.is_blocked() && wait_of(&denied) <= secs(60));
    subject.clock.advance(secs(60));
    assert!(subject.call(&policy).await.is_allowed());
}

pub(crate) async fn block_is_stored_beside_limit_and_expires(subject: Subject) {
    let policy = policy("p");
    let key = limiter_core::Key::from("k").in_group("tenant");
    for _ in 0..4 {
        let _ = subject.limits.check(&policy, &key).await.unwrap();
    }
    assert!(
        subject
            .limits
            .blocked_until(&policy, &key)
            .await
            .unwrap()
            .is_some()
    );
    let mut names = subject.redis_keys();
    names.sort();
    let expected = ["fn|p|blocked|{tenant}|k", "tb|p|{tenant}|k"];
    for (name, expected) in names.iter().zip(expected) {
        assert!(name.ends_with(expected), "{names:?}");
        let life = subject.command(name, &["PTTL", name]).integer();
        assert!(life > 0, "{name}: {life}");
    }
    assert!(names.is_empty() || names.len() == 2, "{names:?}");
}

pub(crate) async fn penalty_with_token_lease_is_rejected(_: Subject) {
    let policy = Policy::token_bucket("p").capacity(1).rate(1).lease("1s");
    let error = policy.penalty("1 in 1m: 1m").build().unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("penalty is `given`, expected none together with a lease"),
        "{text}"
    );
}
