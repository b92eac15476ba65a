//! Several real Envoys share a budget of 1,000 requests per second while their demand changes, an
//! Envoy is killed, a server node is killed, and Redis is stopped. The requests are counted behind
//! the proxies: in any time T at most capacity + rate · T. Run by `cargo xtask server --all`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a test may panic, and prints its measurements"
)]

mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use limiter_testing::RedisServer;
use support::demand::{Demand, Meter};
use support::envoy::Envoy;
use support::quota::{POLICIES, envoy};
use support::server::Server;

/// The capacity and the rate per second of the policy.
const BUDGET: u32 = 1_000;
/// The time after a change of demand in which the shares follow.
const ADAPTATION: Duration = Duration::from_secs(15);
/// The time between this and the next change of demand.
const STEADY: Duration = Duration::from_secs(20);
/// The longest time for which assignments apply after the last one was sent.
const EXPIRY: Duration = Duration::from_secs(11);
/// The time after a reduction of the policy from which the bound of the new one holds alone.
const REDUCTION: Duration = Duration::from_secs(13);
/// The capacity and the rate per second after the reduction.
const REDUCED: u32 = 400;

/// Envoys with their sources of requests, and one meter of all of them. One fleet runs at a time,
/// because the sources need the processors.
struct Fleet {
    _machine: MutexGuard<'static, ()>,
    envoys: Vec<Envoy>,
    demands: Vec<Demand>,
    meter: Meter,
    /// For each change of demand the used part of the budget in the whole time until the next
    /// change, with the adaptation.
    across: Vec<f64>,
}

impl Fleet {
    fn start(nodes: &[Server], envoys: usize, edits: &[(&str, &str)]) -> Self {
        static MACHINE: Mutex<()> = Mutex::new(());
        let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses: Vec<_> = nodes.iter().map(Server::grpc).collect();
        let envoys: Vec<Envoy> = (0..envoys)
            .map(|number| {
                let mut order = addresses.clone();
                order.rotate_left(number % addresses.len());
                envoy(&order, edits)
            })
            .collect();
        let demands = envoys.iter().map(|envoy| Demand::start(envoy.address(), "/api"));
        Self {
            _machine: machine,
            demands: demands.collect(),
            envoys,
            meter: Meter::new(),
            across: Vec::new(),
        }
    }

    fn sent(&self) -> u64 {
        self.demands.iter().map(Demand::sent).sum()
    }

    fn run(&mut self, time: Duration) -> (f64, f64) {
        let (from, sent) = (self.meter.now(), self.sent());
        let envoys = &self.envoys;
        self.meter.run(time, || {
            envoys.iter().map(|envoy| u64::from(envoy.served())).sum()
        });
        let to = self.meter.now();
        let offered = (self.sent() - sent) as f64 / (to - from).as_secs_f64();
        (self.meter.rate(from, to), f64::from(BUDGET).min(offered))
    }

    /// Changes the demand, and states the part of the budget that is used afterwards. The machine
    /// must offer nearly the demand, which else would hide unused budget.
    fn phase(&mut self, name: &str, demands: &[u32], least: f64) {
        for (source, demand) in self.demands.iter().zip(demands) {
            source.set(*demand);
        }
        let (adapting, most) = self.run(ADAPTATION);
        let (steady, most_after) = self.run(STEADY);
        println!("{name}: {adapting:.0} of {most:.0}/s at first, {steady:.0} of {most_after:.0}/s after");
        let wanted = f64::from(BUDGET.min(demands.iter().sum()));
        assert!(
            most_after >= 0.9 * wanted,
            "{name}: the machine offers {most_after} of {wanted}"
        );
        let both = |first: f64, then: f64| first * ADAPTATION.as_secs_f64() + then * STEADY.as_secs_f64();
        self.across.push(both(adapting, steady) / both(most, most_after));
        assert!(steady >= least * most_after, "{name}: {steady} of {most_after}");
    }

    /// The bound holds for every time.
    fn assert_within(&self) {
        let budget = f64::from(BUDGET);
        let excess = self.meter.excess(budget, budget);
        println!("at most {:.0} below the bound", -excess);
        assert!(excess <= 0.0, "{excess} above the budget");
        let across = self.across.iter().sum::<f64>() / self.across.len() as f64;
        assert!(across >= 0.7, "{across} across changes");
    }
}

/// The policy with this capacity and rate per second.
fn policies(budget: u32) -> String {
    POLICIES.replace("200", &budget.to_string())
}

fn nodes(count: usize, redis: &RedisServer) -> Vec<Server> {
    let policies = policies(BUDGET);
    let url = redis.url();
    (0..count)
        .map(|_| Server::with_policies(&policies, &["--redis", &url]))
        .collect()
}

#[test]
fn two_envoys_share_a_budget_with_changing_demand() {
    let redis = RedisServer::start();
    let nodes = nodes(1, &redis);
    let mut fleet = Fleet::start(&nodes, 2, &[]);
    fleet.phase("equal demand", &[800, 800], 0.9);
    fleet.phase("one Envoy alone", &[1_200, 60], 0.9);
    fleet.phase("the other one", &[60, 1_200], 0.9);
    fleet.assert_within();
}

#[test]
fn three_envoys_share_a_budget_with_changing_demand() {
    let redis = RedisServer::start();
    let nodes = nodes(2, &redis);
    let mut fleet = Fleet::start(&nodes, 3, &[]);
    fleet.phase("a large, a middle, a small demand", &[900, 250, 100], 0.9);
    fleet.phase("another order", &[100, 900, 250], 0.9);
    fleet.phase("two large demands", &[600, 60, 600], 0.9);
    fleet.phase("one Envoy alone", &[60, 60, 1_100], 0.9);
    fleet.assert_within();
}

#[test]
fn budget_survives_the_end_of_an_envoy_a_node_and_redis() {
    let redis = RedisServer::start();
    let mut nodes = nodes(2, &redis);
    let mut fleet = Fleet::start(&nodes, 3, &[]);
    fleet.phase("three Envoys", &[500, 500, 500], 0.9);
    fleet.envoys[2].kill();
    fleet.phase("an Envoy is killed", &[800, 800, 0], 0.9);
    nodes[0].kill();
    fleet.phase("a node is killed", &[800, 800, 0], 0.9);
    redis.pause();
    // The assignments end, and the configuration denies.
    fleet.run(EXPIRY);
    let (stopped, _) = fleet.run(Duration::from_secs(4));
    assert_eq!(stopped, 0.0, "requests per second without an assignment");
    redis.resume();
    fleet.phase("Redis answers again", &[800, 800, 0], 0.9);
    fleet.assert_within();
}

#[test]
fn reduced_policy_applies_to_connected_envoys() {
    let redis = RedisServer::start();
    let nodes = nodes(2, &redis);
    let mut fleet = Fleet::start(&nodes, 2, &[]);
    fleet.phase("before the reduction", &[800, 800], 0.9);
    fleet.assert_within();
    fleet.meter = Meter::new();
    for node in &nodes {
        node.directory().write("policies.toml", &policies(REDUCED));
        node.signal("HUP");
    }
    fleet.run(REDUCTION);
    let (before, after) = (f64::from(BUDGET), f64::from(REDUCED));
    let excess = fleet
        .meter
        .excess(after + before + before * EXPIRY.as_secs_f64(), after);
    println!("at most {:.0} below the bound of the reduction", -excess);
    assert!(excess <= 0.0, "{excess} above the bound of the reduction");
    fleet.meter = Meter::new();
    let (steady, _) = fleet.run(STEADY);
    let excess = fleet.meter.excess(after, after);
    println!(
        "{steady:.0} of {after:.0}/s after the reduction, at most {:.0} below the bound",
        -excess
    );
    assert!(excess <= 0.0, "{excess} above the new budget");
    assert!(steady >= 0.9 * after, "{steady} of {after} per second");
}

#[test]
fn expired_assignments_follow_a_configuration_that_allows() {
    let redis = RedisServer::start();
    let nodes = nodes(1, &redis);
    let expired = "expired_assignment_behavior_timeout: 3600s
                                      fallback_rate_limit: { blanket_rule: DENY_ALL }";
    let allowed = expired.replace("DENY_ALL", "ALLOW_ALL");
    let mut fleet = Fleet::start(&nodes, 1, &[(expired, &allowed)]);
    fleet.phase("one Envoy", &[1_500], 0.9);
    fleet.assert_within();
    let (limited, _) = fleet.run(Duration::from_secs(2));
    redis.pause();
    fleet.run(EXPIRY);
    let sent = fleet.sent();
    let (stopped, _) = fleet.run(Duration::from_secs(4));
    let offered = (fleet.sent() - sent) as f64 / 4.0;
    println!("without an assignment {stopped:.0} of {offered:.0}/s, {limited:.0}/s before");
    assert!(stopped >= 0.95 * offered, "{stopped} of {offered} per second");
    redis.resume();
}
