//! Edits of the registry and of documents, their first read, and the end of a subscription.

use super::*;

/// Redis has lost its data or has an older text: an edit of one policy keeps the others.
#[tokio::test]
async fn edit_restores_lost_registry() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let key = format!("{namespace}|book");
    let [one, other] = [(); 2].map(|()| Replica::new(Limiter::redis(server.url()), &namespace));
    let others = "[policy.q]\nalgorithm = \"sliding_window\"\nlimit = 7\nwindow = \"1m\"\n";
    let first = one
        .store
        .publish(&format!("{}{others}", sized(2)), 0)
        .await
        .unwrap();
    other.has(2, SOON).await;
    let backup = format!("revision = {}\n{}", first - 1, sized(1));
    for (capacity, lost) in [(3, None), (4, Some(backup))] {
        match &lost {
            None => server.command(&["DEL", &key]),
            Some(backup) => server.command(&["SET", &key, backup]),
        };
        let edit = other.store.edit(|draft| {
            draft.set(bucket("p", capacity, "1/h"));
            Ok(())
        });
        let revision = edit.await.unwrap();
        assert!(revision > first);
        one.has(capacity, SOON).await;
        assert_eq!(one.limits.registry().names(), ["p", "q"], "{lost:?}");
        let (found, text) = one.store.read().await.unwrap().unwrap();
        assert_eq!(found, revision);
        assert_eq!(PolicyRegistry::from_toml(&text).unwrap().names(), ["p", "q"]);
    }
    // A replica without a previous registry accepts the state of Redis.
    server.command(&["DEL", &key]);
    let stranger = Limiter::redis(server.url())
        .namespace(&namespace)
        .build()
        .unwrap();
    let edit = stranger.redis_registry().unwrap();
    let edit = edit.edit(|draft| {
        draft.set(bucket("p", 5_u32, "1/h"));
        Ok(())
    });
    edit.await.unwrap();
    one.has(5, SOON).await;
    assert_eq!(one.limits.registry().names(), ["p"]);
}

#[tokio::test]
async fn replica_can_wait_for_first_sync() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let limits = || {
        Limiter::redis(server.url())
            .namespace(&namespace)
            .build()
            .unwrap()
    };
    let first = limits();
    let source = first.redis_registry().unwrap().follow();
    source.synced().await.unwrap();
    assert!(first.registry().names().is_empty(), "nothing was published");
    let store = first.redis_registry().unwrap();
    store.publish(&sized(2), 0).await.unwrap();

    let second = limits();
    let source = second.redis_registry().unwrap().follow();
    source.synced().await.unwrap();
    assert_eq!(capacity(second.registry()), Some(2));
    source.synced().await.unwrap();

    server.kill();
    let third = limits();
    let source = third.redis_registry().unwrap().follow();
    let received = timeout(secs(10), source.synced()).await.unwrap();
    assert!(matches!(received, Err(RegistryError::Store(_))), "{received:?}");

    let fourth = limits();
    let source = fourth.redis_registry().unwrap().follow();
    drop(fourth);
    let received = timeout(secs(10), source.synced()).await.unwrap();
    assert!(
        matches!(&received, Err(RegistryError::Store(error)) if error.kind() == StoreErrorKind::ShutDown),
        "the subscription has ended: {received:?}"
    );
}

#[tokio::test]
async fn dropped_handle_keeps_subscription_and_stop_ends_it() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let replica = || {
        let limits = Limiter::redis(server.url()).namespace(&namespace);
        limits.build().unwrap()
    };
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let stopped = replica();
    let before = tasks();
    let source = stopped.redis_registry().unwrap().follow();
    assert_eq!(tasks(), before + 1);
    source.stop();
    let ended = async {
        while tasks() > before {
            tokio::task::yield_now().await;
        }
    };
    timeout(secs(10), ended).await.unwrap();

    let (following, publishing) = (replica(), replica());
    let _ = following.redis_registry().unwrap().follow();
    let registry = publishing.redis_registry().unwrap();
    let mut revision = 0;
    for quota in [2, 3] {
        revision = registry.publish(&sized(quota), revision).await.unwrap();
        let adopted = async {
            loop {
                let seen = following.registry().revision();
                if capacity(following.registry()) == Some(quota) {
                    return;
                }
                following.registry().changed(seen).await;
            }
        };
        timeout(secs(10), adopted).await.unwrap();
    }
}

/// All replicas read the previous policy and the time of the change from one text.
#[tokio::test]
async fn replicas_apply_inheritance_of_edit() {
    let namespace = namespace();
    let [first, second] =
        [(); 2].map(|()| Replica::new(Limiter::redis(RedisServer::shared().url()), &namespace));
    first.store.publish(&sized(10), 0).await.unwrap();
    for replica in [&first, &second] {
        replica.has(10, SOON).await;
    }
    let one = first.limits.named("p").check("k").cost(5).await.unwrap();
    assert_eq!(one.remaining(), 5);

    let changed = |capacity: u64, inheritance| {
        let store = first.store.clone();
        async move {
            let entry = PolicyRegistry::from_toml(&sized(capacity))
                .unwrap()
                .get("p")
                .unwrap();
            let edit = store.edit(|draft| draft.change((*entry).clone(), inheritance));
            edit.await.unwrap();
        }
    };
    changed(100, Inheritance::Proportional).await;
    second.has(100, SOON).await;
    for (replica, left) in [(&second, 49), (&first, 48), (&second, 47)] {
        let decision = replica.limits.named("p").check("k").await.unwrap();
        assert_eq!(decision.remaining(), left);
    }
    changed(1_000, Inheritance::Reset).await;
    second.has(1_000, SOON).await;
    for (replica, left) in [(&second, 999), (&first, 998)] {
        assert_eq!(
            replica.limits.named("p").check("k").await.unwrap().remaining(),
            left
        );
    }
}

#[tokio::test]
async fn change_of_limit_kind_is_not_published() {
    let replica = Replica::new(Limiter::redis(RedisServer::shared().url()), &namespace());
    let revision = replica.store.publish(&sized(5), 0).await.unwrap();
    let held = "policy.p = { algorithm = 'concurrency', max = 3 }";
    let refused = replica.store.publish(held, revision).await.unwrap_err();
    assert!(
        refused.to_string().contains("policy `p` changes from p ("),
        "{refused}"
    );
    assert_eq!(replica.store.read().await.unwrap().unwrap().0, revision);
}

/// A program that manages the registry does not follow it, so its limiter can have an older text.
#[tokio::test]
async fn manager_publishes_above_known_revision_without_its_own_registry() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let [manager, other] = [(); 2].map(|()| {
        let limits = Limiter::redis(server.url()).namespace(&namespace).build();
        limits.unwrap().redis_registry().unwrap()
    });
    let first = manager.publish(&sized(1), 0).await.unwrap();
    let removed = other.publish("", first).await.unwrap();
    let concurrency = "[policy.p]\nalgorithm = \"concurrency\"\nmax = 3\n";
    let turned = other.publish(concurrency, removed).await.unwrap();
    let refused = manager.publish(concurrency, turned).await;
    assert!(matches!(refused, Err(RegistryError::Parse { .. })), "{refused:?}");
    let least = turned + 3_600_000;
    let published = manager.publish_above(concurrency, turned, least).await;
    assert_eq!(published.unwrap(), least + 1);
    let late = manager.publish_above(concurrency, turned, least).await;
    assert!(matches!(late, Err(RegistryError::Conflict { .. })), "{late:?}");
    let invalid = manager.publish_above("policy = 1", least + 1, 0).await;
    assert!(matches!(invalid, Err(RegistryError::Parse { .. })), "{invalid:?}");
    let document = manager.document("tokens");
    let least = document.publish("a", 0).await.unwrap() + 3_600_000;
    server.command(&["DEL", &format!("{namespace}|book|tokens")]);
    assert_eq!(document.publish_above("a", 0, least).await.unwrap(), least + 1);
}

#[tokio::test]
async fn registry_key_of_wrong_type_is_reported() {
    let (server, namespace) = (RedisServer::shared(), namespace());
    server.command(&["LPUSH", &format!("{namespace}|book"), "a list of another program"]);
    let replica = Replica::new(Limiter::redis(server.url()), &namespace);
    let Err(RegistryError::Store(error)) = replica.source.synced().await else {
        unreachable!("{:?}", replica.source.last_error())
    };
    assert_eq!(error.kind(), StoreErrorKind::WrongType);
    assert!(
        error.to_string().contains("contains a value of another type"),
        "{error}"
    );
}

#[tokio::test]
async fn document_is_replaced_by_compare_and_set() {
    let server = RedisServer::start();
    let namespace = namespace();
    let open = || {
        let limits = Limiter::redis(server.url())
            .namespace(&namespace)
            .build()
            .unwrap();
        limits.redis_registry().unwrap()
    };
    let (one, other) = (open().document("a|b"), open().document("a|b"));
    assert_eq!(one.read_after(0).await.unwrap(), None);
    let first = one.publish("revision = 7\nfirst", 0).await.unwrap();
    let conflict = other.publish("second", 0).await.unwrap_err();
    assert!(matches!(conflict, RegistryError::Conflict { found, .. } if found == first));
    let found = other.read_after(0).await.unwrap();
    assert_eq!(found, Some((first, "revision = 7\nfirst".to_owned())));
    let second = other.publish("", first).await.unwrap();
    assert_eq!(
        one.read_after(first).await.unwrap(),
        Some((second, String::new()))
    );
    assert_eq!(one.read_after(second).await.unwrap(), None);
    // The registry and other documents are separate.
    assert_eq!(open().read().await.unwrap(), None);
    assert_eq!(open().document("a").read_after(0).await.unwrap(), None);
    server.pause();
    assert!(matches!(one.read_after(0).await, Err(RegistryError::Store(_))));
}
