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
const STEADY: Duration = Duration::from_secs(20);

/// Envoys with their sources of requests, and one meter of all of them.
struct Fleet {
    envoys: Vec<Envoy>,
    demands: Vec<Demand>,
    meter: Meter,
    /// The used parts of the budget: across changes and after each.
    across: Vec<f64>,
}

impl Fleet {
    fn start(nodes: &[Server], envoys: usize) -> Self {
        let addresses: Vec<_> = nodes.iter().map(Server::grpc).collect();
        let envoys: Vec<Envoy> = (0..envoys)
            .map(|number| {
                let mut order = addresses.clone();
                order.rotate_left(number % addresses.len());
                envoy(&order, &[])
            })
            .collect();
        let demands = envoys.iter().map(|envoy| Demand::start(envoy.address(), "/api"));
        Self {
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

    /// Changes the demand, and states the part of the budget that is used afterwards. A slow
    /// machine may offer less than the budget.
    fn phase(&mut self, name: &str, demands: &[u32], least: f64) {
        for (source, demand) in self.demands.iter().zip(demands) {
            source.set(*demand);
        }
        let (across, most) = self.run(ADAPTATION);
        let (steady, most_after) = self.run(STEADY);
        println!("{name}: {across:.0} of {most:.0}/s across, {steady:.0} of {most_after:.0}/s after");
        self.across
            .push((across + steady * 4.0 / 3.0) / (most + most_after * 4.0 / 3.0));
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

fn nodes(count: usize, redis: &RedisServer) -> Vec<Server> {
    let policies = POLICIES.replace("200", &BUDGET.to_string());
    let url = redis.url();
    (0..count)
        .map(|_| Server::with_policies(&policies, &["--redis", &url]))
        .collect()
}

#[test]
fn two_envoys_share_a_budget_with_changing_demand() {
    let redis = RedisServer::start();
    let nodes = nodes(1, &redis);
    let mut fleet = Fleet::start(&nodes, 2);
    fleet.phase("equal demand", &[800, 800], 0.9);
    fleet.phase("one Envoy alone", &[1_200, 60], 0.9);
    fleet.phase("the other one", &[60, 1_200], 0.9);
    fleet.assert_within();
}

#[test]
fn budget_survives_the_end_of_an_envoy_a_node_and_redis() {
    let redis = RedisServer::start();
    let mut nodes = nodes(2, &redis);
    let mut fleet = Fleet::start(&nodes, 3);
    fleet.phase("three Envoys", &[500, 500, 500], 0.9);
    fleet.envoys[2].kill();
    fleet.phase("an Envoy is killed", &[800, 800, 0], 0.9);
    nodes[0].kill();
    fleet.phase("a node is killed", &[800, 800, 0], 0.9);
    redis.pause();
    // The assignments end, and the configuration denies.
    let (stopped, _) = fleet.run(Duration::from_secs(15));
    println!("Redis is stopped: {stopped:.0}/s");
    redis.resume();
    fleet.phase("Redis answers again", &[800, 800, 0], 0.9);
    fleet.assert_within();
}
