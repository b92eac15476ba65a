//! A real Envoy with the configuration of the guide for the quota service: it follows its
//! configuration without an assignment, and then admits at most the budget and uses most of it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    reason = "a test may panic"
)]

mod support;

use std::cell::RefCell;
use std::time::Duration;

use support::demand::{Demand, Meter};
use support::quota::{POLICIES, envoy};
use support::server::{Server, wait_until};

/// The capacity and the rate per second of the policy.
const BUDGET: f64 = 200.0;
/// The requests per second that are sent.
const DEMAND: u32 = 400;

/// A bucket with nine tenths of the rate and a small capacity. Envoy admits at least as many of the
/// same requests, also if a slow machine sends them unevenly.
#[derive(Debug)]
struct LowerBound {
    tokens: f64,
    at: Duration,
    sent: u64,
    admitted: f64,
}

impl LowerBound {
    const RATE: f64 = 0.9 * BUDGET;
    const CAPACITY: f64 = 0.05 * BUDGET;

    fn new(at: Duration, sent: u64) -> Self {
        Self {
            tokens: 0.0,
            at,
            sent,
            admitted: 0.0,
        }
    }

    /// Adds the requests that were sent since the last call.
    fn send(&mut self, now: Duration, sent: u64) {
        let refill = (now - self.at).as_secs_f64() * Self::RATE;
        let tokens = (self.tokens + refill).min(Self::CAPACITY);
        let admitted = tokens.min((sent - self.sent) as f64);
        self.tokens = tokens - admitted;
        self.admitted += admitted;
        (self.at, self.sent) = (now, sent);
    }
}

#[test]
fn envoy_follows_its_configuration_and_then_its_assignment() {
    let other = POLICIES.replace("route=api", "route=other");
    assert_ne!(other, POLICIES);
    let server = Server::with_policies(&other, &[]);
    let edits = [("reporting_interval: 5s", "reporting_interval: 1s")];
    let proxy = envoy(&[server.grpc()], &edits);
    assert_eq!(proxy.get("/other", &[]).status, 200, "no bucket");
    // Without a rule there is no assignment, and the configuration denies.
    assert_eq!(proxy.get("/api", &[]).status, 429);
    let served = || u64::from(proxy.served());
    assert_eq!(served(), 1);

    server.directory().write("policies.toml", POLICIES);
    server.signal("HUP");
    let demand = Demand::start(proxy.address(), "/api");
    demand.set(DEMAND);
    let mut meter = Meter::new();
    wait_until(|| served() > 1, || server.log());
    meter.run(Duration::from_secs(2), served);
    let before = served();
    let least = RefCell::new(LowerBound::new(Duration::ZERO, demand.sent()));
    let started = Meter::new();
    meter.run(Duration::from_secs(12), || {
        least.borrow_mut().send(started.now(), demand.sent());
        served()
    });
    let (used, least) = (served() - before, least.into_inner().admitted);
    assert!(used as f64 >= least, "{used} admitted, at least {least} expected");
    let excess = meter.excess(BUDGET, BUDGET);
    assert!(excess <= 0.0, "{excess} above the budget");
}

#[test]
fn first_request_passes_if_the_configuration_allows_it() {
    let server = Server::with_policies(POLICIES, &[]);
    for (edits, status) in [(&[][..], 429), (&[("DENY_ALL", "ALLOW_ALL")], 200)] {
        let proxy = envoy(&[server.grpc()], edits);
        assert_eq!(proxy.get("/api", &[]).status, status, "{edits:?}");
    }
}
