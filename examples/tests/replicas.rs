//! Two processes, one Redis, one limit.
#![cfg(all(feature = "redis", unix))]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

/// Runs twice, because usage of the first run must not affect the second.
#[test]
fn two_processes_admit_exactly_one_limit() {
    let server = limiter_testing::RedisServer::start();
    for _ in 0..2 {
        let output = Command::new(env!("CARGO_BIN_EXE_replicas"))
            .env("REDIS_URL", server.url())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success(),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(text.ends_with("together 50, and the limit is 50\n"), "{text}");
    }
}

#[test]
fn missing_redis_url_is_reported() {
    let output = Command::new(env!("CARGO_BIN_EXE_replicas"))
        .env_remove("REDIS_URL")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("REDIS_URL"));
}
