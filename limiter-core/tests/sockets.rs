//! Socket options, and the dial rate of servers that do not answer.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod support;

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use limiter_core::{Limiter, OnStoreFailure};
use limiter_testing::RedisServer;
use support::{limiter, patient, policy};

/// A server that closes each connection at once, and counts the connections.
fn disconnecting_server() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let reached = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reached);
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            count.fetch_add(1, Ordering::SeqCst);
            drop(stream);
        }
    });
    (url, reached)
}

async fn calls_for(limits: &Limiter, callers: u32, lasting: Duration) {
    let until = Instant::now() + lasting;
    let mut calling = tokio::task::JoinSet::new();
    for caller in 0..callers {
        let limits = limits.clone();
        calling.spawn(async move {
            while Instant::now() < until {
                assert!(
                    limits
                        .check(&policy(OnStoreFailure::Error), caller)
                        .await
                        .is_err()
                );
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
    while let Some(ended) = calling.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn disconnecting_server_is_dialled_at_bounded_rate() {
    let (url, reached) = disconnecting_server();
    let limits = limiter(url);
    calls_for(&limits, 50, Duration::from_secs(2)).await;
    let dialled = reached.load(Ordering::SeqCst);
    // Five failures, and calls in flight, until the breaker opens; then occasional probes.
    assert!((2..=40).contains(&dialled), "{dialled}");
}

#[tokio::test]
async fn disconnecting_server_is_not_dialled_without_calls() {
    let (url, reached) = disconnecting_server();
    let limits = limiter(url);
    assert!(limits.ready().await.is_err());
    // The pool's pending dials.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let dialled = reached.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(reached.load(Ordering::SeqCst), dialled);
    assert!(dialled <= 4, "{dialled}");
}

/// Reads the settings of the kernel: `ss` shows the timer of a socket, and `/proc` its keepalive.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn idle_connections_are_kept_alive() {
    let server = RedisServer::start();
    let limits = limiter(server.url());
    limits.ready().await.unwrap();
    assert!(limits.check(&patient(), "k").await.unwrap().is_allowed());
    // Remote address, state, …, and in the sixth column the timer: 2 denotes keepalive.
    let remote = format!("0100007F:{:04X}", server.port());
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let timers: Vec<&str> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.get(2) == Some(&remote.as_str()) && fields.get(3) == Some(&"01"))
        .filter_map(|fields| fields.get(5).copied())
        .collect();
    assert!(!timers.is_empty());
    for timer in timers {
        let Some((kind, left)) = timer.split_once(':') else {
            panic!("{timer}")
        };
        let left = Duration::from_millis(u64::from_str_radix(left, 16).unwrap() * 10);
        assert_eq!(kind, "02", "{timer}");
        assert!(left <= Duration::from_secs(15), "{left:?}");
    }
}
