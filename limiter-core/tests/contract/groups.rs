//! The limits of one decision share a group, so that a cluster can decide them in one slot.

use limiter_core::{ConfigError, Key, LimitRequest, Policy};

use crate::several_limits::config_error;
use crate::support::{KEY, PATIENT, Subject, bucket, one_of_each, secs, wait_of, window};

pub(crate) async fn different_groups_are_rejected(subject: Subject) {
    let [bucket, _, window] = one_of_each();
    let different = [
        (Key::from("ann"), Key::from("bob")),
        (Key::from("ann").in_group("a"), Key::from("ann").in_group("b")),
        (Key::from("ann").in_group("a"), Key::from("ann")),
    ];
    for (first, other) in different {
        let requests = [
            LimitRequest::new(&bucket, &first),
            LimitRequest::new(&window, &other),
        ];
        let error = config_error(subject.limits.check_all(requests.clone()).await);
        assert!(matches!(error, ConfigError::DifferentGroups { .. }), "{error}");
        let error = config_error(subject.limits.acquire_all(requests).await);
        assert!(matches!(error, ConfigError::DifferentGroups { .. }), "{error}");
    }
    let grouped = Policy::token_bucket("grouped")
        .capacity(5)
        .rate(1)
        .group("g")
        .build()
        .unwrap();
    let error = config_error(
        subject
            .limits
            .check_all([
                LimitRequest::new(&grouped, "ann"),
                LimitRequest::new(&window, "ann"),
            ])
            .await,
    );
    let (first, other) = ("grouped".to_owned(), "window".to_owned());
    assert_eq!(error, ConfigError::DifferentGroups { first, other });
    let result = error.to_string();
    assert!(
        result.contains("`grouped` and `window`"),
        "the policies are named: {result}"
    );
    assert!(!result.contains("ann"), "and no key: {result}");
}

/// A user's and a tenant's limit in the tenant's group share a slot of the cluster.
pub(crate) async fn common_group_of_keys_allows_different_keys(subject: Subject) {
    let per_user = bucket("user", 2, 1);
    let per_tenant = window("tenant", 3, "1m");
    for tenant in ["tenant:1", "tenant:2", "tenant:3", "tenant:4"] {
        let mut letters = String::new();
        for user in ["ann", "ann", "ann", "bob", "bob"] {
            let requests = [
                LimitRequest::new(&per_user, Key::from(user).in_group(tenant)),
                LimitRequest::new(&per_tenant, tenant),
            ];
            let decision = subject.limits.check_all(requests).await.unwrap();
            letters += decision.denied_by().map_or("pass", |limit| limit.policy().name());
            letters += " ";
        }
        assert_eq!(letters, "pass pass user pass tenant ", "{tenant}");
    }
}

pub(crate) async fn common_group_of_policies_allows_different_keys(subject: Subject) {
    let in_group = |name| {
        Policy::token_bucket(name)
            .capacity(2)
            .rate(1)
            .group("all")
            .deadline(PATIENT)
    };
    let per_user = in_group("user").build().unwrap();
    let global = in_group("global").capacity(3).build().unwrap();
    for (user, expected) in [
        ("ann", true),
        ("ann", true),
        ("ann", false),
        ("bob", true),
        ("bob", false),
    ] {
        let requests = [
            LimitRequest::new(&per_user, user),
            LimitRequest::new(&global, Key::global()),
        ];
        assert_eq!(
            subject.limits.check_all(requests).await.unwrap().is_allowed(),
            expected,
            "{user}"
        );
    }
}

/// The group is part of the identity: usage in one group does not count in another.
pub(crate) async fn group_is_part_of_key_identity(subject: Subject) {
    for policy in one_of_each() {
        for key in [
            Key::from(KEY),
            Key::from(KEY).in_group("a"),
            Key::from(KEY).in_group("b"),
        ] {
            let decision = subject.limits.check(&policy, key).cost(5).await.unwrap();
            assert!(decision.is_allowed(), "{policy}");
        }
        let same = subject
            .limits
            .check(&policy, Key::from(KEY).in_group("a"))
            .await
            .unwrap();
        assert_eq!(
            wait_of(&same),
            if policy.name() == "window" {
                secs(5)
            } else {
                secs(1)
            }
        );
    }
}

/// Two limits of one policy on two keys are two limits.
pub(crate) async fn one_policy_may_limit_two_keys(subject: Subject) {
    for policy in one_of_each() {
        let requests = || ["a", "b"].map(|key| LimitRequest::new(&policy, Key::from(key).in_group("g")));
        let both = subject.limits.check_all(requests()).cost(5).await.unwrap();
        assert!(both.is_allowed(), "{policy}");
        assert!(
            !subject.limits.check_all(requests()).await.unwrap().is_allowed(),
            "{policy}"
        );
    }
}
