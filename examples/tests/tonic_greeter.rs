//! The client sees the codes that it must.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

const EXPECTED: &str = "\
ann, call 1: Ok: hello, ann
ann, call 2: Ok: hello, ann
ann, call 3: Ok: hello, ann
ann, call 4: ResourceExhausted: rate limit reached, retry after 2 seconds
bob, call 1: Ok: hello, bob
ann, patiently, tries: 2: Ok: hello, ann
anonymous, patiently, tries: 1: Unauthenticated: Unauthorized
";

#[test]
fn denied_caller_receives_delay_and_succeeds_afterwards() {
    let output = Command::new(env!("CARGO_BIN_EXE_tonic_greeter"))
        .env_remove("REDIS_URL")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // A machine under load may take a second.
    let text = String::from_utf8_lossy(&output.stdout).replace("after 1 second\n", "after 2 seconds\n");
    assert_eq!(text, EXPECTED);
}

#[test]
fn invalid_arguments_are_reported() {
    let output = Command::new(env!("CARGO_BIN_EXE_tonic_greeter"))
        .arg("serve")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("usage: "));
}
