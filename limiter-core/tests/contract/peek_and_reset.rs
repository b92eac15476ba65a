//! Peeks and resets.

use limiter_core::LimitRequest;

use crate::support::{KEY, Kind, Subject, micros, one_of_each, only, secs};

pub(crate) async fn peek_changes_nothing(subject: Subject) {
    for policy in one_of_each() {
        assert!(subject.call_of(&policy, 3).await.is_allowed());
        let first = subject.peek(&policy).await;
        for cost in [1, 2, 3, 5, 0] {
            for _ in 0..3 {
                let peeked = subject.limits.peek(&policy, KEY).cost(cost).await.unwrap();
                assert_eq!(peeked.is_allowed(), cost <= 2, "{policy}, cost {cost}");
                assert_eq!(peeked.remaining(), 2, "{policy}, cost {cost}");
                assert_eq!(peeked.reset_after(), first.reset_after(), "{policy}, cost {cost}");
                assert_eq!(
                    only(&peeked).expires_after(),
                    only(&first).expires_after(),
                    "{policy}"
                );
            }
        }
        assert_eq!(subject.calls(&policy, 3).await, "PPD", "{policy}");
    }
}

/// A peek returns the decision of a check with the same cost, including its wait.
pub(crate) async fn peek_equals_check(subject: Subject) {
    for policy in one_of_each() {
        for cost in [1, 3, 2, 1, 5, 4] {
            let peeked = subject.limits.peek(&policy, KEY).cost(cost).await.unwrap();
            let checked = subject.call_of(&policy, cost).await;
            assert_eq!(peeked.is_allowed(), checked.is_allowed(), "{policy}, cost {cost}");
            assert_eq!(
                peeked.retry_after(),
                checked.retry_after(),
                "{policy}, cost {cost}"
            );
            subject.clock.advance(micros(400_001));
        }
    }
}

pub(crate) async fn peek_of_unknown_key_stores_nothing(subject: Subject) {
    for policy in one_of_each() {
        let peeked = subject.limits.peek(&policy, KEY).cost(2).await.unwrap();
        assert!(peeked.is_allowed(), "{policy}");
        assert_eq!(only(&peeked).remaining(), policy.quota(), "{policy}");
        assert!(peeked.reset_after().is_zero(), "{policy}");
        assert!(only(&peeked).expires_after().is_zero(), "{policy}");
        assert_eq!(subject.redis_keys(), Vec::<String>::new(), "{policy}");
    }
}

pub(crate) async fn reset_removes_all_state(subject: Subject) {
    for policy in one_of_each() {
        subject.use_up(&policy).await;
        subject.limits.reset(&policy, KEY).await.unwrap();
        assert_eq!(subject.redis_keys(), Vec::<String>::new(), "{policy}");
        let fresh = subject.peek(&policy).await;
        assert!(
            fresh.reset_after().is_zero() && only(&fresh).expires_after().is_zero(),
            "{policy}"
        );
        assert_eq!(subject.calls(&policy, 6).await, "PPPPPD", "{policy}");
        subject.limits.reset(&policy, KEY).await.unwrap();
    }
}

pub(crate) async fn reset_affects_no_other_limit(subject: Subject) {
    let policies = one_of_each();
    for policy in &policies {
        subject.use_up(policy).await;
        let other = subject.limits.check(policy, "other").cost(5).await.unwrap();
        assert!(other.is_allowed(), "{policy}");
    }
    subject.limits.reset(&policies[0], KEY).await.unwrap();
    assert_eq!(subject.remaining(&policies[0]).await, policies[0].quota());
    for policy in &policies {
        assert!(
            !subject.limits.check(policy, "other").await.unwrap().is_allowed(),
            "{policy}"
        );
    }
    for policy in &policies[1..] {
        assert!(!subject.call(policy).await.is_allowed(), "{policy}");
    }
}

pub(crate) async fn reset_of_unknown_key_succeeds(subject: Subject) {
    for policy in one_of_each() {
        subject.limits.reset(&policy, "unused").await.unwrap();
        assert_eq!(subject.calls(&policy, 6).await, "PPPPPD", "{policy}");
    }
}

/// A state that equals absence is reported as absent, and every other state is kept.
pub(crate) async fn state_is_kept_while_relevant(subject: Subject) {
    for policy in one_of_each() {
        assert!(subject.call_of(&policy, 2).await.is_allowed());
        let kept = only(&subject.peek(&policy).await).expires_after();
        assert_eq!(
            kept,
            if policy.name() == "window" {
                secs(5)
            } else {
                secs(2)
            },
            "{policy}"
        );
        subject.clock.advance(kept - micros(1));
        assert_eq!(
            only(&subject.peek(&policy).await).expires_after(),
            micros(1),
            "{policy}"
        );
        subject.clock.advance(micros(1));
        assert!(
            only(&subject.peek(&policy).await).expires_after().is_zero(),
            "{policy}"
        );
    }
}

pub(crate) async fn several_limits_can_be_peeked_together(subject: Subject) {
    let policies = one_of_each();
    let requests = || {
        policies
            .iter()
            .map(|policy| LimitRequest::new(policy, KEY).cost(0))
    };
    let decision = subject.limits.check_all(requests()).await.unwrap();
    assert!(decision.is_allowed());
    assert_eq!(decision.remaining(), 5);
    if subject.kind != Kind::Memory {
        assert_eq!(subject.redis_keys(), Vec::<String>::new());
    }
}
