//! A server that replies after the deadline, or not at all, delays few calls: the circuit breaker
//! opens for the deadlines that it exceeds, also if calls with longer deadlines receive replies.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::time::{Duration, Instant};

use limiter_core::{Limiter, OnStoreFailure, Origin, Policy};
use limiter_testing::{Proxy, RedisServer};
use support::{millis, namespace, secs};

const DEADLINE: Duration = millis(12);
const CALLS: u32 = 2_000;
const INTERVAL: Duration = Duration::from_micros(500);
/// The calls of the first deadline and of the time in which five of them exceed it (30), and those
/// that the operating system delays.
const MAX_DELAYED: usize = 60;

fn policy(name: &str, deadline: Duration) -> Policy {
    let policy = Policy::token_bucket(name).capacity(1_000_000).rate(1);
    policy.deadline(deadline).build().unwrap()
}

/// A server behind a proxy, and a limiter that is connected to it.
async fn proxied() -> (RedisServer, Proxy, Limiter) {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limits = Limiter::redis(proxy.url())
        .namespace(namespace())
        .build()
        .unwrap();
    limits.ready().await.unwrap();
    (server, proxy, limits)
}

/// The number of calls that waited for most of their deadline, while another caller with a longer
/// deadline uses the server.
async fn delayed_calls(fail: impl FnOnce(&RedisServer, &Proxy)) -> usize {
    let (server, proxy, limits) = proxied().await;
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
    assert!(delayed <= MAX_DELAYED, "{delayed} calls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_server_does_not_delay_each_call() {
    let delayed = delayed_calls(|server, _| server.pause()).await;
    assert!(delayed <= MAX_DELAYED, "{delayed} calls");
}

#[tokio::test]
async fn longer_deadline_uses_slow_server() {
    let (_server, proxy, limits) = proxied().await;
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

/// The deadline is far above the delays of a busy machine.
#[tokio::test]
async fn no_call_waits_for_a_probe() {
    let (server, _proxy, limits) = proxied().await;
    let deadline = millis(400);
    let policy = policy("patient", deadline);
    let _first = limits.check(&policy, "key").await.unwrap();
    server.pause();
    let mut opening = tokio::task::JoinSet::new();
    for key in 0..10 {
        let (limits, policy) = (limits.clone(), policy.clone());
        opening.spawn(async move { limits.check(&policy, key.to_string()).await.unwrap() });
    }
    opening.join_all().await;
    // Several pauses and probes.
    let until = Instant::now() + secs(2);
    while Instant::now() < until {
        let started = Instant::now();
        let decision = limits.check(&policy, "key").await.unwrap();
        assert_eq!(decision.origin(), Origin::LocalFallback);
        let took = started.elapsed();
        assert!(took < deadline / 2, "{took:?}");
        tokio::time::sleep(millis(1)).await;
    }
    server.resume();
    let resumed = Instant::now();
    while limits.check(&policy, "key").await.unwrap().origin() != Origin::Redis {
        assert!(resumed.elapsed() < secs(10), "the breaker closes");
        tokio::task::yield_now().await;
    }
}

/// Without calls, the first probe follows after seconds.
#[tokio::test]
async fn idle_client_does_not_keep_slow_server_busy() {
    let (server, proxy, limits) = proxied().await;
    // No permit of the outage is reported.
    let policy = Policy::token_bucket("idle").capacity(1_000_000).rate(1);
    let policy = policy.on_store_failure(OnStoreFailure::FailOpen);
    let policy = policy.deadline(DEADLINE).build().unwrap();
    proxy.set_delay(millis(30));
    // The breaker opens.
    for _ in 0..20 {
        let decision = limits.check(&policy, "key").await.unwrap();
        assert_eq!(decision.origin(), Origin::FailedOpen);
    }
    let scripts = || {
        let statistics = server.command(&["INFO", "commandstats"]);
        let lines = statistics.text().to_owned();
        let line = lines.lines().find(|line| line.contains("cmdstat_evalsha"));
        line.map(str::to_owned)
    };
    // The last call, and a probe that it may have started.
    tokio::time::sleep(millis(500)).await;
    let before = scripts();
    tokio::time::sleep(secs(1)).await;
    assert_eq!(scripts(), before);
}

/// The runtime does not run a probe after the rejected call that started it.
#[test]
fn caller_that_blocks_for_each_call_uses_server_again() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (server, _proxy, limits) = runtime.block_on(proxied());
    let policy = policy("blocking", DEADLINE);
    let origin = || {
        runtime
            .block_on(limits.check(&policy, "key").into_future())
            .unwrap()
            .origin()
    };
    server.pause();
    for _ in 0..20 {
        assert_eq!(origin(), Origin::LocalFallback);
    }
    server.resume();
    let resumed = Instant::now();
    while origin() != Origin::Redis {
        assert!(resumed.elapsed() < secs(10), "the breaker closes");
    }
}
