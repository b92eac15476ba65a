//! Log messages of `ready` about servers that evict live limits.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use limiter_core::Limiter;
use limiter_testing::{RedisCluster, RedisServer};

use limiter_testing::log::Warnings;
use support::namespace;

/// Collects the log messages while a limiter becomes ready, twice.
async fn messages(limits: Limiter) -> Vec<String> {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    for _ in 0..2 {
        limits.ready().await.unwrap();
    }
    warnings.all()
}

fn server(maxmemory: &str, policy: &str) -> RedisServer {
    RedisServer::builder()
        .arg("maxmemory", maxmemory)
        .arg("maxmemory-policy", policy)
        .start()
}

fn limiter(url: String) -> Limiter {
    Limiter::redis(url).namespace(namespace()).build().unwrap()
}

#[tokio::test]
async fn evicting_server_is_reported_once_with_remedy() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let server = server("64mb", policy);
        let messages = messages(limiter(server.url_as(""))).await;
        assert_eq!(messages.len(), 1, "{messages:?}");
        for part in [
            &format!("127.0.0.1:{}", server.port()),
            "maxmemory=67108864",
            &format!("maxmemory_policy=\"{policy}\""),
            "set maxmemory-policy to noeviction",
        ] {
            assert!(messages.concat().contains(part), "{part}: {messages:?}");
        }
    }
}

#[tokio::test]
async fn safe_or_unknown_eviction_policy_is_not_reported() {
    for (maxmemory, policy) in [("64mb", "noeviction"), ("0", "allkeys-lru")] {
        let server = server(maxmemory, policy);
        assert!(messages(limiter(server.url_as(""))).await.is_empty(), "{policy}");
    }
    // The user with the minimum permissions may not call INFO.
    let server = server("64mb", "allkeys-lru");
    assert!(messages(limiter(server.url())).await.is_empty());
}

#[tokio::test]
async fn each_node_of_cluster_is_examined() {
    let cluster = RedisCluster::start();
    for place in [0, 2] {
        for (name, value) in [("maxmemory", "64mb"), ("maxmemory-policy", "allkeys-random")] {
            cluster.node(place).command(&["CONFIG", "SET", name, value]);
        }
    }
    let urls = cluster.nodes().iter().map(|node| node.url_as(""));
    let limits = Limiter::redis_cluster(urls)
        .namespace(namespace())
        .build()
        .unwrap();
    let messages = messages(limits).await;
    assert_eq!(messages.len(), 2, "{messages:?}");
}
