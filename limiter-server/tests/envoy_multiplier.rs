//! A real Envoy reads windows that are a multiple of a unit.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use support::envoy::Envoy;
use support::server::Server;

const POLICIES: &str = include_str!("../../docs/guide/envoy.toml");

#[test]
fn header_has_the_length_of_a_window_in_seconds() {
    for (window, seconds) in [("10m", 600), ("90s", 90), ("2d", 172_800), ("1h", 3_600)] {
        let policies = POLICIES.replace("window = \"1h\"", &format!("window = \"{window}\""));
        let server = Server::with_policies(&policies, &["--decision-deadline", "5s"]);
        let envoy = Envoy::start(server.grpc(), &[]);
        let answer = envoy.get("/search", &[]);
        let expected = format!("3, 3;w={seconds};name=\"search\"");
        assert_eq!(answer.header("x-ratelimit-limit"), Some(&*expected), "{window}");
    }
}
