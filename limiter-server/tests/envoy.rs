//! A real Envoy with the configuration of the guide. Optimised, it runs with the documented times
//! as well.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod support;

use support::envoy::{Envoy, deadline_args};
use support::server::{Server, wait_until};

const POLICIES: &str = include_str!("../../docs/guide/envoy.toml");

/// The comment in the configuration that becomes a setting with a token.
const TOKEN_SETTING: &str = "# initial_metadata: [{ key: authorization, value: \"Bearer lim_…\" }]";

fn servers() -> (Server, Envoy) {
    let server = Server::with_policies(POLICIES, deadline_args());
    let envoy = Envoy::start(server.grpc(), &[]);
    (server, envoy)
}

#[test]
fn denied_request_has_status_headers_and_retry_time() {
    let (_server, envoy) = servers();
    for remaining in [2, 1, 0] {
        let answer = envoy.get("/search", &[]);
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.header("x-ratelimit-remaining"),
            Some(&*remaining.to_string())
        );
        assert_eq!(
            answer.header("x-ratelimit-limit"),
            Some("3, 3;w=3600;name=\"search\"")
        );
        assert_eq!(answer.header("retry-after"), None);
    }
    let denied = envoy.get("/search", &[]);
    assert_eq!((denied.status, envoy.served()), (429, 3));
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    let seconds = |name| denied.header(name).map(|value| value.parse::<u32>().unwrap());
    let wait = seconds("retry-after").unwrap();
    assert!((3_500..=3_600).contains(&wait), "{wait}");
    assert_eq!(seconds("x-ratelimit-reset"), Some(wait));
    let named = denied.headers.iter().filter(|(name, _)| name == "retry-after");
    assert_eq!(named.count(), 1);
    assert_eq!(envoy.get("/unlimited", &[]).status, 200);
    assert_eq!(envoy.counter("cluster.service.ratelimit.over_limit"), 1);
}

#[test]
fn denial_of_one_descriptor_charges_no_descriptor() {
    let (_server, envoy) = servers();
    let login = |user| envoy.get("/login", &[("x-user", user)]).status;
    assert_eq!([login("ann"), login("ann"), login("ann")], [200, 200, 429]);
    assert_eq!([login("ann"), login("ann")], [429, 429]);
    // The limit of all users has four permits, of which ann's denied requests took none.
    assert_eq!([login("bob"), login("bob"), login("eve")], [200, 200, 429]);
}

#[test]
fn cost_comes_from_the_request_and_negative_hits_refund_it() {
    let server = Server::with_token(POLICIES, deadline_args());
    let token = TOKEN_SETTING
        .replace("# ", "")
        .replace("lim_…", support::access::TOKEN);
    let envoy = Envoy::start(server.grpc(), &[(TOKEN_SETTING, &token)]);
    let upload = |cost| envoy.get("/upload", &[("x-cost", cost)]);
    assert_eq!(upload("70").header("x-ratelimit-remaining"), Some("30"));
    assert_eq!(upload("31").status, 429);
    assert_eq!(upload("30").status, 200);
    // One job at a time; the end of each refunds its permit.
    for number in 0..3 {
        wait_until(
            || envoy.get("/jobs", &[]).status == 200,
            || format!("job {number}"),
        );
    }
}

#[test]
fn cost_of_the_response_is_charged_after_the_stream() {
    let (_server, envoy) = servers();
    assert_eq!(envoy.get("/tokens", &[("x-use", "1500")]).status, 200);
    // The charge follows the response, and exceeds the capacity of 1,000.
    wait_until(
        || envoy.get("/tokens", &[("x-use", "0")]).status == 429,
        || envoy.access_log(),
    );
}

#[test]
fn policy_in_shadow_mode_allows_and_explains() {
    let (_server, envoy) = servers();
    for _ in 0..3 {
        assert_eq!(envoy.get("/trial", &[]).status, 200);
    }
    let is_explained = || {
        let log = envoy.access_log();
        log.lines()
            .any(|line| line.contains("\"would_deny\":true") && line.contains("\"policy\":\"trial\""))
    };
    wait_until(is_explained, || envoy.access_log());
}

#[test]
fn failure_mode_decides_when_the_server_is_killed() {
    for (setting, expected) in [("true", 500), ("false", 200)] {
        let mut server = Server::with_policies(POLICIES, deadline_args());
        let setting = format!("failure_mode_deny: {setting}");
        let envoy = Envoy::start(server.grpc(), &[("failure_mode_deny: true", &setting)]);
        assert_eq!(envoy.get("/search", &[]).status, 200);
        server.kill();
        wait_until(
            || envoy.get("/search", &[]).status == expected,
            || format!("{setting}: {}", envoy.get("/search", &[]).status),
        );
        assert_eq!(envoy.get("/unlimited", &[]).status, 200);
    }
}
