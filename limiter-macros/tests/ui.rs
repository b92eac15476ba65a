//! The compiler's errors for invalid annotations. Valid ones are in `compiles/`.
#![allow(clippy::expect_used, reason = "tests")]

use std::path::PathBuf;
use std::process::Command;

/// The compiler that produced the expected messages; other versions can format them differently.
const PINNED: &str = "rustc 1.95.";
/// Environment variable with another directory than `tests/ui/fail`.
const ELSEWHERE: &str = "LIMITER_MACROS_UI_FAIL";

#[test]
fn errors_are_reported_at_their_spans() {
    let messages = std::env::var_os(ELSEWHERE).map(PathBuf::from);
    if messages.is_none() && !compiler().starts_with(PINNED) {
        return assert_invalid_files_fail();
    }
    let files = messages
        .unwrap_or_else(|| PathBuf::from("tests/ui/fail"))
        .join("*.rs");
    trybuild::TestCases::new().compile_fail(files);
}

/// Checks only that each file fails to compile, for compilers other than the pinned one: runs this
/// test again on copies of the files, which overwrites the expected messages.
fn assert_invalid_files_fail() {
    let copies = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ui-fail");
    std::fs::create_dir_all(&copies).expect("the directory is created");
    for file in std::fs::read_dir("tests/ui/fail").expect("the directory exists") {
        let file = file.expect("the directory is readable").path();
        if file.extension().is_some_and(|extension| extension == "rs") {
            let name = file.file_name().expect("a file has a name");
            std::fs::copy(&file, copies.join(name)).expect("the file is copied");
        }
    }
    let status = Command::new(std::env::current_exe().expect("the test has a path"))
        .args(["--exact", "errors_are_reported_at_their_spans", "--nocapture"])
        .env(ELSEWHERE, &copies)
        .env("TRYBUILD", "overwrite")
        .status()
        .expect("the test starts again");
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
