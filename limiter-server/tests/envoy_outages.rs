//! Real Envoys with the timeout of the guide, at 2,000 requests per second, while Redis fails, and
//! several Envoys and servers on one Redis. Run by `cargo xtask server --all`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may panic, and prints its measurements"
)]

mod support;

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use limiter_testing::{Proxy, RedisServer};
use support::demand::{Connection, Demand, Meter};
use support::envoy::Envoy;
use support::server::{Server, wait_until};

const CONFIGURATION: &str = include_str!("../../docs/guide/envoy.yaml");
const SOURCES: u32 = 8;
const PER_SECOND: u32 = 2_000;
/// The capacity and the rate per second of the policy.
const CAPACITY: u32 = 100;
const RATE: u32 = 200;
/// A pause of the whole machine also delays Envoy's timer and the server's. Such a pause fails one
/// attempt; an error of the server fails all of them.
const ATTEMPTS: usize = 3;

fn policies(limit: &str) -> String {
    format!(
        "[policy.search]\n{limit}\n[[rule]]\nmatch = ['generic_key=search', 'remote_address']\npolicy = 'search'\n"
    )
}

fn bucket() -> String {
    policies(&format!(
        "algorithm = 'token_bucket'\ncapacity = {CAPACITY}\nrate = '{RATE}/s'"
    ))
}

/// Starts Envoy with the timeout of the guide, 20 ms.
fn envoy(server: &Server) -> Envoy {
    assert!(CONFIGURATION.contains("timeout: 0.02s"));
    Envoy::start_with(CONFIGURATION, server.grpc(), &[])
}

fn demand(address: SocketAddr) -> Vec<Demand> {
    let sources = (0..SOURCES).map(|_| Demand::start(address, "/search"));
    let sources: Vec<Demand> = sources.collect();
    for source in &sources {
        source.set(PER_SECOND / SOURCES);
    }
    sources
}

fn sent(sources: &[Demand]) -> u64 {
    sources.iter().map(Demand::sent).sum()
}

/// Only one test runs at a time, because each needs the processors for its load.
static LOAD: Mutex<()> = Mutex::new(());

/// The calls that Envoy's own timeout ended, and those that failed, during an outage which begins
/// before the first request or between requests.
fn timeouts(at_start: bool, fail: impl Fn(&RedisServer, &Proxy)) -> u64 {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let server = Server::with_policies(&bucket(), &["--redis", &proxy.url()]);
    let envoy = envoy(&server);
    if at_start {
        fail(&redis, &proxy);
    }
    let sources = demand(envoy.address());
    wait_until(|| sent(&sources) > 2_000, || server.log());
    if !at_start {
        fail(&redis, &proxy);
    }
    let before = sent(&sources);
    wait_until(|| sent(&sources) > before + 6_000, || server.log());
    drop(sources);
    // Envoy allows a request after some statuses. More than the bound of the outage then passes.
    let errors = envoy.counter("cluster.service.ratelimit.error");
    let timeouts = envoy.counter("cluster.limiter.upstream_rq_timeout");
    println!("{timeouts} timeouts, {errors} errors, {} served", envoy.served());
    timeouts + errors
}

fn alone() -> MutexGuard<'static, ()> {
    LOAD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn assert_no_timeouts(fail: impl Fn(&RedisServer, &Proxy)) {
    let _load = alone();
    for at_start in [true, false] {
        let mut counts = (0..ATTEMPTS).map(|_| timeouts(at_start, &fail));
        assert!(counts.any(|count| count == 0), "at the start: {at_start}");
    }
}

#[test]
fn killed_redis_causes_no_timeout_of_envoy() {
    assert_no_timeouts(|redis, _| redis.kill());
}

#[test]
fn stopped_redis_causes_no_timeout_of_envoy() {
    assert_no_timeouts(|redis, _| redis.pause());
}

#[test]
fn slow_redis_causes_no_timeout_of_envoy() {
    assert_no_timeouts(|_, proxy| proxy.set_delay(Duration::from_millis(30)));
}

#[test]
fn two_envoys_and_two_servers_admit_exactly_the_limit() {
    const REQUESTS: u32 = 10_000;
    const LIMIT: u32 = 3_000;
    const THREADS: u32 = 8;
    let _load = alone();
    let redis = RedisServer::start();
    let text = policies(&format!(
        "algorithm = 'sliding_window'\nlimit = {LIMIT}\nwindow = '1h'\ndeadline = '20s'"
    ));
    let servers = [(); 2]
        .map(|()| Server::with_policies(&text, &["--redis", &redis.url(), "--decision-deadline", "4s"]));
    let envoys = servers.each_ref().map(|server| Envoy::start(server.grpc(), &[]));
    thread::scope(|scope| {
        for number in 0..THREADS {
            let address = envoys.get(number as usize % envoys.len()).unwrap().address();
            scope.spawn(move || {
                let mut connection = Connection::open(address).unwrap();
                for _ in 0..REQUESTS / THREADS {
                    connection.request("/search").unwrap();
                }
            });
        }
    });
    let served: u32 = envoys.iter().map(Envoy::served).sum();
    assert_eq!(served, LIMIT);
    let counter = |name| envoys.iter().map(|envoy| envoy.counter(name)).sum::<u64>();
    let denied = counter("cluster.service.ratelimit.over_limit");
    assert_eq!(denied, u64::from(REQUESTS - LIMIT));
    assert_eq!(counter("cluster.service.ratelimit.error"), 0);
}

/// The bound is that of docs/operations.md: a bucket, and the shares of an outage that a replica
/// cannot report for 1.5 s, and a quota for the lost data.
#[test]
fn two_servers_stay_within_the_documented_bound_when_redis_is_killed() {
    let _load = alone();
    let redis = RedisServer::start();
    let servers = [(); 2].map(|()| Server::with_policies(&bucket(), &["--redis", &redis.url()]));
    let envoys = servers.each_ref().map(envoy);
    let sources: Vec<_> = envoys.iter().flat_map(|envoy| demand(envoy.address())).collect();
    let mut meter = Meter::new();
    let mut run = |time| {
        meter.run(time, || {
            envoys.iter().map(|envoy| u64::from(envoy.served())).sum()
        });
    };
    run(Duration::from_secs(3));
    redis.kill();
    run(Duration::from_secs(4));
    redis.restart();
    run(Duration::from_secs(4));
    assert!(sent(&sources) > u64::from(3 * RATE) * 11, "the demand is too low");
    let (capacity, rate) = (f64::from(CAPACITY), f64::from(RATE));
    let outage = capacity + 2.0 + 1.5 * rate;
    let excess = meter.excess(capacity + outage + capacity, rate);
    println!("{:.0} below the bound", -excess);
    assert!(excess <= 0.0, "{excess} above the bound");
}
