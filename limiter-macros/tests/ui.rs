//! The compiler's errors for invalid annotations. Valid ones are in `compiles/`.
#![allow(clippy::expect_used, reason = "tests")]

use std::path::PathBuf;
use std::process::Command;

/// The compiler with which the messages were written down; others may word theirs differently.
const PINNED: &str = "rustc 1.95.";
/// Where the files are that must not compile, if not in `tests/ui/fail`.
const ELSEWHERE: &str = "LIMITER_MACROS_UI_FAIL";

#[test]
fn every_error_is_reported_at_its_span() {
    let messages = std::env::var_os(ELSEWHERE).map(PathBuf::from);
    if messages.is_none() && !compiler().starts_with(PINNED) {
        return every_invalid_file_fails();
    }
    let files = messages
        .unwrap_or_else(|| PathBuf::from("tests/ui/fail"))
        .join("*.rs");
    trybuild::TestCases::new().compile_fail(files);
}

/// With another compiler than the pinned one, it is only checked that each file fails: this test
/// runs once more, on copies of the files, and writes the messages instead of comparing them.
fn every_invalid_file_fails() {
    let copies = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ui-fail");
    std::fs::create_dir_all(&copies).expect("the directory can be made");
    for file in std::fs::read_dir("tests/ui/fail").expect("the directory is there") {
        let file = file.expect("the directory can be read").path();
        if file.extension().is_some_and(|extension| extension == "rs") {
            let name = file.file_name().expect("a file has a name");
            std::fs::copy(&file, copies.join(name)).expect("the file can be copied");
        }
    }
    let status = Command::new(std::env::current_exe().expect("a test knows its program"))
        .args(["--exact", "every_error_is_reported_at_its_span", "--nocapture"])
        .env(ELSEWHERE, &copies)
        .env("TRYBUILD", "overwrite")
        .status()
        .expect("the test runs once more");
    assert!(
        status.success(),
        "each file of tests/ui/fail must fail to compile"
    );
}

fn compiler() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output().expect("rustc runs");
    String::from_utf8(output.stdout).expect("a version is text")
}
