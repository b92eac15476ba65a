//! The time until the server is ready, and its memory with many keys. Run by
//! `cargo xtask server --all`, which optimises the server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may panic, and prints its measurements"
)]

mod support;

use std::time::{Duration, Instant};

use support::descriptors::{descriptor, request};
use support::rls::RlsClient;
use support::server::Server;

const POLICIES: &str = r#"
[policy.search]
algorithm = "token_bucket"
capacity = 10
rate = "1/h"

[[rule]]
match = ["user"]
policy = "search"
"#;

const STARTS: usize = 11;
const READY_WITHIN: Duration = Duration::from_millis(100);
const KEYS: u32 = 100_000;
const MAX_RESIDENT_KB: u64 = 50 * 1_000;

#[test]
fn server_is_ready_in_100_ms() {
    let times = (0..STARTS).map(|_| {
        let started = Instant::now();
        let server = Server::with_policies(POLICIES, &[]);
        assert_eq!(server.get("/readyz").status, 200);
        started.elapsed()
    });
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    let (median, slowest) = (times[STARTS / 2], times[STARTS - 1]);
    println!("ready after {median:?}, the median of {STARTS} starts; the slowest took {slowest:?}");
    assert!(median < READY_WITHIN, "{times:?}");
}

#[test]
fn hundred_thousand_keys_need_less_than_50_mb() {
    let server = Server::with_policies(POLICIES, &[]);
    let client = RlsClient::connect(server.grpc());
    let user = |number: u32| descriptor("user", &format!("user-{number}@example.org"));
    let users: Vec<u32> = (0..KEYS).collect();
    for users in users.chunks(100) {
        let descriptors: Vec<_> = users.iter().map(|number| user(*number)).collect();
        let response = client.decide(&request(&descriptors)).unwrap();
        assert_eq!(response.statuses.len(), users.len());
    }
    // Each key has its own usage.
    let again = client.decide(&request(&[user(0), user(KEYS)])).unwrap();
    let remaining = again.statuses.iter().map(|status| status.limit_remaining);
    assert_eq!(remaining.collect::<Vec<_>>(), [8, 9]);
    let resident = server.resident_kb();
    println!("{resident} kB");
    assert!(resident < MAX_RESIDENT_KB, "{resident} kB");
}
