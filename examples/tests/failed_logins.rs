//! Repeated failures lock out one client and no other.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::process::{Command, Output};

fn run(enforcement: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_failed_logins"));
    command.env_remove("REDIS_URL").env_remove("LIMITER_ENFORCEMENT");
    if let Some(enforcement) = enforcement {
        command.env("LIMITER_ENFORCEMENT", enforcement);
    }
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn five_failures_lock_out_client_for_a_while() {
    let text = text(&run(None));
    let of = |address: &str| {
        let lines = text.lines().filter(|line| line.starts_with(address));
        lines.map(|line| line.to_owned()).collect::<Vec<_>>()
    };
    let attacker = of("198.51.100.7 ");
    for line in &attacker[..4] {
        assert!(line.ends_with("wrong password"), "{text}");
    }
    for line in &attacker[4..6] {
        assert!(line.contains("locked out for "), "{text}");
    }
    assert!(attacker.last().unwrap().ends_with("welcome"), "{text}");
    assert!(of("192.0.2.1")[0].ends_with("welcome"), "{text}");
    assert!(of("203.0.113.9")[0].ends_with("forbidden"), "{text}");
}

/// The mode is set by the environment, without a change of the program.
#[test]
fn shadow_and_off_modes_lock_out_no_client() {
    for enforcement in ["shadow", "off", "OFF"] {
        let text = text(&run(Some(enforcement)));
        let mode = enforcement.to_lowercase();
        assert!(
            text.starts_with(&format!("limits are in the mode `{mode}`")),
            "{text}"
        );
        assert!(
            !text.contains("locked out") && !text.contains("forbidden"),
            "{text}"
        );
    }
}

/// Without Redis, the limiter is built anyway, and enforces.
#[test]
fn invalid_enforcement_variable_enforces_in_process() {
    let text = text(&run(Some("maybe")));
    assert!(text.starts_with("limits are in the mode `enforce`"), "{text}");
}

/// With Redis, the build fails before any connection is opened.
#[cfg(feature = "redis")]
#[test]
fn invalid_enforcement_variable_fails_build_with_redis() {
    let refused = Command::new(env!("CARGO_BIN_EXE_failed_logins"))
        .env("REDIS_URL", "redis://127.0.0.1:1/")
        .env("LIMITER_ENFORCEMENT", "maybe")
        .output()
        .unwrap();
    let error_text = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success());
    let expected = "LIMITER_ENFORCEMENT is `maybe`, expected `enforce`, `shadow` or `off`\n";
    assert_eq!(error_text, expected);
}

#[cfg(feature = "redis")]
#[test]
fn failures_lock_out_client_in_redis() {
    let server = limiter_testing::RedisServer::start();
    let output = Command::new(env!("CARGO_BIN_EXE_failed_logins"))
        .env("REDIS_URL", server.url())
        .env_remove("LIMITER_ENFORCEMENT")
        .output()
        .unwrap();
    let text = text(&output);
    assert_eq!(text.matches("locked out for ").count(), 2, "{text}");
}
