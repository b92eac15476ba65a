//! What is said at `ready` about servers that evict live limits.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use limiter_core::Limiter;
use limiter_testing::{RedisCluster, RedisServer};

use support::log::Warnings;
use support::namespace;

/// What is said while a limiter becomes ready, twice.
async fn said(limits: Limiter) -> Vec<String> {
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
async fn a_server_that_evicts_is_told_of_once_with_the_mend() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let server = server("64mb", policy);
        let said = said(limiter(server.url_as(""))).await;
        assert_eq!(said.len(), 1, "{said:?}");
        for part in [
            &format!("127.0.0.1:{}", server.port()),
            "maxmemory=67108864",
            &format!("maxmemory_policy=\"{policy}\""),
            "set maxmemory-policy to noeviction",
        ] {
            assert!(said.concat().contains(part), "{part}: {said:?}");
        }
    }
}

#[tokio::test]
async fn nothing_is_said_where_nothing_is_evicted_or_nothing_is_known() {
    for (maxmemory, policy) in [("64mb", "noeviction"), ("0", "allkeys-lru")] {
        let server = server(maxmemory, policy);
        assert!(said(limiter(server.url_as(""))).await.is_empty(), "{policy}");
    }
    // The user with the least permissions may not ask.
    let server = server("64mb", "allkeys-lru");
    assert!(said(limiter(server.url())).await.is_empty());
}

#[tokio::test]
async fn each_node_of_a_cluster_is_looked_at() {
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
    let said = said(limits).await;
    assert_eq!(said.len(), 2, "{said:?}");
}
