//! The registry of a namespace in Redis: published by one replica, followed by all.
#![cfg(feature = "registry")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::print_stdout, reason = "how long it took is worth knowing")]

mod support;

#[path = "registry_redis/edits.rs"]
mod edits;
#[path = "registry_redis/newer_programs.rs"]
mod newer_programs;
#[path = "registry_redis/permissions.rs"]
mod permissions;
#[path = "registry_redis/subscribers.rs"]
mod subscribers;
#[path = "registry_redis/texts.rs"]
mod texts;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use limiter_core::registry::{
    Block, BlockTarget, KeyOverride, PolicyRegistry, RedisRegistry, RedisSubscription, RegistryError,
    Suspension, SuspensionMode,
};
use limiter_core::{Inheritance, Limiter, ManualClock, Origin, Policy, RedisBuilder, StoreErrorKind};
use limiter_testing::log::{Everything, Warnings};
use limiter_testing::{Proxy, RedisCluster, RedisSentinel, RedisServer, acl};
use support::{PATIENT, bucket, millis, namespace, patient, secs};
use tokio::time::timeout;

/// Maximum time from the publication of a change until all replicas have it: a message announces
/// the change, and if the message is lost or not permitted, the poll every half a second does.
const SOON: Duration = secs(1);

fn sized(capacity: u64) -> String {
    format!(
        "[policy.p]\nalgorithm = \"token_bucket\"\ncapacity = {capacity}\nrate = \"1/h\"\ndeadline = \"30s\"\n"
    )
}

fn capacity(registry: &PolicyRegistry) -> Option<u64> {
    registry.get("p").map(|entry| entry.policy().quota().whole())
}

/// A replica that follows.
struct Replica {
    limits: Limiter,
    store: RedisRegistry,
    source: RedisSubscription,
}

impl Replica {
    fn new(builder: RedisBuilder, namespace: &str) -> Self {
        let limits = builder.namespace(namespace).build().unwrap();
        let store = limits.redis_registry().unwrap();
        let source = store.follow();
        Self {
            limits,
            store,
            source,
        }
    }

    /// Waits until the policy has this capacity.
    async fn has(&self, expected: u64, within: Duration) {
        let registry = self.limits.registry();
        let arrives = async {
            loop {
                let revision = registry.revision();
                if capacity(registry) == Some(expected) {
                    return;
                }
                registry.changed(revision).await;
            }
        };
        let arrived = timeout(within, arrives).await;
        assert!(
            arrived.is_ok(),
            "{:?}, {:?}",
            capacity(registry),
            self.source.last_error()
        );
    }

    /// Waits until the policy is gone.
    async fn has_none(&self, within: Duration) {
        let registry = self.limits.registry();
        let goes = async {
            while capacity(registry).is_some() {
                registry.changed(registry.revision()).await;
            }
        };
        assert!(
            timeout(within, goes).await.is_ok(),
            "{:?}",
            self.source.last_error()
        );
    }

    /// Waits until the subscription reports the expected error, or none.
    async fn reports(&self, operation: &str, holds: impl Fn(Option<RegistryError>) -> bool) {
        let result = async {
            while !holds(self.source.last_error()) {
                tokio::task::yield_now().await;
            }
        };
        let result = timeout(PATIENT, result).await;
        assert!(result.is_ok(), "{operation}: {:?}", self.source.last_error());
    }
}

/// Checks publications on a topology of Redis.
async fn assert_publications_are_applied(builder: impl Fn() -> RedisBuilder) {
    let namespace = namespace();
    let [one, other] = [(); 2].map(|()| Replica::new(builder(), &namespace));
    assert_eq!(one.store.read().await.unwrap(), None);
    let first = one.store.publish(&sized(2), 0).await.unwrap();
    assert_eq!(
        capacity(one.limits.registry()),
        Some(2),
        "the publisher applies its text at once"
    );
    other.has(2, SOON).await;
    assert_eq!(other.limits.registry().published(), Some(first));
    assert_eq!(other.store.read().await.unwrap(), Some((first, sized(2))));

    let named = other.limits.named("p");
    assert!(named.check("ann").cost(2).await.unwrap().is_allowed());
    assert!(!named.check("ann").await.unwrap().is_allowed());

    let second = other.store.publish(&sized(3), first).await.unwrap();
    assert!(second > first);
    one.has(3, SOON).await;
    let late = one.store.publish(&sized(4), first).await;
    assert!(
        matches!(late, Err(RegistryError::Conflict { expected, found }) if (expected, found) == (first, second)),
        "{late:?}"
    );
    let refused = one.store.publish("[policy.p]", second).await.unwrap_err();
    assert_eq!(refused.to_string(), "text:1:9: policy.p.algorithm is missing");
    assert_eq!(other.store.read().await.unwrap(), Some((second, sized(3))));
}

#[tokio::test]
async fn server_stores_registry() {
    assert_publications_are_applied(|| Limiter::redis(RedisServer::shared().url())).await;
}

#[tokio::test]
async fn cluster_stores_registry() {
    assert_publications_are_applied(|| Limiter::redis_cluster(RedisCluster::shared().urls())).await;
}

#[tokio::test]
async fn primary_under_sentinel_stores_registry() {
    let sentinel = RedisSentinel::start();
    assert_publications_are_applied(|| Limiter::redis_sentinel(sentinel.urls(), sentinel.primary_url()))
        .await;
}

#[test]
fn in_process_limiter_has_no_redis_registry() {
    let refused = Limiter::in_process().build().redis_registry().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "limiter is `in process`, expected a limiter whose state lives in Redis"
    );
}

#[tokio::test]
async fn concurrent_edits_all_apply() {
    let namespace = namespace();
    let replica = || Replica::new(Limiter::redis(RedisServer::shared().url()), &namespace);
    let replicas = [(); 4].map(|()| replica());
    let edits = replicas.iter().enumerate().map(|(number, replica)| async move {
        replica
            .store
            .edit(|draft| {
                draft.set(bucket(&format!("p{number}"), 1, 1));
                draft.set(bucket("p", 1, 1));
                draft.set_override(KeyOverride::new(bucket("p", 2, 1), number))
            })
            .await
    });
    let mut revisions = Vec::new();
    for edit in edits.map(Box::pin).collect::<Vec<_>>() {
        revisions.push(edit.await.unwrap());
    }
    assert!(revisions.is_sorted_by(|a, b| a < b), "{revisions:?}");
    let [first, second, third, fourth] = &replicas;
    let edit = |replica: &Replica, rate: u32| {
        let store = replica.store.clone();
        async move {
            let edit = store.edit(|draft| {
                let own = draft.overrides("p");
                draft.set_override(KeyOverride::new(bucket("p", 7, rate), own.len()))
            });
            edit.await.unwrap()
        }
    };
    tokio::join!(edit(first, 1), edit(second, 2), edit(third, 3), edit(fourth, 4));
    let (_, text) = first.store.read().await.unwrap().unwrap();
    let registry = PolicyRegistry::from_toml(&text).unwrap();
    assert_eq!(registry.overrides("p").len(), 8);
    assert_eq!(registry.names(), ["p", "p0", "p1", "p2", "p3"]);

    let refused = (first.store).edit(|draft| draft.set_override(KeyOverride::new(bucket("q", 7, 1), "k")));
    assert_eq!(
        refused.await.unwrap_err().to_string(),
        "policy of an override is `q`, expected a policy that is in the registry"
    );
}

/// Overlays of an edit reach the other replicas, which keep them during an outage of Redis.
#[tokio::test]
async fn overlays_reach_all_replicas() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let [one, other] = [(); 2].map(|()| Replica::new(Limiter::redis(server.url()), &namespace));
    one.store.publish(&sized(5), 0).await.unwrap();
    other.has(5, SOON).await;
    let end = std::time::SystemTime::now() + secs(3_600);
    let suspension = Suspension::new("policy:p".parse().unwrap(), SuspensionMode::Deny, end);
    let block = Block::new(BlockTarget::Key("eve".into())).until(end);
    let edit = one.store.edit(|draft| {
        draft.suspend(suspension.clone())?;
        draft.block(block.clone())
    });
    let revision = edit.await.unwrap();
    let registry = other.limits.registry();
    let arrives = async {
        while registry.published() < Some(revision) {
            registry.changed(registry.revision()).await;
        }
    };
    timeout(SOON, arrives).await.unwrap();
    server.stop();
    for replica in [&one, &other] {
        let origin = async |key: &str| replica.limits.named("p").check(key).await.unwrap().origin();
        assert_eq!(origin("ann").await, Origin::Suspension);
        let edited = replica.limits.registry();
        assert_eq!(edited.suspensions(), std::slice::from_ref(&suspension));
        assert_eq!(edited.blocks(), std::slice::from_ref(&block));
    }
}

#[tokio::test]
async fn redis_registry_overrides_code() {
    let namespace = namespace();
    let registry = PolicyRegistry::new()
        .with(bucket("p", 1, 1))
        .with(bucket("q", 1, 1));
    let replica = Replica::new(
        Limiter::redis(RedisServer::shared().url())
            .registry(&registry)
            .app("checkout"),
        &namespace,
    );
    assert_eq!(
        capacity(&registry),
        Some(1),
        "a replica has a registry before the first sync"
    );
    let revision = replica.store.publish(&sized(2), 0).await.unwrap();
    assert_eq!((capacity(&registry), registry.names().len()), (Some(2), 2));
    let for_others = sized(3) + "apps = ['mobile']\n";
    replica.store.publish(&for_others, revision).await.unwrap();
    let decision = replica.limits.named("p").check("k").await.unwrap();
    assert_eq!(decision.origin(), Origin::NotConfigured);
    let revision = registry.published().unwrap();
    replica.store.publish("", revision).await.unwrap();
    assert_eq!(
        capacity(&registry),
        Some(1),
        "Redis no longer contains the policy"
    );
}

/// A child process that follows the registry and prints each capacity that it receives.
struct Follower {
    process: Child,
    lines: mpsc::Receiver<String>,
}

const URL: &str = "LIMITER_REGISTRY_URL";
const NAMESPACE: &str = "LIMITER_REGISTRY_NAMESPACE";

impl Follower {
    fn start(url: &str, namespace: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes_follow_the_registry", "--nocapture"])
            .envs([(URL, url), (NAMESPACE, namespace)])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (result, lines) = mpsc::channel();
        let output = BufReader::new(process.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, messages)) = line.split_once("registry: ") {
                    let _ = result.send(messages.to_owned());
                }
            }
        });
        Self { process, lines }
    }

    fn prints(&self, expected: &str, within: Duration) {
        let messages = self.lines.recv_timeout(within);
        assert_eq!(messages.as_deref(), Ok(expected));
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs until it is killed, or the test that started it is gone.
async fn follow(url: String, namespace: String) {
    let own = PolicyRegistry::new().with(bucket("p", 1, 1));
    let replica = Replica::new(Limiter::redis(url).registry(&own), &namespace);
    let registry = replica.limits.registry();
    loop {
        let revision = registry.revision();
        let messages = capacity(registry).unwrap();
        if writeln!(std::io::stdout(), "registry: {messages}").is_err() {
            return;
        }
        registry.changed(revision).await;
    }
}

/// Starts the test's own program again as follower processes, configured by the environment.
#[tokio::test]
async fn processes_follow_the_registry() {
    if let (Ok(url), Ok(namespace)) = (std::env::var(URL), std::env::var(NAMESPACE)) {
        return follow(url, namespace).await;
    }
    let (server, namespace) = (RedisServer::start(), namespace());
    let followers = [(); 2].map(|()| Follower::start(&server.url(), &namespace));
    for follower in &followers {
        follower.prints("1", secs(30));
    }
    let limits = Limiter::redis(server.url())
        .namespace(&namespace)
        .build()
        .unwrap();
    let store = limits.redis_registry().unwrap();
    let mut revision = 0;
    for capacity in [2, 3, 4] {
        revision = store.publish(&sized(capacity), revision).await.unwrap();
        let published = Instant::now();
        for follower in &followers {
            follower.prints(&capacity.to_string(), SOON.saturating_sub(published.elapsed()));
        }
        println!("revision {revision} is followed after {:?}", published.elapsed());
    }

    // The server restarts without its data: the last registry remains in force.
    server.kill();
    assert!(matches!(
        store.publish(&sized(5), revision).await,
        Err(RegistryError::Store(_))
    ));
    server.restart();
    limits.ready().await.unwrap();
    assert!(limits.check(&patient(), "k").await.is_ok());
    for follower in &followers {
        let messages = follower.lines.recv_timeout(2 * SOON);
        assert_eq!(messages, Err(mpsc::RecvTimeoutError::Timeout));
    }
    assert_eq!(
        store.read().await.unwrap(),
        None,
        "the server has lost the registry"
    );

    // A replica without a previous registry accepts the new one.
    let other = Limiter::redis(server.url())
        .namespace(&namespace)
        .build()
        .unwrap();
    let again = other
        .redis_registry()
        .unwrap()
        .publish(&sized(6), 0)
        .await
        .unwrap();
    assert!(again > revision);
    for follower in &followers {
        follower.prints("6", 2 * SOON);
    }
}
