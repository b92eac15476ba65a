//! Handling of denied calls.

use limiter_core::{Enforcement, LimitRequest, OnDenial, Policy, Rejection};

use crate::support::{KEY, PATIENT, Subject, millis, secs};

fn policy(name: &str, answer: OnDenial) -> Policy {
    let policy = Policy::token_bucket(name).capacity(1).rate("10/s");
    policy.on_denial(answer).deadline(PATIENT).build().unwrap()
}

pub(crate) async fn default_denial_handling_rejects(subject: Subject) {
    let policy = policy("p", OnDenial::default());
    assert!(subject.limits.admit(&policy, KEY).await.is_ok());
    let rejected = subject.limits.admit(&policy, KEY).await;
    let Err(rejection @ Rejection::Limited(_)) = rejected else {
        unreachable!("{rejected:?}")
    };
    assert_eq!(rejection.retry_after(), Some(millis(100)));
    let dear = subject.limits.admit(&policy, KEY).cost(2).await;
    assert!(matches!(dear, Err(Rejection::NeverFits { .. })));
}

pub(crate) async fn denied_call_waits_for_policy_timeout(subject: Subject) {
    let policy = policy("p", OnDenial::Wait(millis(150)));
    assert!(subject.limits.admit(&policy, KEY).await.is_ok());
    let mut waiting = subject.limits.admit(&policy, KEY).into_future();
    let at_once = tokio::time::timeout(millis(500), &mut waiting).await;
    assert!(at_once.is_err(), "{at_once:?}");
    // The second in the queue would wait for 200 ms.
    let late = subject.limits.admit(&policy, KEY).into_future();
    let (first, late, ()) = tokio::join!(waiting, late, async {
        subject.clock.advance(millis(100));
        tokio::task::yield_now().await;
        subject.clock.advance(millis(50));
    });
    assert!(first.is_ok(), "{first:?}");
    assert!(matches!(late, Err(Rejection::TimedOut { .. })), "{late:?}");
}

pub(crate) async fn degraded_call_continues_without_charge(subject: Subject) {
    let policy = policy("p", OnDenial::Degrade);
    assert!(!subject.limits.admit(&policy, KEY).await.unwrap().is_degraded());
    for _ in 0..3 {
        let allowed = subject.limits.admit(&policy, KEY).await.unwrap();
        assert!(allowed.is_degraded() && allowed.is_allowed());
        assert_eq!(allowed.retry_after(), None);
        assert_eq!(allowed.limits()[0].retry_after(), millis(100));
    }
    subject.clock.advance(millis(100));
    assert!(!subject.limits.admit(&policy, KEY).await.unwrap().is_degraded());
    // A plain check returns the denial.
    assert!(!subject.call(&policy).await.is_allowed());
}

pub(crate) async fn strictest_policy_determines_denial_handling(subject: Subject) {
    let [degrade, wait, reject] = [
        policy("degrade", OnDenial::Degrade),
        policy("wait", OnDenial::Wait(secs(1))),
        policy("reject", OnDenial::Reject),
    ];
    for one in [&degrade, &wait, &reject] {
        subject.use_up(one).await;
    }
    let all = [&degrade, &wait, &reject].map(|policy| LimitRequest::new(policy, KEY));
    let rejected = subject.limits.admit_all(all.clone()).await;
    assert!(matches!(rejected, Err(Rejection::Limited(_))), "{rejected:?}");
    let two = subject.limits.admit_all(all[..2].to_vec()).into_future();
    let (waited, ()) = tokio::join!(two, async {
        for _ in 0..10 {
            tokio::task::yield_now().await;
            subject.clock.advance(millis(20));
        }
    });
    assert!(!waited.unwrap().is_degraded());
    let _ = subject.call(&degrade).await;
    assert!(
        subject
            .limits
            .admit_all(all[..1].to_vec())
            .await
            .unwrap()
            .is_degraded()
    );
}

pub(crate) async fn shadow_mode_neither_degrades_nor_waits(subject: Subject) {
    subject.limits.set_enforcement(Enforcement::Shadow);
    for answer in [OnDenial::Reject, OnDenial::Wait(secs(60)), OnDenial::Degrade] {
        let policy = policy(&answer.to_string(), answer);
        for call in 0..2 {
            let allowed = subject.limits.admit(&policy, KEY).await.unwrap();
            assert_eq!((allowed.would_deny(), allowed.is_degraded()), (call > 0, false));
        }
    }
}
