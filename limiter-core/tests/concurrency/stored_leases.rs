//! Leases in Redis: their lengths, their keys, and the permissions that they need.

use super::*;

#[test]
fn clock_step_back_extends_no_lease() {
    let (server, namespace, clock) = (RedisServer::start(), namespace(), ManualClock::new());
    let limiter = || {
        let builder = Limiter::redis(server.url()).namespace(&namespace);
        builder.clock(&clock).build().unwrap()
    };
    let policy = policy(2, secs(30));
    // The holder of these is gone: the runtime has ended, and the limiter with it.
    on_separate_runtime(async {
        let gone = limiter();
        for _ in 0..2 {
            std::mem::forget(gone.acquire_concurrency(&policy, KEY).await.unwrap());
        }
    });
    clock.step_back(secs(3_600));
    let limits = limiter();
    on_separate_runtime(async {
        let denied = limits.acquire_concurrency(&policy, KEY).await.unwrap_err();
        assert_eq!(first_lease_ends_after(&denied), secs(30));
        clock.advance(secs(30) - Duration::from_micros(1));
        assert_eq!(remaining(&limits, &policy).await, 0);
        clock.advance(Duration::from_micros(1));
        assert_eq!(remaining(&limits, &policy).await, 2);
        let permit = limits.acquire_concurrency(&policy, KEY).cost(2).await.unwrap();
        permit.release().await.unwrap();
    });
}

/// A policy with a shorter lease does not shorten longer leases of others.
#[tokio::test]
async fn lease_has_length_of_its_policy() {
    let (server, namespace, clock) = (RedisServer::start(), namespace(), ManualClock::new());
    let limiter = || {
        let builder = Limiter::redis(server.url()).namespace(&namespace);
        builder.clock(&clock).build().unwrap()
    };
    let (limits, other) = (limiter(), limiter());
    let (long, short) = (policy(2, secs(3_600)), policy(2, secs(1)));
    std::mem::forget(limits.acquire_concurrency(&long, KEY).await.unwrap());
    let second = other.acquire_concurrency(&short, KEY).await.unwrap();
    assert!(other.acquire_concurrency(&short, KEY).await.is_err());
    second.release().await.unwrap();
    clock.advance(secs(500));
    assert_eq!(
        remaining(&other, &short).await,
        1,
        "the long lease has not expired"
    );
}

#[tokio::test]
async fn acquisition_keeps_value_of_another_type() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let limits = on(&server, &namespace);
    let policy = policy(2, secs(30));
    limits
        .acquire_concurrency(&policy, KEY)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let key = format!("{}|cc|p|{{k}}", namespace);
    for (command, expected) in [
        (vec!["SET", &key, "text"], StoreErrorKind::WrongType),
        (vec!["ZADD", &key, "1", "member"], StoreErrorKind::UnknownLayout),
    ] {
        server.command(&["DEL", &key]);
        server.command(&command);
        let local = Policy::concurrency("p").max(2).deadline(PATIENT).build().unwrap();
        for policy in [&policy, &local] {
            let Err(Rejection::Unavailable { error, .. }) = limits.acquire_concurrency(policy, KEY).await
            else {
                panic!("{command:?}")
            };
            assert_eq!(error.kind(), expected, "{command:?}");
        }
        assert_eq!(server.command(&["EXISTS", &key]).integer(), 1);
    }
}

#[tokio::test]
async fn keys_live_until_the_last_lease_ends() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let limits = on(&server, &namespace);
    let permit = limits
        .acquire_concurrency(&policy(2, secs(30)), KEY)
        .await
        .unwrap();
    let keys = server.command(&["KEYS", &format!("{namespace}|cc*")]);
    let keys: Vec<_> = keys.items().iter().map(|key| key.text().to_owned()).collect();
    assert_eq!(keys, [format!("{namespace}|cc|p|{{k}}")]);
    let ttl = server.command(&["PTTL", keys.first().unwrap()]).integer();
    assert!((20_000..=30_002).contains(&ttl), "{ttl}");
    permit.release().await.unwrap();
    assert_eq!(server.command(&["EXISTS", keys.first().unwrap()]).integer(), 0);
}

/// Creates a user with these permissions, and executes every concurrency operation.
async fn execute_all_operations(server: &RedisServer, permissions: &[&str]) -> Result<(), Rejection> {
    let mut user = vec!["ACL", "SETUSER", "checkout", "reset", "on", ">secret", "~prod|*"];
    user.extend(permissions);
    server.command(&user);
    server.command(&["FLUSHALL"]);
    let clock = ManualClock::new();
    let limits = Limiter::redis(server.url_as("checkout:secret"))
        .namespace("prod")
        .clock(&clock)
        .build()
        .unwrap();
    let policy = policy(2, secs(30));
    let held = limits.acquire_concurrency(&policy, KEY).await?;
    // The housekeeper renews the lease. Only operations on an existing lease read its score, and
    // thus need the permission.
    clock.advance(secs(15));
    let renewed = async {
        while expires_after(&limits.peek(&policy, KEY).await?) < secs(30) {
            tokio::time::sleep(millis(1)).await;
        }
        Ok::<(), Rejection>(())
    };
    match tokio::time::timeout(secs(2), renewed).await {
        Ok(renewed) => renewed?,
        Err(_) => return Err(limits.check(&policy, KEY).await.unwrap_err()),
    }
    limits.reset(&policy, KEY).await?;
    held.release().await
}

#[tokio::test]
async fn documented_permissions_are_sufficient_and_necessary() {
    let server = RedisServer::start();
    let all = [acl::SCRIPT, acl::CONCURRENCY].concat();
    execute_all_operations(&server, &all).await.unwrap();
    for missing in acl::CONCURRENCY {
        let others: Vec<&str> = all.iter().copied().filter(|one| one != missing).collect();
        let refused = execute_all_operations(&server, &others).await;
        assert!(refused.is_err(), "{missing} is not needed");
    }
}
