//! The list of the processes that follow a registry.

use super::*;

/// Each subscription is listed with the revision that it follows.
async fn assert_subscribers_are_listed(builder: impl Fn() -> RedisBuilder) {
    let namespace = namespace();
    let one = Replica::new(builder().app("checkout"), &namespace);
    let _other = Replica::new(builder(), &namespace);
    let revision = one.store.publish(&sized(2), 0).await.unwrap();
    let listed = async {
        loop {
            let listed = one.store.subscribers().await.unwrap();
            if listed.iter().filter(|of| of.revision == revision).count() == 2 {
                return listed;
            }
            tokio::task::yield_now().await;
        }
    };
    let listed = timeout(PATIENT, listed).await.unwrap();
    assert_eq!(listed.len(), 2, "{listed:?}");
    let app = listed
        .iter()
        .find(|of| of.app.as_deref() == Some("checkout"))
        .unwrap();
    assert_eq!(
        (app.version.as_str(), app.format),
        (env!("CARGO_PKG_VERSION"), PolicyRegistry::FORMAT)
    );
    assert!(app.supports_overlays() && !app.host.is_empty());
    assert!(app.clock_ahead.abs() < 60_000_000, "{app:?}");
}

#[tokio::test]
async fn server_lists_subscribers() {
    let server = RedisServer::start();
    assert_subscribers_are_listed(|| Limiter::redis(server.url())).await;
}

#[tokio::test]
async fn cluster_lists_subscribers() {
    assert_subscribers_are_listed(|| Limiter::redis_cluster(RedisCluster::shared().urls())).await;
}

/// The description of a subscriber has at most 1,024 bytes, which end within a character of one of
/// these names.
#[tokio::test]
async fn long_app_is_shortened_between_characters() {
    let server = RedisServer::start();
    for app in ["é".repeat(600), format!("x{}", "é".repeat(600))] {
        let replica = Replica::new(Limiter::redis(server.url()).app(&app), &namespace());
        let listed = async {
            loop {
                if let [listed] = replica.store.subscribers().await.unwrap().as_slice() {
                    return listed.app.clone().unwrap();
                }
                tokio::task::yield_now().await;
            }
        };
        let listed = timeout(PATIENT, listed).await.unwrap();
        assert!(app.starts_with(&listed) && listed.len() > 900, "{listed}");
    }
}

/// The clock is in the year 2023, far behind that of the server.
#[tokio::test]
async fn expired_subscriber_is_not_listed() {
    let (server, namespace, clock) = (RedisServer::start(), namespace(), ManualClock::new());
    let replica = Replica::new(Limiter::redis(server.url()).clock(&clock), &namespace);
    let count = async |expected: usize| {
        let reached = async {
            while replica.store.subscribers().await.unwrap().len() != expected {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENT, reached).await.unwrap();
    };
    count(1).await;
    let listed = replica.store.subscribers().await.unwrap();
    assert!(
        listed.iter().all(|of| of.clock_ahead < -1_000_000_000),
        "{listed:?}"
    );
    let register = format!("{namespace}|subscribers");
    assert!(server.command(&["PTTL", &register]).integer() > 0);
    clock.advance(secs(60));
    count(0).await;
}

#[tokio::test]
async fn query_of_silent_server_ends() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let replica = Replica::new(Limiter::redis(server.url()), &namespace);
    assert!(replica.store.subscribers().await.unwrap().len() < 2);
    server.pause();
    let listed = timeout(secs(15), replica.store.subscribers()).await;
    server.resume();
    let error = listed.unwrap().unwrap_err();
    assert!(matches!(error, RegistryError::Store(_)), "{error:?}");
}

/// A process may follow a registry for several components.
#[tokio::test]
async fn process_with_two_subscriptions_is_listed_once() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let replica = Replica::new(Limiter::redis(server.url()), &namespace);
    let _second = replica.limits.redis_registry().unwrap().follow();
    // Each registration writes the register once.
    let calls = |command: &str| texts::stat(&server, "commandstats", &format!("cmdstat_{command}:calls="));
    let registered = async {
        while calls("set") + calls("setrange") < 2 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENT, registered).await.unwrap();
    let listed = replica.store.subscribers().await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
}

/// The policies of both revisions are equal, for example after a loss of data.
#[tokio::test]
async fn revision_without_changes_is_listed_soon() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let [one, other] = [(); 2].map(|()| Replica::new(Limiter::redis(server.url()), &namespace));
    let first = one.store.publish(&sized(2), 0).await.unwrap();
    other.has(2, SOON).await;
    let second = one.store.publish(&sized(2), first).await.unwrap();
    let listed = async {
        let mut listed = Vec::new();
        while listed.iter().filter(|revision| **revision == second).count() < 2 {
            let subscribers = one.store.subscribers().await.unwrap();
            listed = subscribers.iter().map(|of| of.revision).collect();
        }
    };
    // Before the next regular registration.
    timeout(secs(10), listed).await.unwrap();
}
