//! Real Envoys with the timeout of the guide, at 2,000 requests per second, while Redis fails, and
//! several Envoys and servers on one Redis. Run by `cargo xtask server --all`.
//!
//! No request of an outage may reach Envoy's own timeout, from the first request on. On a machine
//! whose host stops its processors for some milliseconds, such a stop can also end a call. An
//! attempt with a timeout is repeated only if [`StallProbe`] recorded a stall during each request
//! that timed out; otherwise the test fails.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a test may panic, and prints its measurements"
)]

mod support;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use limiter_testing::{Proxy, RedisServer};
use support::demand::{Connection, Demand, Failure, Meter};
use support::envoy::Envoy;
use support::server::Server;
use support::stalls::{Stall, StallProbe};

const CONFIGURATION: &str = include_str!("../../docs/guide/envoy.yaml");
const CONNECTIONS: u32 = 32;
const PER_SECOND: u32 = 2_000;
/// The smallest share of the demand that is answered.
const ANSWERED: f64 = 0.95;
/// The capacity and the rate per second of the policy.
const CAPACITY: u32 = 100;
const RATE: u32 = 200;
/// The permits of an outage above those of the policy, by docs/operations.md: a quota and the
/// permits of 1.5 s.
const OUTAGE: u32 = CAPACITY + 1 + RATE * 3 / 2;
/// The timeout of the configuration.
const TIMEOUT: Duration = Duration::from_millis(20);
/// The shortest stall of one processor that explains a timeout. Between the decision deadline of
/// 12 ms and the timeout of 20 ms are 8; a recorded stall lacks up to 2.
const STALL: Duration = Duration::from_millis(6);
/// The number of attempts without a timeout that each outage needs, and of attempts that stalls of
/// the machine may prevent.
const CLEAN: usize = 2;
const STALLED: usize = 4;
/// The time before an outage that begins between requests, and the time of the outage.
const BEFORE: Duration = Duration::from_millis(1_500);
const DURING: Duration = Duration::from_secs(3);

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

/// Starts Envoy with the timeout of the guide.
fn envoy(server: &Server) -> Envoy {
    assert!(CONFIGURATION.contains("timeout: 0.02s"));
    Envoy::start_with(CONFIGURATION, server.grpc(), &[])
}

fn demand(address: SocketAddr) -> Demand {
    let demand = Demand::with_connections(CONNECTIONS, address, "/search");
    demand.set(PER_SECOND);
    demand
}

/// Only one test runs at a time, because each needs the processors for its load.
static LOAD: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    LOAD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The failure of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Killed,
    /// By SIGSTOP: the kernel accepts connections, and nothing replies.
    Stopped,
    /// Each way takes 30 ms.
    Slow,
}

impl Fault {
    fn inject(self, redis: &RedisServer, proxy: &Proxy) {
        match self {
            Self::Killed => redis.kill(),
            Self::Stopped => redis.pause(),
            Self::Slow => proxy.set_delay(Duration::from_millis(30)),
        }
    }
}

/// The beginning of an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begin {
    BeforeServer,
    BeforeRequests,
    BetweenRequests,
}

/// The measurements of one attempt.
struct Attempt {
    /// The calls that Envoy's own timeout ended.
    timeouts: u64,
    /// All calls without an answer that Envoy counted.
    errors: u64,
    failures: Vec<Failure>,
    stalls: Vec<Stall>,
    /// The requests that the service received, with their times.
    meter: Meter,
    /// The number of these requests at the beginning of the outage, and at its end.
    served: [u32; 2],
    /// The answers since the beginning of the outage.
    answered: u64,
}

fn attempt(fault: Fault, begin: Begin, policies: &str) -> Attempt {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let url = match fault {
        Fault::Slow => proxy.url(),
        _ => redis.url(),
    };
    if begin == Begin::BeforeServer {
        fault.inject(&redis, &proxy);
    }
    let server = Server::with_policies(policies, &["--redis", &url]);
    let envoy = envoy(&server);
    if begin == Begin::BeforeRequests {
        fault.inject(&redis, &proxy);
    }
    let probe = StallProbe::start();
    let mut meter = Meter::new();
    let demand = demand(envoy.address());
    let mut run = |time| meter.run(time, || u64::from(envoy.served()));
    if begin == Begin::BetweenRequests {
        run(BEFORE);
        fault.inject(&redis, &proxy);
    }
    let (served, sent) = (envoy.served(), demand.sent());
    run(DURING);
    // In this order: a request that Envoy answers later is in the later counts alone.
    let answered = demand.sent() - sent;
    let failures = demand.failures();
    let attempt = Attempt {
        timeouts: envoy.counter("cluster.limiter.upstream_rq_timeout"),
        errors: envoy.counter("cluster.service.ratelimit.error"),
        failures,
        stalls: probe.stalls(),
        served: [served, envoy.served()],
        answered,
        meter,
    };
    let rate = demand.sent() as f64 / attempt.meter.now().as_secs_f64();
    let longest = attempt.stalls.iter().map(|stall| stall.took).max();
    println!(
        "{fault:?} {begin:?}: {rate:.0}/s answered, {} timeouts, {} errors, {} of {} served in the \
         outage, longest stall {longest:?}",
        attempt.timeouts,
        attempt.errors,
        attempt.served[1] - attempt.served[0],
        attempt.answered,
    );
    assert_eq!(demand.lost(), 0, "connections of the client failed");
    assert!(rate >= ANSWERED * f64::from(PER_SECOND), "{rate}/s answered");
    attempt
}

impl Attempt {
    /// Returns whether a stall of a processor coincides with each request that timed out.
    fn is_stalled(&self) -> bool {
        let stalled = |failure: &Failure| {
            let sent = failure.at - failure.took;
            let overlaps = |stall: &&Stall| stall.began <= failure.at && stall.ended() >= sent;
            let mut stalled: HashMap<usize, Duration> = HashMap::new();
            for stall in self.stalls.iter().filter(overlaps) {
                *stalled.entry(stall.processor).or_default() += stall.took;
            }
            stalled.values().any(|took| *took >= STALL)
        };
        let late = self.failures.iter().filter(|failure| failure.took >= TIMEOUT);
        let late: Vec<&Failure> = late.collect();
        // A request that times out has a late answer.
        late.len() as u64 >= self.timeouts && late.iter().all(|failure| stalled(failure))
    }
}

/// Repeats an outage until enough attempts had no timeout. `verify` examines these attempts.
fn assert_no_timeouts(fault: Fault, begin: Begin, policies: &str, verify: impl Fn(&Attempt)) {
    let (mut clean, mut stalled) = (0, 0);
    while clean < CLEAN {
        let attempt = attempt(fault, begin, policies);
        if attempt.timeouts == 0 {
            verify(&attempt);
            clean += 1;
            continue;
        }
        assert!(
            attempt.is_stalled(),
            "{fault:?} {begin:?}: {} timeouts of Envoy without a stall of the machine",
            attempt.timeouts
        );
        stalled += 1;
        println!("{fault:?} {begin:?}: attempt excluded, because the machine stalled during each timeout");
        assert!(stalled <= STALLED, "the machine stalls too often for this test");
    }
}

const BEGINS: [Begin; 3] = [Begin::BeforeServer, Begin::BeforeRequests, Begin::BetweenRequests];

/// Every request has a decision. Envoy allows a request after some statuses, which would admit more
/// than the bound of the outage.
fn assert_local_decisions(fault: Fault) {
    let _load = alone();
    for begin in BEGINS {
        assert_no_timeouts(fault, begin, &bucket(), |attempt| {
            assert_eq!(attempt.errors, 0);
            assert_eq!(attempt.failures.len(), 0);
            let excess = attempt
                .meter
                .excess(f64::from(CAPACITY + OUTAGE), f64::from(RATE));
            assert!(excess <= 0.0, "{excess} above the bound");
            let [before, after] = attempt.served;
            assert!(after > before, "the share of the replica is not used");
        });
    }
}

/// No request has a decision, so Envoy must refuse all of them.
fn assert_errors(fault: Fault) {
    let _load = alone();
    let text =
        policies("algorithm = 'token_bucket'\ncapacity = 1000000\nrate = '1/s'\non_store_failure = 'error'");
    for begin in BEGINS {
        assert_no_timeouts(fault, begin, &text, |attempt| {
            let [before, after] = attempt.served;
            // Redis may have decided the calls in flight.
            let in_flight = if begin == Begin::BetweenRequests {
                CONNECTIONS
            } else {
                0
            };
            assert!(after - before <= in_flight, "{} served", after - before);
            let failures = u64::try_from(attempt.failures.len()).unwrap();
            let decided = attempt.answered.saturating_sub(failures);
            assert!(decided <= u64::from(in_flight), "{decided} with another status");
            assert!(attempt.errors >= failures, "{} errors", attempt.errors);
        });
    }
}

#[test]
fn killed_redis_causes_no_timeout_of_envoy() {
    assert_local_decisions(Fault::Killed);
}

#[test]
fn stopped_redis_causes_no_timeout_of_envoy() {
    assert_local_decisions(Fault::Stopped);
}

#[test]
fn slow_redis_causes_no_timeout_of_envoy() {
    assert_local_decisions(Fault::Slow);
}

#[test]
fn envoy_refuses_requests_without_a_decision_while_redis_is_killed() {
    assert_errors(Fault::Killed);
}

#[test]
fn envoy_refuses_requests_without_a_decision_while_redis_is_stopped() {
    assert_errors(Fault::Stopped);
}

#[test]
fn envoy_refuses_requests_without_a_decision_while_redis_is_slow() {
    assert_errors(Fault::Slow);
}

#[test]
fn two_envoys_and_two_servers_admit_exactly_the_limit() {
    const REQUESTS: u32 = 10_000;
    const LIMIT: u32 = 3_000;
    const THREADS: u32 = 8;
    let _load = alone();
    let redis = RedisServer::start();
    // A reply after the deadline would leave the decision to the share of the replica, which does
    // not know the exact rest of the limit. The deadlines of the guide are those of the outages.
    let text = policies(&format!(
        "algorithm = 'sliding_window'\nlimit = {LIMIT}\nwindow = '1h'\ndeadline = '20s'"
    ));
    let servers = [(); 2]
        .map(|()| Server::with_policies(&text, &["--redis", &redis.url(), "--decision-deadline", "4s"]));
    let patient = [("timeout: 0.02s", "timeout: 5s")];
    let envoys = servers
        .each_ref()
        .map(|server| Envoy::start_with(CONFIGURATION, server.grpc(), &patient));
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
    let sources = envoys.each_ref().map(|envoy| demand(envoy.address()));
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
    let sent: u64 = sources.iter().map(Demand::sent).sum();
    assert!(sent > u64::from(3 * RATE) * 11, "the demand is too low");
    let (capacity, rate) = (f64::from(CAPACITY), f64::from(RATE));
    let outage = capacity + 2.0 + 1.5 * rate;
    let excess = meter.excess(capacity + outage + capacity, rate);
    println!("{:.0} below the bound", -excess);
    assert!(excess <= 0.0, "{excess} above the bound");
}
