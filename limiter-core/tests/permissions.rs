//! Permissions of the Redis user of a limiter: exactly those in the documentation of the
//! constructors.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod support;

use limiter_core::{Limiter, OnStoreFailure, Policy, Rejection, StoreErrorKind};
use limiter_testing::{RedisCluster, RedisServer, acl};
use support::{bucket, funnel, namespace, window};

/// Makes a user with these permissions on keys of the namespace `prod:checkout`, and a limiter that
/// logs in as it.
fn limiter(server: &RedisServer, permissions: &[&str]) -> Limiter {
    let mut user = vec![
        "ACL",
        "SETUSER",
        "checkout",
        "reset",
        "on",
        ">secret",
        "~prod:checkout|*",
    ];
    user.extend(permissions);
    server.command(&user);
    Limiter::redis(server.url_as("checkout:secret"))
        .namespace("prod:checkout")
        .build()
        .unwrap()
}

/// A small ring, one that is too large to be read whole, and one that has to grow and to live
/// longer.
fn policies() -> Vec<Policy> {
    vec![
        bucket("bucket", 100, 1),
        funnel("funnel", 100, 1),
        window("window", 100, "1m"),
        window("large", 2_000, "1m"),
        window("grows", 10, "1m"),
        window("grows", 300, "2m"),
    ]
}

/// Calls every command of the script; the first rejection ends it.
async fn execute_all_operations(limits: &Limiter) -> Result<(), Rejection> {
    for policy in policies() {
        assert!(limits.peek(&policy, "k").await?.is_allowed());
        assert!(limits.check(&policy, "k").await?.is_allowed());
        assert!(limits.check(&policy, "k").cost(5).await?.is_allowed());
        if policy.name() == "large" {
            assert!(limits.check(&policy, "k").cost(1_900).await?.is_allowed());
            assert!(!limits.check(&policy, "k").cost(1_900).await?.is_allowed());
        }
        if policy.name() == "grows" {
            while limits.check(&policy, "k").await?.is_allowed() {}
        }
    }
    // The first call is sent alone, the others in one batch.
    let policy = bucket("several", 100, 1);
    let several = ["k", "l", "m"].map(|key| limits.check(&policy, key).into_future());
    let [first, second, third] = several;
    let (first, second, third) = tokio::join!(first, second, third);
    for decision in [first, second, third] {
        assert!(decision?.is_allowed());
    }
    for policy in policies() {
        limits.reset(&policy, "k").await?;
    }
    Ok(())
}

#[test]
fn operations_page_lists_the_tested_permissions() {
    let page = include_str!("../../docs/operations.md");
    for (place, more) in [
        ("every server", &[] as &[&str]),
        ("every node of a cluster", acl::CLUSTER),
        ("every server behind Sentinel", acl::SENTINEL),
    ] {
        let (_, result) = page.split_once(&format!("\n# {place}")).unwrap();
        let line = result.lines().nth(1).unwrap();
        let result: Vec<&str> = line.split(' ').filter(|word| word.starts_with('+')).collect();
        assert_eq!(result, [acl::SCRIPT, more].concat(), "{place}");
    }
    assert!(page.contains(&acl::AT_SENTINELS.join(" ")));
    for more in [acl::CONCURRENCY, acl::REGISTRY, acl::USAGE] {
        assert!(
            page.contains(&format!("\nACL SETUSER limiter {}", more.join(" "))),
            "{more:?}"
        );
    }
}

#[tokio::test]
async fn other_database_needs_select_permission() {
    let server = RedisServer::start();
    drop(limiter(&server, &[acl::SCRIPT, &["+select"]].concat()));
    let limits = Limiter::redis(server.url_as("checkout:secret") + "3")
        .namespace("prod:checkout")
        .build()
        .unwrap();
    execute_all_operations(&limits).await.unwrap();
}

#[tokio::test]
async fn documented_permissions_suffice() {
    let server = RedisServer::start();
    let limits = limiter(&server, acl::SCRIPT);
    limits.ready().await.unwrap();
    execute_all_operations(&limits).await.unwrap();
    let log = server.command(&["ACL", "LOG"]);
    let refused = log.items().iter().map(|entry| match entry.items() {
        [_, _, _, _, _, _, object, name, ..] if object.text() == "object" => name.text(),
        other => panic!("{other:?}"),
    });
    assert_eq!(
        refused.collect::<Vec<_>>(),
        ["info"],
        "no other forbidden command is sent"
    );
}

#[tokio::test]
async fn each_documented_permission_is_needed() {
    let server = RedisServer::start();
    for missing in acl::SCRIPT {
        let others: Vec<&str> = acl::SCRIPT.iter().copied().filter(|one| one != missing).collect();
        let limits = limiter(&server, &others);
        server.command(&["FLUSHALL"]);
        // EVALSHA alone needs a loaded script.
        server.command(&["SCRIPT", "FLUSH"]);
        let Err(Rejection::Unavailable { error, .. }) = execute_all_operations(&limits).await else {
            panic!("{missing} is not needed");
        };
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{missing}");
        assert!(
            error.to_string().contains("lacks a permission"),
            "{missing}: {error:?}"
        );
    }
}

#[tokio::test]
async fn keys_of_other_namespaces_are_inaccessible() {
    let server = RedisServer::start();
    drop(limiter(&server, acl::SCRIPT));
    let limits = Limiter::redis(server.url_as("checkout:secret"))
        .namespace("prod:checkout2")
        .build()
        .unwrap();
    let Err(Rejection::Unavailable { error, .. }) = limits.check(&bucket("p", 5, 1), "k").await else {
        panic!("the user has no access to the key");
    };
    assert_eq!(limits.ready().await.unwrap_err().kind(), error.kind());
    let result = format!("{error}: {}", std::error::Error::source(&error).unwrap());
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    assert!(
        result.contains("lacks a permission") && result.contains("key"),
        "{result}"
    );
}

#[tokio::test]
async fn namespace_can_have_a_prefix() {
    let server = RedisServer::start();
    let mut user = vec!["ACL", "SETUSER", "team", "on", ">secret", "~team:*"];
    user.extend(acl::SCRIPT);
    server.command(&user);
    let limits = Limiter::redis(server.url_as("team:secret"))
        .prefix("team:")
        .namespace("prod")
        .build()
        .unwrap();
    execute_all_operations(&limits).await.unwrap();
}

#[tokio::test]
async fn ready_reports_undecidable_calls() {
    let server = RedisServer::start();
    let script = acl::SCRIPT;
    limiter(&server, script).ready().await.unwrap();
    for missing in script {
        server.command(&["FLUSHALL"]);
        server.command(&["SCRIPT", "FLUSH"]);
        let taken = missing.replace('+', "-");
        let permissions = [script, &[&taken]].concat();
        let Err(error) = limiter(&server, &permissions).ready().await else {
            panic!("`ready` succeeds without {missing}");
        };
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{missing}: {error}");
    }
    let elsewhere = [script, &["resetkeys", "~prod:other|*"]].concat();
    let error = limiter(&server, &elsewhere).ready().await.unwrap_err();
    assert!(error.to_string().contains("permission"), "{error}");
}

#[tokio::test]
async fn ready_reports_missing_permission_on_each_primary() {
    let cluster = RedisCluster::shared();
    let namespace = namespace();
    let keys = format!("~{namespace}|*");
    let user = [
        "ACL",
        "SETUSER",
        "partial",
        "reset",
        "on",
        ">secret",
        keys.as_str(),
    ];
    let user = [&user, acl::SCRIPT, acl::CLUSTER].concat();
    let urls = cluster.nodes().iter().map(|node| node.url_as("partial:secret"));
    let limits = Limiter::redis_cluster(urls)
        .namespace(&namespace)
        .build()
        .unwrap();
    cluster.servers().for_each(|server| drop(server.command(&user)));
    limits.ready().await.unwrap();
    for node in cluster.nodes() {
        node.command(&["ACL", "SETUSER", "partial", "-setrange"]);
        let error = limits.ready().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
        node.command(&["ACL", "SETUSER", "partial", "+setrange"]);
    }
    limits.ready().await.unwrap();
}

/// All replicas use the same keys at different stages of `ready`.
#[tokio::test]
async fn replicas_that_start_together_are_ready() {
    let server = RedisServer::start();
    let starting = (0..16).map(|number| {
        let limits = limiter(&server, acl::SCRIPT);
        tokio::spawn(async move {
            for _ in 0..number {
                tokio::task::yield_now().await;
            }
            for _ in 0..10 {
                limits.ready().await?;
            }
            Ok::<_, limiter_core::StoreError>(())
        })
    });
    for ready in starting.collect::<Vec<_>>() {
        ready.await.unwrap().unwrap();
    }
    assert_eq!(server.command(&["DBSIZE"]).integer(), 0, "`ready` leaves no keys");
}

#[tokio::test]
async fn ready_loads_all_scripts() {
    let server = RedisServer::start();
    let limits = limiter(&server, acl::SCRIPT);
    limits.ready().await.unwrap();
    server.command(&["ACL", "SETUSER", "checkout", "-eval"]);
    execute_all_operations(&limits).await.unwrap();
    for policy in policies() {
        limits.check(&policy, "k").await.unwrap().require().unwrap();
        limits.refund(&policy, "k").await.unwrap();
    }
    let leased = Policy::token_bucket("leased").capacity(100).rate(1).lease("1m");
    let leased = leased.on_store_failure(OnStoreFailure::Error).build().unwrap();
    limits.check(&leased, "k").await.unwrap().require().unwrap();
}

#[tokio::test]
async fn ready_reports_read_only_or_cluster_server() {
    let primary = RedisServer::start();
    let replica = RedisServer::builder().replica_of(&primary).start();
    let limits = |url: String| Limiter::redis(url).namespace("ns").build().unwrap();
    let error = limits(replica.url()).ready().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");

    let cluster = RedisCluster::shared();
    let result = async |place| limits(cluster.node(place).url()).ready().await;
    let mut elsewhere = 0;
    for place in 0..3 {
        elsewhere += i32::from(
            result(place)
                .await
                .is_err_and(|error| error.to_string().contains("redis_cluster")),
        );
    }
    assert!(elsewhere >= 2, "{elsewhere}");
    let alone = Limiter::redis_cluster([primary.url_as("")])
        .namespace("ns")
        .build()
        .unwrap();
    let error = alone.ready().await.unwrap_err();
    assert!(error.to_string().contains("no Redis Cluster"), "{error}");
}
