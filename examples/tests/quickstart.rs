//! The quickstart succeeds without other programs.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

#[test]
fn quickstart_admits_burst_and_recovers() {
    let output = Command::new(env!("CARGO_BIN_EXE_quickstart"))
        .env_remove("REDIS_URL")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");

    let line = |start: &str| {
        text.lines()
            .find(|line| line.trim_start().starts_with(start))
            .unwrap_or(&text)
    };
    for admitted in ["ann, call 1", "ann, call 2", "ann, call 3", "ann, a second later"] {
        assert!(line(admitted).ends_with("hello, ann"), "{text}");
    }
    assert!(line("bob, call 1").ends_with("hello, bob"), "{text}");
    for denied in ["ann, call 4", "ann, call 5", "search 3"] {
        assert!(line(denied).contains("denied, the next is admitted in"), "{text}");
    }
    assert!(line("search 2").ends_with("allowed, 0 left"), "{text}");
}
