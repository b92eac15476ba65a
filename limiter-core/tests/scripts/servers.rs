//! Names, sharing, and servers that lose scripts, stall or are gone.

use limiter_core::{Key, LimitRequest, Limiter, OnStoreFailure, Policy, Rejection, StoreErrorKind};
use limiter_testing::RedisServer;

use crate::support::{KEY, PATIENT, bucket, funnel, millis, namespace, secs, window};
use crate::{kind_of, limiter, names};

#[tokio::test]
async fn names_contain_namespace_algorithm_policy_and_tag() {
    let server = RedisServer::start();
    let limits = limiter(&server, "prod:checkout");
    let grouped = Policy::token_bucket("grouped")
        .capacity(5)
        .rate(1)
        .group("g")
        .on_store_failure(OnStoreFailure::Error)
        .deadline(PATIENT);
    let grouped = grouped.build().unwrap();
    for (policy, key, expected) in [
        (
            bucket("search", 5, 1),
            Key::from("user:7"),
            "prod:checkout|tb|search|{user:7}",
        ),
        (
            funnel("upload", 5, 1),
            Key::from("user:7"),
            "prod:checkout|fn|upload|{user:7}",
        ),
        (
            window("send", 5, "1m"),
            Key::global(),
            "prod:checkout|sw|send|{%}",
        ),
        (
            window("send", 5, "1m"),
            Key::from("user:7").in_group("tenant:3"),
            "prod:checkout|sw|send|{tenant:3}|user:7",
        ),
        (
            grouped,
            Key::from("user:7"),
            "prod:checkout|tb|grouped|{g}|user:7",
        ),
        (
            bucket("a|b", 5, 1),
            Key::from("x{y}"),
            "prod:checkout|tb|a%7Cb|{x%7By%7D}",
        ),
    ] {
        assert!(limits.check(&policy, &key).await.unwrap().is_allowed());
        assert_eq!(names(&server, ""), [expected]);
        limits.reset(&policy, &key).await.unwrap();
    }
    let prefixed = Limiter::redis(server.url())
        .prefix("app7:")
        .namespace("prod")
        .build()
        .unwrap();
    assert!(
        prefixed
            .check(&bucket("search", 5, 1), "ann")
            .await
            .unwrap()
            .is_allowed()
    );
    assert_eq!(names(&server, ""), ["app7:prod|tb|search|{ann}"]);
}

#[tokio::test]
async fn limiters_of_one_namespace_share_and_others_do_not() {
    let server = RedisServer::shared();
    for policy in [bucket("p", 3, "1/h"), funnel("p", 3, "1/h"), window("p", 3, "1h")] {
        let namespace = namespace();
        let (one, two) = (limiter(server, &namespace), limiter(server, &namespace));
        let other = limiter(server, &(namespace.clone() + ":other"));
        let prefixed = Limiter::redis(server.url())
            .prefix("x:")
            .namespace(&namespace)
            .build()
            .unwrap();
        for (limits, left) in [(&one, 2), (&two, 1), (&one, 0)] {
            assert_eq!(
                limits.check(&policy, KEY).await.unwrap().remaining(),
                left,
                "{policy}"
            );
        }
        assert!(!two.check(&policy, KEY).await.unwrap().is_allowed(), "{policy}");
        for limits in [&other, &prefixed] {
            assert_eq!(
                limits.check(&policy, KEY).await.unwrap().remaining(),
                2,
                "{policy}"
            );
        }
        for unlike in [
            bucket("p2", 3, "1/h"),
            funnel("p2", 3, "1/h"),
            window("p2", 3, "1h"),
        ] {
            assert_eq!(
                one.check(&unlike, policy.name()).await.unwrap().remaining(),
                2,
                "{unlike}"
            );
            one.reset(&unlike, policy.name()).await.unwrap();
        }
        two.reset(&policy, KEY).await.unwrap();
        assert_eq!(one.check(&policy, KEY).await.unwrap().remaining(), 2, "{policy}");
    }
}

/// A restart, a failover, an administrator: the server loses the script, and callers do not notice.
#[tokio::test]
async fn server_without_script_charges_once() {
    let server = RedisServer::start();
    let limits = limiter(&server, "ns");
    limits.ready().await.unwrap();
    for policy in [bucket("p", 5, "1/h"), funnel("p", 5, "1/h"), window("p", 5, "1h")] {
        for left in [4, 3, 2, 1, 0] {
            server.command(&["SCRIPT", "FLUSH"]);
            let decision = limits.check(&policy, KEY).await.unwrap();
            assert_eq!(
                (decision.is_allowed(), decision.remaining()),
                (true, left),
                "{policy}"
            );
        }
        server.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(limits.peek(&policy, KEY).await.unwrap().remaining(), 0);
        server.command(&["SCRIPT", "FLUSH"]);
        limits.reset(&policy, KEY).await.unwrap();
    }
}

/// The timeout ends while a request to the server is in flight: the call has timed out, and the
/// failure mode of the policy does not apply.
#[tokio::test]
async fn wait_ending_during_query_is_timed_out() {
    let server = RedisServer::start();
    let limits = limiter(&server, "ns");
    limits.ready().await.unwrap();
    server.pause();
    for answer in [
        OnStoreFailure::FailOpen,
        OnStoreFailure::FailClosed,
        OnStoreFailure::Error,
    ] {
        let policy = Policy::token_bucket("p")
            .capacity(5)
            .rate(1)
            .deadline(PATIENT)
            .on_store_failure(answer);
        let policy = policy.build().unwrap();
        let waited = limits.acquire(&policy, KEY).timeout(millis(20)).await;
        assert!(
            matches!(waited, Err(Rejection::TimedOut { .. })),
            "{answer:?}: {waited:?}"
        );
    }
}

/// Invalid calls are rejected without a server.
#[tokio::test]
async fn impossible_cost_is_rejected_without_server() {
    let server = RedisServer::start();
    let limits = limiter(&server, "ns");
    server.kill();
    for policy in [bucket("p", 5, 1), funnel("p", 5, 1), window("p", 5, "1m")] {
        let never = limits.check(&policy, KEY).cost(u64::MAX).await;
        assert!(matches!(never, Err(Rejection::NeverFits { .. })), "{never:?}");
        let never = limits.acquire(&policy, KEY).cost(6).await;
        assert!(matches!(never, Err(Rejection::NeverFits { .. })), "{never:?}");
        let refused = limits.check(&policy, KEY).cost(-1).await;
        assert!(matches!(refused, Err(Rejection::Config(_))), "{refused:?}");
        let refused = limits
            .check_all([LimitRequest::new(&policy, "a"), LimitRequest::new(&policy, "b")])
            .await;
        assert!(matches!(refused, Err(Rejection::Config(_))), "{refused:?}");
        let gone = tokio::time::timeout(secs(60), limits.check(&policy, KEY))
            .await
            .unwrap();
        assert_eq!(kind_of(gone), StoreErrorKind::Connection);
    }
}
