//! The latency of requests through Envoy: without a limit, with quotas, and with the rate limit
//! service. Prints the figures; the difference to the requests without a limit is the decision.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may panic, and prints its measurements"
)]

mod support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use support::demand::Connection;
use support::envoy::Envoy;
use support::quota::{POLICIES, envoy};
use support::server::{Server, wait_until};

const REQUESTS: usize = 3_000;

/// The median and the 99th percentile of requests on one connection.
fn latency(address: SocketAddr, path: &str) -> [Duration; 2] {
    let mut connection = Connection::open(address).unwrap();
    let mut times: Vec<Duration> = (0..REQUESTS)
        .map(|_| {
            let started = Instant::now();
            assert_eq!(connection.request(path).unwrap(), 200);
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    [times[REQUESTS / 2], times[REQUESTS * 99 / 100]]
}

#[test]
fn decisions_with_quotas_and_with_the_rate_limit_service() {
    // The quotas of an Envoy take permits of their policy, so the service has one of its own.
    let quota = POLICIES.replace("200", "1000000");
    let policies = format!("{quota}\n{}", quota.replace("api", "service"));
    let server = Server::with_policies(&policies, &["--decision-deadline", "5s"]);
    let quotas = envoy(&[server.grpc()], &[]);
    wait_until(|| quotas.get("/api", &[]).status == 200, || server.log());
    // The rule of the policy needs a descriptor of its own key.
    let edit = (
        "generic_key: { descriptor_value: search }\n                                  - remote_address: {}",
        "generic_key: { descriptor_key: route, descriptor_value: service }",
    );
    let service = Envoy::start(server.grpc(), &[edit]);
    assert_eq!(service.get("/search", &[]).status, 200);
    for (name, address, path) in [
        ("no limit", quotas.address(), "/other"),
        ("quotas (RLQS)", quotas.address(), "/api"),
        ("rate limit service (RLS)", service.address(), "/search"),
    ] {
        let [median, high] = latency(address, path);
        println!("{name}: median {median:?}, 99 % below {high:?}");
    }
}
