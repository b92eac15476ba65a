//! Sizes of keys in Redis that are no plain state of an algorithm.

use std::time::Duration;

use limiter_core::penalty::Penalty;
#[cfg(feature = "registry")]
use limiter_core::registry::{KeyOverride, PolicyRegistry};
use limiter_core::{Limiter, Policy};
use limiter_testing::{RedisServer, RespValue};

use super::table;

const PATIENCE: Duration = Duration::from_secs(5);

fn limiter(server: &RedisServer) -> Limiter {
    Limiter::redis(server.url())
        .namespace("prod:checkout")
        .build()
        .unwrap()
}

/// Measures all elements: by default the server measures five and extrapolates, and the nodes of a
/// sorted set differ in size at random.
fn usage(server: &RedisServer, key: &str) -> i64 {
    server
        .command(&["MEMORY", "USAGE", key, "SAMPLES", "0"])
        .integer()
}

/// The column of the engine in a table of sizes, after the first one.
fn engine_column(server: &RedisServer) -> usize {
    let info = server.command(&["INFO", "server"]).text();
    let value = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    match (value("valkey_version:"), value("redis_version:").unwrap()) {
        (Some(_), _) => 4,
        (None, version) if version.starts_with("6.") => 1,
        (None, version) if version.starts_with("7.") => 2,
        (None, _) => 3,
    }
}

/// Releases of Redis and of its allocator differ a little.
fn is_about(result: &str, used: i64) -> bool {
    let result: i64 = result.parse().unwrap();
    (result * 85 / 100..=result * 115 / 100).contains(&used)
}

#[tokio::test]
async fn held_permits_take_documented_bytes() {
    let server = RedisServer::start();
    let limits = limiter(&server);
    let policy = Policy::concurrency("export").max(2_000).build().unwrap();
    let key = "prod:checkout|cc|export|{tenant:00000001}";
    let (mut held, column) = (Vec::new(), engine_column(&server));
    for row in table("Concurrency") {
        let permits: usize = row[0].parse().unwrap();
        while held.len() < permits {
            held.push(
                limits
                    .acquire_concurrency(&policy, "tenant:00000001")
                    .await
                    .unwrap(),
            );
        }
        assert_eq!(server.command(&["TYPE", key]).text(), "zset");
        let now = usage(&server, key);
        assert!(is_about(&row[column], now), "{row:?}, but {now}");
    }
    assert!(!held.is_empty());
    // A key without held permits is removed.
    drop(held);
    limits.shutdown(PATIENCE).await;
    assert_eq!(server.command(&["EXISTS", key]).integer(), 0);
}

#[tokio::test]
async fn penalties_take_documented_keys_and_bytes() {
    let server = RedisServer::start();
    let limits = limiter(&server);
    let policy = Policy::token_bucket("login")
        .capacity(1)
        .rate("1/h")
        .penalty(Penalty::after(10, "1m").block_for("15m"))
        .build()
        .unwrap();
    let rows = table("Penalties");
    let [limit, count, block] = &rows[..] else {
        panic!("{rows:?}")
    };
    let key_of =
        |row: &[String], user: &str| format!("prod:checkout|{}|{{{user}}}", row[1].trim_matches('`'));
    let are_documented = |rows: [&[String]; 2], user: &str| {
        let keys = server.command(&["KEYS", &format!("*{{{user}}}")]);
        let mut keys: Vec<String> = keys.items().iter().map(RespValue::text).collect();
        keys.sort();
        assert_eq!(keys, rows.map(|row| key_of(row, user)));
        for (row, key) in rows.iter().zip(keys) {
            let length = server.command(&["STRLEN", &key]).integer();
            assert_eq!(length.to_string(), row[2], "{row:?}");
            let now = usage(&server, &key);
            assert!(is_about(&row[3], now), "{row:?}, but {now}");
        }
    };

    // The last of ten denials blocks, and the block takes the count's place.
    for call in 0..=10 {
        let decision = limits.check(&policy, "user:00000001").await.unwrap();
        assert_eq!(decision.is_blocked(), call == 10);
    }
    are_documented([block, limit], "user:00000001");

    // One call less; the shutdown of a limiter reports all denials.
    for _ in 0..10 {
        let decision = limits.check(&policy, "user:00000002").await.unwrap();
        assert!(!decision.is_blocked());
    }
    limits.shutdown(PATIENCE).await;
    are_documented([count, limit], "user:00000002");
}

#[cfg(feature = "registry")]
#[test]
fn key_override_takes_documented_bytes() {
    const KEYS: usize = 1_000;
    let search = |capacity: u32| {
        let policy = Policy::token_bucket("search").capacity(capacity).rate("100/s");
        policy.build().unwrap()
    };
    let registry = PolicyRegistry::new().with(search(20));
    let before = registry.to_toml().len();
    for number in 0..KEYS {
        let own = KeyOverride::new(search(200), format!("user:{number:08}"));
        registry.set_override(own).unwrap();
    }
    let each = (registry.to_toml().len() - before) / KEYS;
    let (_, result) = super::PAGE.split_once("Each override takes about ").unwrap();
    let (result, _) = result.split_once(" bytes").unwrap();
    assert!(is_about(result, each.try_into().unwrap()), "{result}, but {each}");
}
