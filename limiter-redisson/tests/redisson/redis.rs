//! Effects on the server.

use limiter_core::registry::PolicyRegistry;
use limiter_core::{Limiter, Rejection};
use limiter_redisson::{Client, RateType};
use limiter_testing::{RedisServer, RespValue};
use tokio::time::{Instant, sleep};

use crate::configured;
use crate::support::{millis, namespace, secs, window};

fn limiter(server: &RedisServer, namespace: &str) -> Limiter {
    Limiter::redis(server.url()).namespace(namespace).build().unwrap()
}

/// Every key with all that it holds.
fn all(server: &RedisServer) -> Vec<(String, String)> {
    let keys = server.command(&["KEYS", "*"]);
    let mut names: Vec<String> = keys.items().iter().map(RespValue::text).collect();
    names.sort();
    // Replicas and subscribers of the registry are registered in the background.
    names.retain(|name| !name.contains("|replicas") && !name.contains("subscribers"));
    let dump = |name: String| {
        let held = format!("{:?}", server.command(&["DUMP", &name]));
        (name, held)
    };
    names.into_iter().map(dump).collect()
}

#[tokio::test]
async fn peeks_write_nothing() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let limits = limiter(&server, &namespace);
    let p = configured(&limits, RateType::Overall, 5, "1h").await;
    assert!(p.try_acquire(2).await.unwrap());
    let unused = configured_besides(&limits).await;
    let before = all(&server);
    let unknown = Client::new(&limits).rate_limiter("unknown");
    for _ in 0..10 {
        assert_eq!(p.available_permits().await.unwrap(), 3);
        assert_eq!(unused.available_permits().await.unwrap(), 1_000);
        assert!(p.config().await.unwrap().is_some() && p.exists().await.unwrap());
        assert_eq!(p.remaining_ttl().await.unwrap(), None);
        assert!(unknown.available_permits().await.is_err() && !unknown.exists().await.unwrap());
        assert!(!unknown.expire(secs(1)).await.unwrap() && !unknown.delete().await.unwrap());
        assert!(!p.try_set_rate(RateType::Overall, 1, "1s").await.unwrap());
    }
    assert_eq!(all(&server), before);
}

async fn configured_besides(limits: &Limiter) -> limiter_redisson::RateLimiter {
    let unused = Client::new(limits).rate_limiter("unused");
    unused.set_rate(RateType::PerClient, 1_000, "1h").await.unwrap();
    unused
}

#[tokio::test]
async fn usage_expires_independent_of_configuration() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let p = configured(&limiter(&server, &namespace), RateType::Overall, 5, "10s").await;
    let ttl = || {
        let keys = server.command(&["KEYS", "*|sw*|p|*"]);
        let [key] = keys.items() else {
            unreachable!("{keys:?}")
        };
        server.command(&["PTTL", &key.text()]).integer()
    };
    assert!(p.try_acquire(1).await.unwrap());
    let used = ttl();
    assert!((1..=11_000).contains(&used), "{used}");
    assert!(p.expire(secs(3_600)).await.unwrap() && p.clear_expire().await.unwrap());
    let later = ttl();
    assert!((1..=used).contains(&later), "{later} of {used}");
    assert!(p.expire(millis(0)).await.unwrap());
    assert!(!p.exists().await.unwrap());
    assert!((1..=later).contains(&ttl()));
}

#[tokio::test]
async fn unconfigured_calls_query_redis_rarely() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let limits = limiter(&server, &namespace);
    limits.ready().await.unwrap();
    // The log of slow commands lists each command with its keys: all of them at a bound of 0.
    for (setting, value) in [("slowlog-max-len", "10000"), ("slowlog-log-slower-than", "0")] {
        server.command(&["CONFIG", "SET", setting, value]);
    }
    let registers_subscriber = |arguments: &RespValue| {
        let mut arguments = arguments.items().iter();
        arguments.any(|argument| argument.bytes().ends_with(b"|subscribers"))
    };
    let scripts = || {
        let log = server.command(&["SLOWLOG", "GET", "-1"]);
        // An entry is its number, time, duration and command, and the client.
        let commands = log.items().iter().filter_map(|entry| entry.items().get(3));
        let scripts = commands.filter(|arguments| {
            let name = arguments.items().first().map(RespValue::text);
            let is_script = name.is_some_and(|name| name.to_lowercase().starts_with("eval"));
            is_script && !registers_subscriber(arguments)
        });
        u64::try_from(scripts.count()).unwrap()
    };
    let client = Client::new(&limits);
    let (before, began) = (scripts(), Instant::now());
    for number in 0..2_000 {
        let unknown = client.rate_limiter(format!("p{}", number % 7));
        let refused = unknown.try_acquire(1).await;
        assert!(
            matches!(refused, Err(Rejection::NotConfigured { .. })),
            "{refused:?}"
        );
    }
    let quarters = u64::try_from(began.elapsed().as_millis() / 250).unwrap();
    let queries = scripts() - before;
    assert!(
        queries <= 2 * quarters + 6,
        "{queries} in {quarters} quarters of a second"
    );
}

#[tokio::test]
async fn last_known_usage_counts_in_outage() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let limits = Limiter::redis(server.url()).namespace(&namespace).replicas(1);
    let limits = limits.build().unwrap();
    let client = Client::new(&limits);
    let p = client.rate_limiter("p");
    assert!(p.try_set_rate(RateType::Overall, 5, "1h").await.unwrap());
    assert!(p.try_acquire(1).await.is_ok());
    server.kill();
    assert!(p.try_acquire(1).await.is_ok(), "by this replica's share");
    assert_eq!(p.config().await.unwrap().unwrap().rate, 5);
    assert!(p.exists().await.unwrap());
    for unavailable in [
        client.rate_limiter("q").try_acquire(1).await.map(drop),
        client.rate_limiter("q").exists().await.map(drop),
        client.rate_limiter("q").try_acquire(1).await.map(drop),
        p.update_rate(RateType::Overall, 6, "1h").await,
    ] {
        assert!(
            matches!(unavailable, Err(Rejection::Unavailable { .. })),
            "{unavailable:?}"
        );
    }
    assert_eq!(p.config().await.unwrap().unwrap().rate, 5);

    // The server restarts without data: the next change of one name restores all names.
    server.restart();
    let q = client.rate_limiter("q");
    let set = async {
        while q.set_rate(RateType::Overall, 7, "1h").await.is_err() {
            sleep(millis(10)).await;
        }
    };
    tokio::time::timeout(secs(10), set).await.unwrap();
    let other = Client::new(&limiter(&server, &namespace)).rate_limiter("p");
    assert_eq!(other.config().await.unwrap().unwrap().rate, 5);
    let refused = other.try_set_rate(RateType::Overall, 1, "1h").await;
    assert!(!refused.unwrap());
}

#[tokio::test]
async fn registry_edit_sets_rate() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let limits = limiter(&server, &namespace);
    let p = configured(&limits, RateType::PerClient, 5, "1h").await;
    p.expire(secs(7_200)).await.unwrap();
    let store = limits.redis_registry().unwrap();
    let (revision, text) = store.read().await.unwrap().unwrap();
    assert!(text.contains("rate_type = \"per_client\"\n"), "{text}");
    assert!(text.contains("deadline = \"30s\"\n"), "settings are kept: {text}");
    let edited = text.replace("limit = 5", "limit = 9");
    store.publish(&edited, revision).await.unwrap();
    let config = p.config().await.unwrap().unwrap();
    assert_eq!((config.rate, config.rate_type), (9, RateType::PerClient));
    assert!(p.remaining_ttl().await.unwrap().is_some());

    let revision = limits.registry().published().unwrap();
    let bucket = "policy.p = { algorithm = 'token_bucket', capacity = 9, rate = '1/h', deadline = '30s' }";
    store.publish(bucket, revision).await.unwrap();
    assert!(p.try_acquire(9).await.unwrap() && !p.try_acquire(1).await.unwrap());
    let refused = p.update_rate(RateType::Overall, 5, "1h").await.unwrap_err();
    assert!(
        refused
            .diagnostic()
            .to_string()
            .contains("expected a sliding window"),
        "{refused}"
    );
    p.set_rate(RateType::Overall, 5, "1h").await.unwrap();
    assert_eq!(p.available_permits().await.unwrap(), 5);
}

#[tokio::test]
async fn policy_of_other_source_is_changed_not_deleted() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let registry = PolicyRegistry::new().with(window("p", 5, "1h"));
    let limits = Limiter::redis(server.url())
        .namespace(&namespace)
        .registry(&registry);
    let p = Client::new(&limits.build().unwrap()).rate_limiter("p");
    assert!(p.exists().await.unwrap());
    assert!(!p.try_set_rate(RateType::Overall, 9, "1h").await.unwrap());
    let refused = p.delete().await.unwrap_err();
    assert!(
        refused
            .diagnostic()
            .to_string()
            .contains("expected a policy that Redis contains"),
        "{refused}"
    );
    p.update_rate(RateType::Overall, 6, "1h").await.unwrap();
    assert_eq!(p.available_permits().await.unwrap(), 6);
    assert!(p.try_acquire(6).await.unwrap());
    assert!(p.delete().await.unwrap());
    assert_eq!(
        p.available_permits().await.unwrap(),
        5,
        "the program's rate applies again"
    );
}

#[tokio::test]
async fn concurrent_name_lookups_share_one_reply() {
    let (server, namespace) = (RedisServer::start(), namespace());
    let limits = limiter(&server, &namespace);
    limits.ready().await.unwrap();
    let client = Client::new(&limits);
    server.pause();
    let began = Instant::now();
    let calls = (0..20).map(|number| {
        let unknown = client.rate_limiter(format!("p{number}"));
        tokio::spawn(async move { unknown.try_acquire(1).await })
    });
    for call in calls.collect::<Vec<_>>() {
        let refused = call.await.unwrap();
        assert!(
            matches!(refused, Err(Rejection::Unavailable { .. })),
            "{refused:?}"
        );
    }
    assert!(began.elapsed() < millis(1_500), "{:?}", began.elapsed());
    server.resume();
}
