//! A server that replies after the deadline, or not at all, delays few calls: the circuit breaker
//! opens for the deadlines that it exceeds, also if calls with longer deadlines receive replies.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::time::{Duration, Instant};

use limiter_core::{Limiter, Origin, Policy};
use limiter_testing::{Proxy, RedisServer};
use support::{millis, namespace, secs};

const DEADLINE: Duration = millis(12);
const CALLS: u32 = 2_000;
const INTERVAL: Duration = Duration::from_micros(500);
/// The calls of the first deadline and of the time in which five of them exceed it (30), those
/// that the operating system delays, and one probe per 50, 100 and then 200 ms.
const MOST_DELAYED: usize = 60;

fn policy(name: &str, deadline: Duration) -> Policy {
    let policy = Policy::token_bucket(name).capacity(1_000_000).rate(1);
    policy.deadline(deadline).build().unwrap()
}

/// The number of calls that waited for most of their deadline, while another caller with a longer
/// deadline uses the server.
async fn delayed_calls(fail: impl FnOnce(&RedisServer, &Proxy)) -> usize {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limits = Limiter::redis(proxy.url())
        .namespace(namespace())
        .build()
        .unwrap();
    limits.ready().await.unwrap();
    let (short, long) = (policy("short", DEADLINE), policy("long", secs(1)));
    let _first = limits.check(&short, "key").await.unwrap();
    fail(&server, &proxy);
    let mut calls = Vec::new();
    let mut interval = tokio::time::interval(INTERVAL);
    for number in 0..CALLS {
        interval.tick().await;
        let (limits, long, short) = (limits.clone(), long.clone(), short.clone());
        calls.push(tokio::spawn(async move {
            let started = Instant::now();
            if number % 100 == 0 {
                let _long = limits.check(&long, "key").await;
                return false;
            }
            let _short = limits.check(&short, number.to_string()).await.unwrap();
            started.elapsed() >= DEADLINE * 3 / 4
        }));
    }
    let mut delayed = 0;
    for call in calls {
        delayed += usize::from(call.await.unwrap());
    }
    delayed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_server_does_not_delay_each_call() {
    let delayed = delayed_calls(|_, proxy| proxy.set_delay(millis(30))).await;
    assert!(delayed <= MOST_DELAYED, "{delayed} calls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_server_does_not_delay_each_call() {
    let delayed = delayed_calls(|server, _| server.pause()).await;
    assert!(delayed <= MOST_DELAYED, "{delayed} calls");
}

#[tokio::test]
async fn longer_deadline_uses_slow_server() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limits = Limiter::redis(proxy.url())
        .namespace(namespace())
        .build()
        .unwrap();
    limits.ready().await.unwrap();
    proxy.set_delay(millis(30));
    let (short, long) = (policy("short", DEADLINE), policy("long", secs(10)));
    for _ in 0..20 {
        let decision = limits.check(&short, "key").await.unwrap();
        assert_eq!(decision.origin(), Origin::LocalFallback);
    }
    let decision = limits.check(&long, "key").await.unwrap();
    assert_eq!(decision.origin(), Origin::Redis);
    proxy.set_delay(Duration::ZERO);
    let started = Instant::now();
    while limits.check(&short, "key").await.unwrap().origin() != Origin::Redis {
        assert!(started.elapsed() < secs(10), "the breaker closes");
        tokio::task::yield_now().await;
    }
}
