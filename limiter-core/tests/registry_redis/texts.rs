//! Texts that are rejected, written by hand or at the maximum revision.

use super::*;

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
pub(crate) fn stat(server: &RedisServer, section: &str, name: &str) -> u64 {
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

/// A replica without its primary rejects reads for the moment: its text is not rejected.
#[tokio::test]
async fn failover_is_not_logged_as_rejected_text() {
    let events = Everything::default();
    let _guard = tracing::subscriber::set_default(events.clone());
    let (server, namespace) = (RedisServer::start(), namespace());
    let replica = Replica::new(Limiter::redis(server.url()), &namespace);
    replica.store.publish(&sized(2), 0).await.unwrap();
    server.command(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let is_rejected = |error: Option<RegistryError>| matches!(error, Some(RegistryError::Store(error)) if error.kind() == StoreErrorKind::Refused);
    replica.reports("failover", is_rejected).await;
    server.command(&["REPLICAOF", "NO", "ONE"]);
    replica.reports("failover ended", |error| error.is_none()).await;
    let mut logged = events.all();
    logged.retain(|event| event.contains("registry in Redis"));
    assert!(logged.is_empty(), "{logged:?}");
}

/// Another program has written a value to the key.
#[tokio::test]
async fn value_of_another_type_is_logged() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let (server, namespace) = (RedisServer::start(), namespace());
    let key = format!("{namespace}|book");
    server.command(&["HSET", &key, "field", "value"]);
    let replica = Replica::new(Limiter::redis(server.url()), &namespace);
    let is_wrong = |error: Option<RegistryError>| matches!(error, Some(RegistryError::Store(error)) if error.kind() == StoreErrorKind::WrongType);
    replica.reports("value of another type", is_wrong).await;
    let logged = async {
        while warnings.about("registry in Redis rejected").is_empty() {
            tokio::task::yield_now().await;
        }
    };
    timeout(secs(5), logged).await.unwrap();
}

/// A missing policy is an error as soon as Redis has sent any reply.
#[tokio::test]
async fn text_without_revision_does_not_hide_missing_policies() {
    let (server, namespace) = (RedisServer::start(), namespace());
    server.command(&["SET", &format!("{namespace}|book"), &sized(2)]);
    let replica = Replica::new(Limiter::redis(server.url()), &namespace);
    let is_unnumbered = |error| matches!(error, Some(RegistryError::Parse { .. }));
    replica.reports("no revision", is_unnumbered).await;
    assert!(limiter_core::__private::names_missing_policy(
        &replica.limits,
        "p"
    ));
}

/// Starts a server, and a replica behind a proxy. The returned registry is not behind the proxy.
fn behind_proxy() -> (RedisServer, Proxy, Replica, RedisRegistry) {
    let (server, namespace) = (RedisServer::start(), namespace());
    let proxy = Proxy::start(server.port());
    let replica = Replica::new(Limiter::redis(proxy.url()), &namespace);
    let direct = Limiter::redis(server.url())
        .namespace(&namespace)
        .build()
        .unwrap();
    let direct = direct.redis_registry().unwrap();
    (server, proxy, replica, direct)
}

/// The whole text takes more than a second, and the replies of decisions follow it on the same
/// connection.
#[tokio::test]
async fn long_text_is_read_over_slow_network() {
    let (_server, proxy, replica, direct) = behind_proxy();
    let revision = direct.publish(&sized(2), 0).await.unwrap();
    replica.has(2, SOON).await;

    proxy.set_reply_rate(1 << 20);
    let text = format!("{}# {}\n", sized(3), "x".repeat(1_500_000));
    direct.publish(&text, revision).await.unwrap();
    let policy = Policy::token_bucket("decided meanwhile")
        .capacity(100_000)
        .rate(1);
    let policy = policy.deadline(millis(400)).build().unwrap();
    let decisions = async {
        loop {
            let decision = replica.limits.check(&policy, "k").await.unwrap();
            assert_eq!(decision.origin(), Origin::Redis, "{:?}", decision.store_error());
            tokio::time::sleep(millis(10)).await;
        }
    };
    tokio::select! {
        () = replica.has(3, secs(10)) => {}
        () = decisions => {}
    }
}

/// The parts of two texts must not be joined.
#[tokio::test]
async fn long_text_that_is_replaced_while_it_is_read_is_read_again() {
    let (_server, proxy, replica, direct) = behind_proxy();
    // The last policy of a text has its capacity.
    let text = |capacity: u64| format!("# {}\n{}", "x".repeat(600_000), sized(capacity));
    let mut revision = direct.publish(&text(2), 0).await.unwrap();
    proxy.set_reply_rate(2 << 20);
    for capacity in 3..8 {
        // Some of the parts of the previous text have been read.
        tokio::time::sleep(millis(100)).await;
        revision = direct.publish(&text(capacity), revision).await.unwrap();
    }
    replica.has(7, secs(10)).await;
    assert_eq!(replica.limits.registry().published(), Some(revision));
}
