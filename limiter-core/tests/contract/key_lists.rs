//! Keys that are allowed or denied without a decision.

use std::net::IpAddr;

use limiter_core::{Enforcement, Key, LimitRequest, OnDenial, Origin, Policy, Rejection};

use crate::support::{KEY, PATIENT, Subject, bucket, secs};

fn listed() -> Policy {
    Policy::token_bucket("listed")
        .capacity(1)
        .rate("1/min")
        .allow_keys(["10.0.0.0/8", "2001:db8::/32", "probe:*", "bob"])
        .deny_keys(["10.6.0.0/16", "probe:evil", "eve"])
        .on_denial(OnDenial::Degrade)
        .deadline(PATIENT)
        .build()
        .unwrap()
}

pub(crate) async fn allow_listed_key_is_allowed_without_charge(subject: Subject) {
    let policy = listed();
    let address: IpAddr = "2001:db8::7".parse().unwrap();
    let part = Key::global().part(address);
    for key in [
        Key::from("10.1.2.3"),
        address.into(),
        part,
        "probe:7".into(),
        "bob".into(),
    ] {
        for _ in 0..3 {
            let decision = subject.limits.check(&policy, &key).cost(5).await.unwrap();
            assert!(decision.is_allowed() && decision.limits().is_empty(), "{key:?}");
            assert_eq!(decision.origin(), Origin::KeyList);
            assert!(subject.limits.acquire(&policy, &key).await.is_ok());
            assert!(!subject.limits.admit(&policy, &key).await.unwrap().is_degraded());
        }
    }
    assert_eq!(subject.redis_keys(), Vec::<String>::new());
    assert_eq!(subject.calls(&policy, 2).await, "PD", "other keys are limited");
}

pub(crate) async fn deny_list_takes_precedence_over_allow_list(subject: Subject) {
    let policy = listed();
    for key in ["10.6.1.1", "::ffff:10.6.1.1", "probe:evil", "eve"] {
        let decision = subject.limits.check(&policy, key).await.unwrap();
        assert_eq!(
            (decision.is_allowed(), decision.origin()),
            (false, Origin::KeyList)
        );
        assert_eq!(decision.retry_after(), None, "a retry never succeeds");
        assert_eq!(decision.denied_by().unwrap().policy(), &policy);
        let acquired = subject.limits.acquire(&policy, key).await;
        let admitted = subject.limits.admit(&policy, key).await;
        for answer in [decision.require(), acquired, admitted] {
            let Err(rejection @ Rejection::Forbidden { .. }) = answer else {
                unreachable!("{answer:?}")
            };
            assert_eq!((rejection.http_status(), rejection.grpc_code()), (403, 7));
            assert_eq!(
                rejection.diagnostic().to_string(),
                "policy `listed` denies the key"
            );
            assert_eq!(rejection.to_string(), "the request is not permitted");
            assert_eq!(rejection.retry_after(), None);
        }
    }
    assert_eq!(subject.redis_keys(), Vec::<String>::new());
}

/// A limit whose allow list contains the key is not part of the decision; a deny list denies the
/// call.
pub(crate) async fn key_list_applies_to_its_own_limit(subject: Subject) {
    let (listed, plain) = (listed(), bucket("plain", 2, "1/min"));
    let requests = |key| [LimitRequest::new(&listed, key), LimitRequest::new(&plain, key)];
    for _ in 0..2 {
        let decision = subject.limits.check_all(requests("bob")).await.unwrap();
        assert!(decision.is_allowed());
        let [limit] = decision.limits() else {
            unreachable!("{decision:?}")
        };
        assert_eq!(limit.policy(), &plain);
    }
    let denied = subject.limits.check_all(requests("bob")).await.unwrap();
    assert_eq!(denied.denied_by().unwrap().policy(), &plain);
    let forbidden = subject.limits.check_all(requests("eve")).await.unwrap();
    assert!(matches!(forbidden.require(), Err(Rejection::Forbidden { .. })));
    assert_eq!(subject.limits.peek(&plain, "eve").await.unwrap().remaining(), 2);
}

/// A call without a charge is not refunded, because the refund would reduce the usage of others.
pub(crate) async fn refund_without_charge_changes_nothing(subject: Subject) {
    let (listed, plain) = (listed(), bucket("listed", 1, "1/min"));
    // Charged before the key was on the list.
    assert!(subject.limits.check(&plain, "bob").await.unwrap().is_allowed());
    subject.limits.refund(&listed, "bob").await.unwrap();
    assert!(!subject.limits.check(&plain, "bob").await.unwrap().is_allowed());
    subject.limits.set_enforcement(Enforcement::Off);
    subject.limits.refund(&plain, "bob").await.unwrap();
    subject.limits.set_enforcement(Enforcement::Enforce);
    assert!(!subject.limits.check(&plain, "bob").await.unwrap().is_allowed());
    subject.limits.refund(&plain, "bob").await.unwrap();
    assert!(subject.limits.check(&plain, "bob").await.unwrap().is_allowed());
}

pub(crate) async fn key_lists_follow_enforcement_mode(subject: Subject) {
    let policy = listed();
    subject.limits.set_enforcement(Enforcement::Shadow);
    let result = subject.limits.check(&policy, "eve").await.unwrap();
    assert!(result.is_allowed() && result.would_deny());
    assert!(!subject.limits.check(&policy, "bob").await.unwrap().would_deny());
    subject.limits.set_enforcement(Enforcement::Off);
    let result = subject.limits.check(&policy, "eve").await.unwrap();
    assert!(result.is_allowed() && !result.would_deny());
    subject.limits.set_enforcement(Enforcement::Enforce);
    subject.limits.shutdown(secs(1)).await;
    let closed = subject.limits.check(&policy, "bob").await;
    assert!(matches!(closed, Err(Rejection::Unavailable { .. })), "{closed:?}");
}

pub(crate) async fn error_of_invalid_key_list_names_its_entry(_: Subject) {
    let build = |entry: &str| {
        let policy = Policy::token_bucket(KEY).capacity(1).rate(1);
        policy.deny_keys(["fine", entry]).build().unwrap_err().to_string()
    };
    for entry in ["", "a*b", "10.0.0.0/33", "10.0.0.1/8"] {
        let error = build(entry);
        assert!(
            error.contains(&format!("entry of a key list is `{entry}`")),
            "{error}"
        );
    }
}

pub(crate) async fn colon_in_name_does_not_escape_list(subject: Subject) {
    let of = |policy: Policy| {
        let (limits, policy) = (subject.limits.clone(), policy);
        async move |value: &str| {
            let key = Key::from("user:").part(value);
            let decision = limits.check(&policy, &key).await.unwrap();
            (decision.is_allowed(), decision.origin() == Origin::KeyList)
        }
    };
    let policy = |name: &str| Policy::token_bucket(name).capacity(9).rate(1).deadline(PATIENT);
    let entries = ["user:2001:db8::1", "user:urn:*"];
    let denied = of(policy("denied").deny_keys(entries).build().unwrap());
    assert_eq!(denied("2001:db8::1").await, (false, true));
    assert_eq!(denied("urn:bad").await, (false, true));
    assert_eq!(denied("2001:db8::2").await, (true, false));
    let allowed = of(policy("allowed").allow_keys(entries).build().unwrap());
    assert_eq!(allowed("2001:db8::1").await, (true, true));
    assert_eq!(
        allowed("urn:good").await,
        (true, false),
        "a user name cannot match an entry of a list"
    );

    let held = Policy::concurrency("held")
        .max(1)
        .deadline(PATIENT)
        .deny_keys(entries);
    let held = held.build().unwrap();
    let entered = subject
        .limits
        .acquire_concurrency(&held, Key::from("user:").part("urn:bad"))
        .await;
    assert!(matches!(entered, Err(Rejection::Forbidden { .. })), "{entered:?}");
}

/// The extractors of limiter-tower form such keys: a client of IPv6 can choose the last 64 bits of
/// its address.
pub(crate) async fn network_key_matches_each_entry_that_contains_it(subject: Subject) {
    let policy = Policy::token_bucket("networks")
        .capacity(1)
        .rate("1/min")
        .allow_keys(["2001:db8::/32", "198.51.100.0/24"])
        .deny_keys(["2001:db8:bad::/48", "192.0.2.0/24", "2001:db9::/64"])
        .deadline(PATIENT)
        .build()
        .unwrap();
    for key in [
        "2001:db8:bad:7::/64",
        "2001:db8:bad::/48",
        "192.0.2.0/24",
        "192.0.2.128/25",
        "2001:db9::/64",
    ] {
        let denied = subject.limits.check(&policy, key).await.unwrap();
        assert!(
            !denied.is_allowed() && denied.origin() == Origin::KeyList,
            "{key}: {denied:?}"
        );
    }
    for key in ["2001:db8:7::/64", "198.51.100.0/24"] {
        let allowed = subject.limits.check(&policy, key).cost(5).await.unwrap();
        assert!(
            allowed.is_allowed() && allowed.origin() == Origin::KeyList,
            "{key}: {allowed:?}"
        );
    }
    for key in ["2001:db8::/31", "192.0.2.0/23", "2001:db9::/63"] {
        let limited = subject.limits.check(&policy, key).await.unwrap();
        assert_ne!(limited.origin(), Origin::KeyList, "{key}");
    }
}
