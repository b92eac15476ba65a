//! Connections of a limiter: their runtime, their replacement, and their permissions.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod support;

use std::time::Duration;

use limiter_core::{Limiter, OnStoreFailure, Rejection, StoreErrorKind};
use limiter_testing::{Proxy, RedisServer};
use support::{answers_again, limiter, namespace, patient, policy};

/// Number of connections that the server has accepted, including the one of this query.
fn connections_received(server: &RedisServer) -> u64 {
    let info = server.command(&["INFO", "stats"]).text().to_owned();
    let mut lines = info.lines();
    let count = lines
        .find_map(|line| line.strip_prefix("total_connections_received:"))
        .unwrap();
    count.trim().parse().unwrap()
}

#[tokio::test]
async fn lost_dial_does_not_block_next_dial() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limits = limiter(
        server
            .url()
            .replace(&server.port().to_string(), &proxy.port().to_string()),
    );
    proxy.set_black_hole(true);
    let network = async {
        while proxy.connections() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Data that was sent before this point is lost.
        tokio::time::sleep(Duration::from_millis(20)).await;
        proxy.set_black_hole(false);
    };
    let (ready, ()) = tokio::join!(limits.ready(), network);
    assert!(ready.is_ok(), "{ready:?}");
}

#[tokio::test]
async fn impatient_calls_detect_black_holed_connection() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    limits.ready().await.unwrap();
    server.pause();
    let policy = policy(OnStoreFailure::Error);
    for _ in 0..10 {
        let _ = tokio::time::timeout(Duration::from_millis(20), limits.check(&policy, "k")).await;
    }
    server.resume();
    answers_again(&limits, Duration::from_millis(500)).await;
}

#[test]
fn limiter_outlives_its_first_runtime() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    let policy = policy(OnStoreFailure::Error);
    let on_separate_runtime = |future: std::pin::Pin<Box<dyn Future<Output = ()> + '_>>| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(future);
    };
    // The first runtime ends during a dial.
    server.pause();
    on_separate_runtime(Box::pin(async {
        assert!(limits.check(&policy, "k").await.is_err());
    }));
    server.resume();
    for left in [99, 98, 97] {
        on_separate_runtime(Box::pin(async {
            assert_eq!(limits.check(&patient(), "k").await.unwrap().remaining(), left);
        }));
    }
}

#[test]
fn several_runtimes_use_a_limiter_at_a_time() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    let policy = patient();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    for _ in 0..30 {
                        assert!(limits.check(&policy, "k").await.unwrap().is_allowed());
                    }
                });
            });
        }
    });
    let received = connections_received(&server);
    // Two connections per runtime, and the connection of the test.
    assert!(received <= 3 * 2 + 1, "{received}");
}

/// Some servers have one runtime per worker thread.
#[test]
fn each_runtime_keeps_its_connections() {
    let server = RedisServer::start();
    let builder = Limiter::redis(server.url()).namespace(namespace());
    let limits = builder.connections(1).build().unwrap();
    let runtimes: Vec<_> = (0..80)
        .map(|_| {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
        })
        .collect();
    let round = || {
        for runtime in &runtimes {
            assert!(runtime.block_on(async { limits.check(&patient(), "k").await.is_ok() }));
        }
        connections_received(&server)
    };
    let first = round();
    // The connection of the query itself.
    assert_eq!(round(), first + 1);
    assert_eq!(round(), first + 2);
}

#[test]
fn in_process_call_works_without_runtime() {
    let limits = Limiter::in_process().build();
    let policy = policy(OnStoreFailure::Error);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut check = std::pin::pin!(limits.check(&policy, "k").into_future());
    assert!(check.as_mut().poll(&mut context).is_ready());
}

/// Without stale data, a replica whose primary is unreachable replies MASTERDOWN, otherwise
/// READONLY.
#[tokio::test]
async fn demoted_server_is_replaced_behind_same_address() {
    for serves_stale_data in ["yes", "no"] {
        let server = RedisServer::start();
        server.command(&["CONFIG", "SET", "replica-serve-stale-data", serves_stale_data]);
        let limits = limiter(server.url());
        let policy = patient();
        assert!(limits.check(&policy, "k").await.unwrap().is_allowed());
        let before = connections_received(&server);
        // A replica of a server that does not exist: it refuses writes.
        server.command(&["REPLICAOF", "127.0.0.1", "1"]);
        let refused_for = std::time::Instant::now();
        while refused_for.elapsed() < Duration::from_millis(600) {
            let Err(Rejection::Unavailable { error, .. }) = limits.check(&policy, "k").await else {
                panic!("a replica cannot decide");
            };
            assert_eq!(error.kind(), StoreErrorKind::Refused);
        }
        // Without the connections of the test: for REPLICAOF and for INFO.
        let dialled = connections_received(&server) - before - 2;
        assert!(
            (1..=12).contains(&dialled),
            "the server is dialled again, but not for each call: {dialled}, stale data: {serves_stale_data}"
        );
        server.command(&["REPLICAOF", "NO", "ONE"]);
        answers_again(&limits, Duration::from_millis(500)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_calls_keep_connection_usable() {
    let server = RedisServer::start();
    let builder = Limiter::redis(server.url()).namespace(namespace());
    let limits = builder.deny_cache(Duration::ZERO).build().unwrap();
    limits.ready().await.unwrap();
    let before = connections_received(&server);
    for _ in 0..500 {
        let policy = policy(OnStoreFailure::Error);
        tokio::select! {
            biased;
            _ = limits.check(&policy, "k") => {}
            () = tokio::task::yield_now() => {}
        }
    }
    assert!(
        limits
            .check(&policy(OnStoreFailure::Error), "other")
            .await
            .unwrap()
            .is_allowed()
    );
    // Ours for INFO, and at most the pool's second connection.
    assert!(
        connections_received(&server) - before <= 2,
        "a cancelled call costs no connection"
    );
}

#[tokio::test]
async fn application_pool_provides_settings_only() {
    let server = RedisServer::start();
    let manager = bb8_redis::RedisConnectionManager::new(server.url_as("")).unwrap();
    let pool = bb8_redis::bb8::Pool::builder()
        .max_size(1)
        .build(manager)
        .await
        .unwrap();
    let _taken = pool.get().await.unwrap();
    let limits = Limiter::redis_pool(pool.clone())
        .namespace(namespace())
        .build()
        .unwrap();
    assert!(limits.check(&patient(), "k").await.unwrap().is_allowed());
    server.kill();
    server.restart();
    // The first call on such a connection detects that it is dead.
    for _ in 0..2 {
        let _ = limits.check(&patient(), "k").await;
    }
    assert!(limits.check(&patient(), "k").await.unwrap().is_allowed());
}

#[tokio::test]
async fn limiter_builds_without_server_and_reports_bad_settings() {
    assert!(
        Limiter::redis("redis://127.0.0.1:1/")
            .namespace("n")
            .build()
            .is_ok()
    );
    for (built, message) in [
        (
            Limiter::redis("redis://127.0.0.1:1/").build(),
            "namespace is missing",
        ),
        (
            Limiter::redis("redis://127.0.0.1:1/").namespace("").build(),
            "namespace is ``",
        ),
        (
            Limiter::redis("http://user:secret@h/").namespace("n").build(),
            "redis URL is `…`, expected a URL such as redis://",
        ),
        #[cfg(not(feature = "tls"))]
        (
            Limiter::redis("rediss://user:secret@h/").namespace("n").build(),
            "redis URL is `rediss://…@h/`, expected redis://, or the feature `tls` of limiter-core",
        ),
        (
            Limiter::redis("redis://127.0.0.1:1/")
                .namespace("n")
                .connections(0)
                .build(),
            "connections is `0`",
        ),
        (
            Limiter::redis_cluster(Vec::<String>::new())
                .namespace("n")
                .build(),
            "a URL of a cluster node is missing",
        ),
        (
            Limiter::redis_cluster(["redis://h:1/"])
                .namespace("n")
                .standalone_only()
                .build(),
            "standalone_only",
        ),
    ] {
        let result = built.unwrap_err().to_string();
        assert!(result.contains(message), "{result}");
        assert!(!result.contains("secret"), "{result}");
    }
}

/// All tasks of a limiter end with it, also if Redis does not answer.
#[cfg(feature = "registry")]
#[tokio::test]
async fn dropped_limiter_leaves_no_tasks() {
    use limiter_core::Policy;
    use limiter_core::usage::UsageReporting;
    use limiter_testing::{RedisCluster, RedisSentinel};

    let (server, sentinel) = (RedisServer::start(), RedisSentinel::start());
    let cluster = RedisCluster::builder().start();
    let policies = [
        Policy::token_bucket("leased")
            .capacity(100)
            .rate(1)
            .lease("10s")
            .build(),
        Policy::token_bucket("penalized")
            .capacity(1)
            .rate("1/h")
            .penalty("3 in 1m: 1m")
            .build(),
        Policy::sliding_window("window").limit(100).window("1m").build(),
    ];
    let policies = policies.map(Result::unwrap);
    let workers = Policy::concurrency("workers").max(3).build().unwrap();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for is_out in [false, true] {
        for topology in 0..3 {
            let before = tasks();
            let builder = match topology {
                0 => Limiter::redis(server.url()),
                1 => Limiter::redis_cluster(cluster.urls()),
                _ => Limiter::redis_sentinel(sentinel.urls(), sentinel.primary_url()),
            };
            let builder = builder
                .namespace(namespace())
                .usage(UsageReporting::CountsAndDeniedKeys);
            let limits = builder.build().unwrap();
            let subscription = limits.redis_registry().unwrap().follow();
            subscription.synced().await.unwrap();
            let servers: Vec<&RedisServer> = match topology {
                0 => vec![&server],
                1 => cluster.servers().collect(),
                _ => sentinel.servers().iter().collect(),
            };
            let calls = async || {
                for policy in &policies {
                    for _ in 0..5 {
                        let _decision = limits.check(policy, "k").await;
                    }
                }
            };
            calls().await;
            let permit = limits.acquire_concurrency(&workers, "k").await.unwrap();
            permit.release().await.unwrap();
            if is_out {
                servers.iter().for_each(|server| server.pause());
                calls().await;
                calls().await;
            }
            drop((limits, subscription));
            let ended = async {
                while tasks() > before {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let ended = tokio::time::timeout(Duration::from_secs(15), ended).await;
            servers.iter().for_each(|server| server.resume());
            assert!(
                ended.is_ok(),
                "{} tasks of topology {topology}, {is_out}",
                tasks() - before
            );
        }
    }
}
