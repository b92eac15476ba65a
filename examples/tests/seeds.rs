//! The sequences are correct in both stores, and usage errors are reported.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Command, Output};

const EXPECTED: &str = "\
funnel: PPPPPPPPPPDDDDPPPPDD
window: PPPPPDDDDDDDDDDDDDDD
token: PPPPPDDDDDPPPPPDDDDD
";

fn seeds(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_seeds"))
        .args(arguments)
        .output()
        .unwrap()
}

fn assert_expected(output: &Output) {
    let error_text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error_text}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), EXPECTED);
    assert_eq!(error_text, "");
}

#[test]
fn sequences_match_in_process() {
    assert_expected(&seeds(&[]));
}

#[cfg(all(feature = "redis", unix))]
#[test]
fn sequences_match_twice_in_redis() {
    let server = limiter_testing::RedisServer::start();
    for _ in 0..2 {
        assert_expected(&seeds(&["--store", &server.url()]));
    }
}

#[cfg(all(feature = "redis", unix))]
#[test]
fn unavailable_store_ends_program() {
    let server = limiter_testing::RedisServer::start();
    let url = server.url();
    server.kill();
    let output = seeds(&["--store", &url]);
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(1), b"".as_slice())
    );
    assert!(!output.stderr.is_empty());
}

#[test]
fn invalid_arguments_print_usage() {
    for (arguments, error) in [
        (&["--stor", "memory"] as &[&str], "unknown argument `--stor`"),
        (&["--stores"], "unknown argument `--stores`"),
        (&["--store"], "--store needs a value"),
        (
            &["--store", "disk"],
            "--store is `disk`, expected `memory` or a URL that starts with redis://",
        ),
        (&["--store=memory", "--store=memory"], "--store is given twice"),
        (&["extra"], "unknown argument `extra`"),
    ] {
        let output = seeds(arguments);
        let error_text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (output.status.code(), output.stdout.as_slice()),
            (Some(2), b"".as_slice()),
            "{arguments:?}"
        );
        assert!(
            error_text.starts_with(error) && error_text.contains("usage: seeds"),
            "{error_text}"
        );
    }
}
