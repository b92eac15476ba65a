//! Two processes, one Redis, one limit.
#![cfg(all(feature = "redis", unix))]
#![expect(clippy::unwrap_used, reason = "a test ends that way")]

use std::process::Command;

/// Twice, since the second run must not be charged for the first.
#[test]
fn two_processes_together_admit_exactly_the_limit() {
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
fn without_redis_there_is_nothing_to_share() {
    let output = Command::new(env!("CARGO_BIN_EXE_replicas"))
        .env_remove("REDIS_URL")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("REDIS_URL"));
}
