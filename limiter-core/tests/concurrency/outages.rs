//! Permits while Redis is unavailable, and after it has lost its data.

use super::*;

#[tokio::test]
async fn short_outage_loses_no_permit() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    let policy = policy(1, secs(6));
    let permit = limits.acquire_concurrency(&policy, KEY).await.unwrap();
    server.pause();
    // Longer than the time until the next renewal is due and retried.
    tokio::time::sleep(secs(3)).await;
    server.resume();
    let until = Instant::now() + secs(6);
    while Instant::now() < until {
        assert!(permit.is_valid());
        assert_eq!(remaining(&limits, &policy).await, 0);
        tokio::time::sleep(millis(20)).await;
    }
    permit.release().await.unwrap();
}

#[tokio::test]
async fn disconnected_holder_is_notified_and_counted_again() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let namespace = namespace();
    let behind = Limiter::redis(proxy.url());
    let cut_off = behind.namespace(&namespace).build().unwrap();
    let other = on(&server, &namespace);
    let policy = policy(1, millis(600));
    let permit = cut_off.acquire_concurrency(&policy, KEY).await.unwrap();
    proxy.set_black_hole(true);
    let started = Instant::now();
    permit.lost().await;
    assert!(started.elapsed() < millis(600) + SLACK && !permit.is_valid());
    let taken = other
        .acquire_concurrency(&policy, KEY)
        .timeout(PATIENT)
        .await
        .unwrap();
    proxy.set_black_hole(false);
    proxy.drop_connections();
    taken.release().await.unwrap();
    // The permit is still valid, and Redis registers it.
    await_remaining(&other, &policy, 0).await;
    assert!(!permit.is_valid(), "a lost permit stays invalid");
    drop(permit);
    await_remaining(&other, &policy, 1).await;
}

#[tokio::test]
async fn live_holders_register_again_after_data_loss() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    let policy = policy(3, secs(1));
    let permits = [
        limits.acquire_concurrency(&policy, KEY).await.unwrap(),
        limits.acquire_concurrency(&policy, KEY).await.unwrap(),
    ];
    server.restart();
    await_remaining(&limits, &policy, 1).await;
    assert!(permits.iter().all(|permit| !permit.is_valid()));
    drop(permits);
    await_remaining(&limits, &policy, 3).await;
}

#[tokio::test]
async fn replica_admits_its_share_in_outage() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let limits = Limiter::redis(server.url())
        .namespace(&namespace)
        .replicas(2)
        .build()
        .unwrap();
    let local = Policy::concurrency("p").max(5).lease(secs(2)).build().unwrap();
    let held = limits
        .acquire_concurrency(&policy(5, secs(2)), KEY)
        .cost(2)
        .await
        .unwrap();
    server.kill();
    let third = limits.acquire_concurrency(&local, KEY).await.unwrap();
    assert_eq!(third.decision().origin(), Origin::LocalFallback);
    assert_eq!(third.decision().remaining(), 0);
    assert!(third.is_valid());
    let denied = limits.acquire_concurrency(&local, KEY).await.unwrap_err();
    assert_eq!(denied.decision().unwrap().origin(), Origin::LocalFallback);
    assert_eq!(first_lease_ends_after(&denied), millis(500));
    let peek = async |cost: u32| limits.peek(&local, KEY).cost(cost).await.unwrap();
    let peeked = peek(1).await;
    assert_eq!((peeked.origin(), peeked.remaining()), (Origin::LocalFallback, 0));
    assert!(!peeked.is_allowed());
    let free = limits.acquire_concurrency(&local, KEY).cost(0).await.unwrap();
    assert!(free.decision().is_allowed(), "a cost of 0 is always allowed");
    drop(third);
    assert!(peek(1).await.is_allowed() && !peek(2).await.is_allowed());
    let third = limits
        .acquire_concurrency(&local, KEY)
        .timeout(secs(5))
        .await
        .unwrap();

    let answer = |answer| {
        let policy = Policy::concurrency("q").max(1).on_store_failure(answer);
        policy.build().unwrap()
    };
    let open = answer(OnStoreFailure::FailOpen);
    for _ in 0..3 {
        let unguarded = limits.acquire_concurrency(&open, KEY).await.unwrap();
        assert_eq!(unguarded.decision().origin(), Origin::FailedOpen);
        unguarded.release().await.unwrap();
    }
    for closed in [OnStoreFailure::FailClosed, OnStoreFailure::Error] {
        let refused = limits
            .acquire_concurrency(&answer(closed), KEY)
            .timeout(secs(5))
            .await
            .unwrap_err();
        assert!(refused.is_unavailable(), "{refused:?}");
    }

    server.restart();
    await_remaining(&limits, &local, 2).await;
    drop((held, third));
    await_remaining(&limits, &local, 5).await;
}

#[tokio::test]
async fn locally_admitted_permit_reports_rejection_by_redis() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let proxy = Proxy::start(server.port());
    let behind = Limiter::redis(proxy.url());
    let cut_off = behind.namespace(&namespace).build().unwrap();
    let other = on(&server, &namespace);
    let local = Policy::concurrency("p").max(1).lease(millis(600));
    let local = local.deadline(millis(100)).build().unwrap();
    let policy = policy(1, millis(600));
    cut_off.ready().await.unwrap();
    proxy.set_black_hole(true);
    let permit = cut_off.acquire_concurrency(&local, KEY).await.unwrap();
    assert_eq!(permit.decision().origin(), Origin::LocalFallback);
    assert!(permit.is_valid());
    let taken = other.acquire_concurrency(&policy, KEY).await.unwrap();
    proxy.set_black_hole(false);
    proxy.drop_connections();
    let lost = tokio::time::timeout(PATIENT, permit.lost()).await;
    lost.expect("the holder is not notified of its loss");
    assert!(!permit.is_valid() && taken.is_valid());
    taken.release().await.unwrap();
    // The permit is still valid, and Redis counts it now.
    await_remaining(&other, &policy, 0).await;
    assert!(!permit.is_valid(), "a lost permit stays invalid");
    drop(permit);
    await_remaining(&other, &policy, 1).await;
}

#[tokio::test]
async fn lost_reply_leaves_no_permit() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let behind = Limiter::redis(proxy.url());
    let limits = behind.namespace(namespace()).build().unwrap();
    let policy = policy(2, secs(30));
    limits.ready().await.unwrap();
    proxy.cut_replies(1);
    let lost = limits.acquire_concurrency(&policy, KEY).await.unwrap_err();
    assert!(lost.is_unavailable(), "{lost:?}");
    await_remaining(&limits, &policy, 2).await;
}

/// The query of the waiter gets no reply, and meanwhile its process releases a permit.
#[tokio::test]
async fn permit_transferred_during_query_is_not_a_timeout() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limits = limiter(proxy.url());
    let policy = policy(1, secs(30));
    let held = limits.acquire_concurrency(&policy, KEY).await.unwrap();
    proxy.set_black_hole(true);
    let waiting = {
        let (limits, policy) = (limits.clone(), policy.clone());
        let waiting = async move {
            limits
                .acquire_concurrency(&policy, KEY)
                .timeout(millis(100))
                .await
        };
        tokio::spawn(waiting)
    };
    // Lets the waiter start its query.
    tokio::task::yield_now().await;
    drop(held);
    let permit = waiting.await.unwrap().unwrap();
    assert_eq!(permit.decision().origin(), Origin::Lease);
    proxy.set_black_hole(false);
}
