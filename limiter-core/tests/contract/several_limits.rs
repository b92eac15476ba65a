//! Several limits in one decision.

use limiter_core::{ConfigError, LimitRequest, Policy, Rejection};

use crate::support::{KEY, Kind, Subject, bucket, funnel, one_of_each, secs, window};

fn requests_for(policies: &[Policy]) -> Vec<LimitRequest<'_>> {
    policies
        .iter()
        .map(|policy| LimitRequest::new(policy, KEY))
        .collect()
}

pub(crate) fn config_error<T: std::fmt::Debug>(answer: Result<T, Rejection>) -> ConfigError {
    match answer {
        Err(Rejection::Config(error)) => error,
        other => unreachable!("expected a configuration error: {other:?}"),
    }
}

pub(crate) async fn several_limits_are_charged_atomically(subject: Subject) {
    let policies = one_of_each();
    for tight in 0..3 {
        // One of the three limits has one permit left, the others have five.
        assert!(subject.call_of(&policies[tight], 4).await.is_allowed());
        let both = subject.limits.check_all(requests_for(&policies)).await.unwrap();
        assert!(both.is_allowed());
        for _ in 0..4 {
            let denied = subject.limits.check_all(requests_for(&policies)).await.unwrap();
            assert_eq!(denied.denied_by().unwrap().policy(), &policies[tight]);
        }
        for (place, policy) in policies.iter().enumerate() {
            let left = subject.remaining(policy).await.whole();
            assert_eq!(left, if place == tight { 0 } else { 4 }, "{policy}");
        }
        subject.clock.advance(secs(5));
    }
}

/// Also without stored state: the denied first call leaves no trace in the limits that fit.
pub(crate) async fn denial_stores_no_state_for_unused_limits(subject: Subject) {
    for full in one_of_each() {
        subject.use_up(&full).await;
        let fresh = [
            bucket("fresh", 3, 1),
            funnel("fresh", 3, 1),
            window("fresh", 3, "3s"),
        ];
        let requests = fresh
            .iter()
            .chain([&full])
            .map(|policy| LimitRequest::new(policy, KEY));
        let denied = subject.limits.check_all(requests).await.unwrap();
        let fits: Vec<_> = denied.limits().iter().map(|limit| limit.is_allowed()).collect();
        assert_eq!(fits, [true, true, true, false]);
        for (policy, outcome) in fresh.iter().zip(denied.limits()) {
            assert_eq!(outcome.remaining(), policy.quota(), "{policy}");
            assert!(outcome.expires_after().is_zero(), "{policy}");
        }
        let names = subject.redis_keys();
        assert!(names.iter().all(|name| !name.contains("fresh")), "{names:?}");
        assert!(!denied.is_allowed());
        subject.limits.reset(&full, KEY).await.unwrap();
    }
}

pub(crate) async fn each_limit_has_its_own_outcome_in_request_order(subject: Subject) {
    let [first, second, third] = [bucket("z", 5, 1), window("a", 7, "1m"), funnel("m", 9, 1)];
    let requests = [
        LimitRequest::new(&first, KEY).cost(2),
        LimitRequest::new(&second, KEY).cost(3),
        LimitRequest::new(&third, KEY).cost(4),
    ];
    let decision = subject.limits.check_all(requests).await.unwrap();
    let outcomes: Vec<_> = decision
        .limits()
        .iter()
        .map(|limit| {
            (
                limit.policy().name(),
                limit.remaining().whole(),
                limit.reset_after(),
            )
        })
        .collect();
    assert_eq!(
        outcomes,
        [("z", 3, secs(2)), ("a", 4, secs(60)), ("m", 5, secs(4))]
    );
    assert_eq!(decision.remaining(), 3, "the smallest remaining amount");

    let reversed = [
        LimitRequest::new(&third, KEY).cost(6),
        LimitRequest::new(&second, KEY),
        LimitRequest::new(&first, KEY).cost(4),
    ];
    let denied = subject.limits.check_all(reversed).await.unwrap();
    let fits: Vec<_> = denied.limits().iter().map(|limit| limit.is_allowed()).collect();
    assert_eq!(fits, [false, true, false]);
    assert_eq!(
        denied.denied_by().unwrap().policy().name(),
        "m",
        "the first denying limit"
    );
    assert_eq!(
        denied.limits()[1].remaining().whole(),
        4,
        "the denied decision charges nothing"
    );
}

pub(crate) async fn one_cost_can_be_given_for_all(subject: Subject) {
    let policies = one_of_each();
    let decision = subject
        .limits
        .check_all(requests_for(&policies))
        .cost(3)
        .await
        .unwrap();
    let left: Vec<_> = decision
        .limits()
        .iter()
        .map(|limit| limit.remaining().whole())
        .collect();
    assert_eq!(left, [2, 2, 2]);
}

/// A cost of zero peeks at its limit.
pub(crate) async fn zero_cost_among_several_charges_other_limits(subject: Subject) {
    let [bucket, funnel, window] = one_of_each();
    subject.use_up(&window).await;
    let requests = || {
        [
            LimitRequest::new(&window, KEY).cost(0),
            LimitRequest::new(&bucket, KEY),
            LimitRequest::new(&funnel, KEY),
        ]
    };
    let decision = subject.limits.check_all(requests()).await.unwrap();
    assert!(decision.is_allowed());
    let left: Vec<_> = decision
        .limits()
        .iter()
        .map(|limit| limit.remaining().whole())
        .collect();
    assert_eq!(left, [0, 4, 4]);
}

pub(crate) async fn repeated_limit_is_rejected(subject: Subject) {
    for policy in one_of_each() {
        let requests = [
            LimitRequest::new(&policy, KEY),
            LimitRequest::new(&policy, KEY).cost(2),
        ];
        let error = config_error(subject.limits.check_all(requests).await);
        let policy = policy.name().to_owned();
        assert_eq!(error, ConfigError::RepeatedLimit { policy });
    }
    let (old, new) = (bucket("p", 5, 1), bucket("p", 6, 1));
    let error = config_error(
        subject
            .limits
            .check_all([LimitRequest::new(&old, KEY), LimitRequest::new(&new, KEY)])
            .await,
    );
    assert!(
        matches!(error, ConfigError::RepeatedLimit { .. }),
        "two versions of one limit: {error}"
    );
}

pub(crate) async fn sixteen_limits_are_decided_and_seventeen_or_zero_rejected(subject: Subject) {
    let policies: Vec<_> = (0..17)
        .map(|number| bucket(&format!("p{number}"), 5, 1))
        .collect();
    let requests = requests_for(&policies);
    let decision = subject.limits.check_all(requests[..16].to_vec()).await.unwrap();
    assert_eq!((decision.is_allowed(), decision.limits().len()), (true, 16));
    for requests in [requests, Vec::new()] {
        let error = config_error(subject.limits.check_all(requests).await);
        assert!(error.to_string().contains("1 to 16"), "{error}");
    }
    for policy in &policies[..16] {
        assert_eq!(subject.remaining(policy).await.whole(), 4, "{policy}");
    }
    if subject.kind != Kind::Memory {
        assert_eq!(subject.redis_keys().len(), 16);
    }
}

/// The first two are equal, so a comparison before the count would report that.
pub(crate) async fn too_many_limits_are_rejected_before_they_are_compared(subject: Subject) {
    let policy = bucket("p", 5, 1);
    for number in [17, 100_000] {
        let repeated = vec![LimitRequest::new(&policy, KEY); number];
        for error in [
            config_error(subject.limits.check_all(repeated.iter().cloned()).await),
            config_error(subject.limits.acquire_all(repeated).await),
        ] {
            let ConfigError::Invalid { field, value, .. } = error else {
                unreachable!("expected the number of limits: {error}")
            };
            assert_eq!((field, value), ("number of limits", number.to_string()));
        }
    }
}
