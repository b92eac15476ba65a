//! The progress bar on a terminal.

use std::process::{Command, Stdio};

use crate::command::{Files, line};

/// `script` of util-linux runs a command with a terminal and prints the text that the terminal
/// received.
#[test]
fn progress_is_shown_on_terminal_and_removed() {
    let files = Files::new();
    let log: String = (0..40_000)
        .map(|number| line(&format!("10.0.{}.1", number % 200), number / 20, "/"))
        .collect();
    let (log, report) = (files.write("access.log", &log), files.path("report.txt"));
    let program = env!("CARGO_BIN_EXE_limiter-server");
    let policies = files.path("policies.toml");
    let replay = format!("'{program}' replay --policies '{policies}' --log '{log}' > '{report}'");
    let terminal = Command::new("script")
        .args(["--quiet", "--return", "--command", &replay, "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .expect("script of util-linux");
    let shown = String::from_utf8(terminal.stdout).unwrap();
    assert!(terminal.status.success(), "{shown}");
    let lines: Vec<&str> = shown.split('\r').filter(|line| !line.is_empty()).collect();
    let (removal, lines) = lines.split_last().unwrap();
    // The first update comes after 16,384 calls.
    assert!(!lines.is_empty(), "{shown:?}");
    for line in lines {
        assert!(line.starts_with('█') && line.ends_with("/s\u{1b}[K"), "{line:?}");
        assert!(line.contains(" %  ") && line.contains(" calls, "), "{line:?}");
    }
    assert!(lines[0].contains("  16384 calls, "), "{lines:?}");
    assert_eq!(*removal, "\u{1b}[K");
    let report = std::fs::read_to_string(report).unwrap();
    assert!(report.contains("40,000 calls"), "{report}");
}
