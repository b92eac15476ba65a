//! The registry of a namespace in Redis: published by one replica, followed by all.
#![cfg(feature = "registry")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::print_stdout, reason = "how long it took is worth knowing")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use limiter_core::registry::{
    Block, BlockTarget, KeyOverride, PolicyRegistry, RedisRegistry, RedisSubscription, RegistryError,
    Suspension, SuspensionMode,
};
use limiter_core::{Inheritance, Limiter, ManualClock, Origin, RedisBuilder, StoreErrorKind};
use limiter_testing::log::Warnings;
use limiter_testing::{RedisCluster, RedisSentinel, RedisServer, acl};
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

#[tokio::test]
async fn invalid_registry_in_redis_is_reported_and_ignored() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let replica = Replica::new(Limiter::redis(server.url()), &namespace);
    let key = format!("{namespace}|book").replace(' ', "%20");
    let revision = replica.store.publish(&sized(2), 0).await.unwrap();
    let by_hand = |text: String| {
        server.command(&["SET", &key, &text]);
    };
    let result = |expected: String| {
        move |error: Option<RegistryError>| error.is_some_and(|error| error.to_string() == expected)
    };
    let later = revision + 1_000_000;
    let broken = sized(3).replace("\"1/h\"", "1/h");
    by_hand(format!("revision = {later}\n{broken}"));
    let message = format!("{key}:5:8: 1/h is not a value, expected text in quotes: \"1/h\"");
    replica.reports("an error", result(message.clone())).await;
    by_hand(sized(3));
    let expected = "no revision, expected a first line such as `revision = 7`, with a higher one than before";
    replica
        .reports("no revision", result(format!("{key}:1:1: {expected}")))
        .await;
    by_hand(format!("revision = 7\n{}", sized(3)));
    let older = format!("the registry has revision 7, expected {revision} or a later one: publish it again");
    replica.reports("older", result(older)).await;
    server.command(&["DEL", &key]);
    let gone = format!("the registry has revision 0, expected {revision} or a later one: publish it again");
    replica.reports("gone", result(gone)).await;
    server.command(&["HSET", &key, "revision", "9"]);
    replica
        .reports(
            "another type",
            |error| matches!(error, Some(RegistryError::Store(error)) if error.kind() == StoreErrorKind::WrongType),
        )
        .await;
    assert_eq!(capacity(replica.limits.registry()), Some(2));
    assert_eq!(replica.limits.registry().published(), Some(revision));

    by_hand(format!("revision = {later}\n{}", sized(3)));
    replica.has(3, SOON).await;
    replica.reports("nothing", |error| error.is_none()).await;
    assert_eq!(replica.limits.registry().published(), Some(later));
    // The server's clock is behind the revision that was written by hand.
    assert_eq!(replica.store.publish(&sized(4), later).await.unwrap(), later + 1);
}

/// A user with no more permissions than these, on the keys of this namespace.
fn user(server: &RedisServer, namespace: &str, permissions: &[&str]) -> String {
    let keys = format!("~{namespace}|*");
    let user = ["ACL", "SETUSER", "checkout", "reset", "on", ">secret", &keys];
    server.command(&[&user, permissions].concat());
    server.url_as("checkout:secret")
}

fn refused(server: &RedisServer) -> usize {
    server.command(&["ACL", "LOG"]).items().len()
}

#[tokio::test]
async fn limiter_permissions_suffice_for_registry() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let url = user(&server, &namespace, acl::SCRIPT);
    let replicas = [(); 2].map(|()| Replica::new(Limiter::redis(&url), &namespace));
    let [one, other] = &replicas;
    let revision = one.store.publish(&sized(2), 0).await.unwrap();
    other.has(2, SOON).await;
    one.store.publish(&sized(3), revision).await.unwrap();
    other.has(3, SOON).await;
    assert!(refused(&server) > 0, "the subscription is refused");
}

#[tokio::test]
async fn pubsub_permissions_deliver_changes_at_once() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let channel = format!("&{namespace}|book");
    // Before Redis 7 a new user may use all channels.
    let more = [acl::SCRIPT, acl::REGISTRY, &["resetchannels", &channel]].concat();
    let url = user(&server, &namespace, &more);
    let replica = Replica::new(Limiter::redis(&url), &namespace);
    let listens = || async {
        let subscribers = || {
            let result = server.command(&["PUBSUB", "NUMSUB", &format!("{namespace}|book")]);
            result.items().last().unwrap().integer()
        };
        let listening = async {
            while subscribers() == 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(secs(5), listening).await.unwrap();
    };
    listens().await;
    let other = Limiter::redis(&url).namespace(&namespace).build().unwrap();
    let store = other.redis_registry().unwrap();
    let revision = store.publish(&sized(2), 0).await.unwrap();
    replica.has(2, SOON).await;
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    listens().await;
    store.publish(&sized(3), revision).await.unwrap();
    replica.has(3, SOON).await;
    assert_eq!(refused(&server), 0);
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

/// Each published text starts with a line with its revision, so a second revision line is rejected.
#[tokio::test]
async fn unreadable_text_is_not_published() {
    let namespace = namespace();
    let [one, other] =
        [(); 2].map(|()| Replica::new(Limiter::redis(RedisServer::shared().url()), &namespace));
    for (first, place) in [
        ("# limits\nrevision = 5\n", "text:2:1: "),
        ("revision=5\n", "text:1:1: "),
        ("revision = 1_000\n", "text:1:1: "),
        ("revision = 5\nrevision = 6\n", "text:2:1: "),
        ("\u{feff}", "text:1:1: "),
    ] {
        let refused = one.store.publish(&format!("{first}{}", sized(9)), 0).await;
        let result = refused.unwrap_err().to_string();
        assert!(result.starts_with(place), "{first:?}: {result}");
    }
    let broken = sized(9).replace("1/h", "10");
    for (first, line) in [("", 4), ("revision = 5\n", 5), ("revision = 5\r\n", 5)] {
        let refused = one.store.publish(&format!("{first}{broken}"), 0).await;
        let result = refused.unwrap_err().to_string();
        assert!(
            result.starts_with(&format!("text:{line}:8: policy.p.rate ")),
            "{first:?}: {result}"
        );
    }
    let mut revision = 0;
    for (first, capacity) in [("revision = 5\n", 2), ("revision = 5\r\n", 3)] {
        let text = format!("{first}{}", sized(capacity));
        revision = one.store.publish(&text, revision).await.unwrap();
        other.has(capacity, SOON).await;
    }
    revision = one.store.publish("revision = 5", revision).await.unwrap();
    assert_eq!(other.store.read().await.unwrap(), Some((revision, String::new())));
}

/// Returns a counter of the server's INFO.
fn stat(server: &RedisServer, section: &str, name: &str) -> u64 {
    let info = server.command(&["INFO", section]).text();
    let line = info.lines().find_map(|line| line.strip_prefix(name));
    let digits = line.unwrap_or("0").split([',', '\r']).next().unwrap();
    digits.parse().unwrap()
}

#[tokio::test]
async fn rejected_text_is_not_fetched_again() {
    const LENGTH: u64 = 1 << 20;
    let (server, namespace) = (RedisServer::start(), namespace());
    let key = format!("{namespace}|book");
    let replica = Replica::new(Limiter::redis(server.url()), &namespace);
    replica.store.publish(&sized(2), 0).await.unwrap();
    let revision = replica.limits.registry().published().unwrap();
    let comment = "#".repeat(usize::try_from(LENGTH).unwrap());
    let by_hand = |revision: u64, text: String| {
        server.command(&["SET", &key, &format!("revision = {revision}\n{text}\n{comment}")]);
    };
    by_hand(revision + 1_000_000, sized(3).replace("\"1/h\"", "1/h"));
    let is_refused = |error| matches!(error, Some(RegistryError::Parse { .. }));
    replica.reports("an error", is_refused).await;
    let sent = || stat(&server, "stats", "total_net_output_bytes:");
    let looks = || stat(&server, "commandstats", "cmdstat_getrange:calls=");
    let (sent_before, looks_before) = (sent(), looks());
    let looked = async {
        while looks() < looks_before + 3 {
            tokio::time::sleep(millis(50)).await;
        }
    };
    timeout(secs(30), looked).await.unwrap();
    assert!(sent() - sent_before < LENGTH, "{} bytes", sent() - sent_before);
    replica.reports("the error", is_refused).await;

    // Later than the revision in force, but not than the rejected one.
    by_hand(revision + 500_000, sized(4));
    replica.has(4, SOON).await;
    replica.reports("nothing", |error| error.is_none()).await;
    assert_eq!(replica.limits.registry().published(), Some(revision + 500_000));
}

#[tokio::test]
async fn invalid_registry_is_reported_again_after_outage() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let key = format!("{namespace}|book");
    let replica = Replica::new(Limiter::redis(server.url()), &namespace);
    server.command(&["SET", &key, "revision = 7\n[policy.p]"]);
    let is_invalid = |error| matches!(error, Some(RegistryError::Parse { .. }));
    replica.reports("an error", is_invalid).await;
    server.pause();
    let is_outage = |error| matches!(error, Some(RegistryError::Store(_)));
    replica.reports("an outage", is_outage).await;
    server.resume();
    replica.reports("the error", is_invalid).await;
}

#[tokio::test]
async fn handwritten_text_accepts_every_line_ending() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let key = format!("{namespace}|book");
    let replica = Replica::new(Limiter::redis(server.url()), &namespace);
    let by_hand = |text: &str| server.command(&["SET", &key, text]);
    by_hand(&format!("revision = 7\r\n{}", sized(3).replace('\n', "\r\n")));
    replica.has(3, SOON).await;
    by_hand("revision = 999999999999998");
    replica.has_none(SOON).await;
    assert_eq!(replica.limits.registry().published(), Some(999_999_999_999_998));
    assert_eq!(
        replica.store.read().await.unwrap(),
        Some((999_999_999_999_998, String::new()))
    );
    for end in ["\n", "\r\n", ""] {
        for too_high in [
            "9007199254740992",
            "9007199254740993",
            "17637760000000000",
            "18446744073709551616",
        ] {
            by_hand(&format!("revision = {too_high}{end}"));
            let result = format!("{key}:1:1: the revision is too high, expected at most 9007199254740991");
            replica
                .reports("too high", |error| {
                    error.is_some_and(|error| error.to_string().starts_with(&result))
                })
                .await;
        }
        by_hand(&format!("revision = 7 {end}"));
        let result = format!("{key}:1:1: no revision, expected");
        replica
            .reports("none", |error| {
                error.is_some_and(|error| error.to_string().starts_with(&result))
            })
            .await;
    }
}

/// A handwritten maximum revision either leaves a successor for later publications or is rejected.
#[tokio::test]
async fn publication_at_maximum_revision_is_readable_or_rejected() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let key = format!("{namespace}|book");
    let [one, other] = [(); 2].map(|()| Replica::new(Limiter::redis(server.url()), &namespace));
    let by_hand =
        |revision: u64| server.command(&["SET", &key, &format!("revision = {revision}\n{}", sized(2))]);
    let mut known = 999_999_999_999_999;
    by_hand(known);
    one.has(2, SOON).await;
    for capacity in [3, 4] {
        known = one.store.publish(&sized(capacity), known).await.unwrap();
        other.has(capacity, SOON).await;
    }
    assert_eq!(known, 1_000_000_000_000_001);

    by_hand(9_007_199_254_740_990);
    one.has(2, SOON).await;
    known = one.store.publish(&sized(5), 9_007_199_254_740_990).await.unwrap();
    assert_eq!(known, 9_007_199_254_740_991);
    other.has(5, SOON).await;
    let refused = other.store.publish(&sized(6), known).await.unwrap_err();
    let result = "revision 9007199254740991 is the maximum: write the text by hand with a lower revision";
    assert!(refused.to_string().contains(result), "{refused}");
    assert_eq!(one.store.read().await.unwrap(), Some((known, sized(5))));
}

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

/// The text of two policies, each with the quota of a key; `p` also has these lines.
fn two(capacity: u64, of_p: &str) -> String {
    let policies = sized(capacity).replace("[policy.p]\n", &format!("[policy.p]\n{of_p}"));
    let other = sized(capacity).replace("policy.p", "policy.other");
    let own = |name: &str| {
        format!("[[override]]\npolicy = '{name}'\nkey = 'ann'\ncapacity = {capacity}00\nrate = 1\n")
    };
    format!("{policies}{other}{}{}", own("p"), own("other"))
}

fn other(registry: &PolicyRegistry) -> u64 {
    registry.get("other").unwrap().policy().quota().whole()
}

/// The quotas of the key, by policy.
fn own(registry: &PolicyRegistry) -> [Vec<u64>; 2] {
    ["p", "other"].map(|name| {
        let own = registry.overrides(name);
        own.iter().map(|own| own.policy().quota().whole()).collect()
    })
}

/// Writes a text as a newer program would, and waits until the replica has it, or has rejected it.
async fn published_by_a_newer_program(replica: &Replica, server: &RedisServer, namespace: &str, text: &str) {
    let before = replica
        .store
        .read()
        .await
        .unwrap()
        .map_or(0, |(revision, _)| revision);
    let text = format!("revision = {}\n{text}", before + 1);
    server.command(&["SET", &format!("{namespace}|book"), &text]);
    server.command(&["PUBLISH", &format!("{namespace}|book"), "1"]);
}

#[tokio::test]
async fn unreadable_policy_alone_keeps_its_previous_version() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let replica = Replica::new(Limiter::redis(server.url()), &namespace);
    let registry = replica.limits.registry();
    replica.store.publish(&two(2, ""), 0).await.unwrap();

    let newer = two(3, "").replacen("token_bucket", "quantum", 1);
    published_by_a_newer_program(&replica, &server, &namespace, &newer).await;
    let partly = |error: Option<RegistryError>| {
        error.is_some_and(|error| error.to_string().contains("policy.p.algorithm is \"quantum\""))
    };
    replica.reports("one policy is rejected", partly).await;
    assert_eq!((capacity(registry), other(registry)), (Some(2), 3));
    assert_eq!(own(registry), [[200], [300]]);

    // The error remains while this text applies; a restarted reader without a previous version has
    // only the other policy.
    assert!(replica.source.synced().await.is_err());
    let late = Replica::new(Limiter::redis(server.url()), &namespace);
    assert!(matches!(
        late.source.synced().await,
        Err(RegistryError::Parse { .. })
    ));
    assert_eq!(
        (capacity(late.limits.registry()), other(late.limits.registry())),
        (None, 3)
    );

    // A key override belongs to its policy.
    let newer = two(4, "").replacen("capacity = 400\n", "capacity = 'many'\n", 1);
    published_by_a_newer_program(&replica, &server, &namespace, &newer).await;
    let of_key = |error: Option<RegistryError>| {
        error.is_some_and(|error| error.to_string().contains("override[0].capacity"))
    };
    replica.reports("the quota of a key is rejected", of_key).await;
    assert_eq!((capacity(registry), other(registry)), (Some(2), 4));
    assert_eq!(own(registry), [[200], [400]]);

    // A policy that changes between rate and concurrency is also rejected.
    let turned = two(5, "").replacen(
        "algorithm = \"token_bucket\"\ncapacity = 5\nrate = \"1/h\"",
        "algorithm = \"concurrency\"\nmax = 5",
        1,
    );
    let turned = turned.replacen(
        "[[override]]\npolicy = 'p'\nkey = 'ann'\ncapacity = 500\nrate = 1\n",
        "",
        1,
    );
    published_by_a_newer_program(&replica, &server, &namespace, &turned).await;
    let of_kind = |error: Option<RegistryError>| {
        error.is_some_and(|error| error.to_string().contains("policy `p` changes from"))
    };
    replica
        .reports("a policy of another kind is rejected", of_kind)
        .await;
    assert_eq!((capacity(registry), other(registry)), (Some(2), 5));

    published_by_a_newer_program(&replica, &server, &namespace, &two(6, "")).await;
    replica.reports("all is well", |error| error.is_none()).await;
    assert_eq!((capacity(registry), other(registry)), (Some(6), 6));
    assert_eq!(own(registry), [[600], [600]]);
}

#[tokio::test]
async fn unknown_fields_warn_subscriber_and_fail_publisher() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let (server, namespace) = (RedisServer::start(), namespace());
    let replica = Replica::new(Limiter::redis(server.url()), &namespace);
    let newer = format!("[[tariff]]\npolicy = 'p'\n{}", two(2, "colour = 'red'\n"));
    let strict = replica.store.publish(&newer, 0).await.unwrap_err().to_string();
    assert!(
        strict.contains("tariff is unknown") && strict.contains("policy.p.colour is unknown"),
        "{strict}"
    );

    published_by_a_newer_program(&replica, &server, &namespace, &newer).await;
    replica.has(2, SOON).await;
    replica.reports("the text applies", |error| error.is_none()).await;
    let about = || {
        let warnings = warnings.all().into_iter();
        let about: Vec<String> = warnings
            .filter(|warning| warning.contains("unknown fields"))
            .collect();
        about
    };
    let result = about();
    assert_eq!(result.len(), 1, "{result:?}");
    assert!(
        result.concat().contains("tariff is unknown")
            && result.concat().contains("policy.p.colour is unknown"),
        "{result:?}"
    );

    // An edit by this version would lose them, also where Redis has lost the text.
    let edited = replica.store.edit(|_| Ok(())).await.unwrap_err().to_string();
    assert!(edited.contains("policy.p.colour is unknown"), "{edited}");
    server.command(&["DEL", &format!("{namespace}|book")]);
    let restored = replica.store.edit(|_| Ok(())).await;
    assert!(
        matches!(restored, Err(RegistryError::Older { found: 0, .. })),
        "{restored:?}"
    );
}

#[tokio::test]
async fn text_for_newer_readers_changes_nothing_and_is_reported() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let replica = Replica::new(Limiter::redis(server.url()), &namespace);
    replica.store.publish(&two(2, ""), 0).await.unwrap();
    let newer = format!("format = 4\nmin_reader = 4\n{}", two(3, ""));
    published_by_a_newer_program(&replica, &server, &namespace, &newer).await;
    let is_newer = |error: Option<RegistryError>| {
        matches!(error, Some(RegistryError::NewerFormat { min_reader: 4, .. }))
    };
    replica.reports("the text needs a newer reader", is_newer).await;
    assert_eq!(
        (
            capacity(replica.limits.registry()),
            other(replica.limits.registry())
        ),
        (Some(2), 2)
    );
    published_by_a_newer_program(
        &replica,
        &server,
        &namespace,
        &newer.replace("min_reader = 4", "min_reader = 1"),
    )
    .await;
    replica.has(3, SOON).await;
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
