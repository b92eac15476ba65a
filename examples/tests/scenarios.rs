//! Scenarios that verify their own results succeed without other programs.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

fn output_of(program: &str) -> String {
    successful_output(Command::new(program).env_remove("REDIS_URL"))
}

fn successful_output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

#[cfg(feature = "axum")]
#[test]
fn outbound_client_receives_no_rejection() {
    let text = output_of(env!("CARGO_BIN_EXE_outbound_client"));
    assert!(text.contains("behind the layer: 0 refused"), "{text}");
    assert!(!text.contains("without a limiter: 0 refused"), "{text}");
    assert!(text.contains("by a client without a configured quota"), "{text}");
}

#[cfg(feature = "axum")]
#[test]
fn log_names_denied_client_once_a_second() {
    let text = output_of(env!("CARGO_BIN_EXE_denied_clients"));
    let lines = text
        .matches("198.51.100.7 GET /search denied by `api`, retry after 3")
        .count();
    assert_eq!(lines, 1, "{text}");
    assert!(text.contains("198.51.100.8 200 OK"), "{text}");
}

fn assert_tier_changed(text: &str) {
    assert!(text.contains("ann (Free): 2 of 8 calls admitted"), "{text}");
    assert!(text.contains("ann (Pro): 6 of 8 calls admitted"), "{text}");
    assert!(text.contains(":3:9: "), "the position of the error: {text}");
}

#[test]
fn change_of_tier_in_file_is_applied() {
    assert_tier_changed(&output_of(env!("CARGO_BIN_EXE_tiers")));
}

/// Runs twice, because the second run starts with the state of the first.
#[cfg(all(feature = "redis", unix))]
#[test]
fn change_of_tier_in_redis_is_applied() {
    let server = limiter_testing::RedisServer::start();
    for _ in 0..2 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiers"));
        assert_tier_changed(&successful_output(command.env("REDIS_URL", server.url())));
    }
}

#[test]
fn injected_clock_needs_no_waiting() {
    let text = output_of(env!("CARGO_BIN_EXE_tested_with_a_clock"));
    assert!(text.contains("More than a day, in"), "{text}");
}

#[test]
fn budget_settles_reserved_tokens() {
    let text = output_of(env!("CARGO_BIN_EXE_llm_budget"));
    assert!(
        text.contains("1510 tokens reserved, 100 used, 1900 left"),
        "{text}"
    );
    assert!(text.contains("ann owes 500 tokens"), "{text}");
    assert!(text.contains("ann asked for too much"), "{text}");
}
