//! Comparison of external formats with committed files.

use std::path::Path;
use std::{env, fs};

/// Compares a text with the file `tests/frozen/<file>` of a crate, line by line, or replaces the
/// file if the environment variable `LIMITER_FROZEN` is `write`.
///
/// # Panics
///
/// At the first line that differs, and if the file cannot be written.
#[track_caller]
pub fn assert_frozen(manifest_dir: &str, file: &str, actual: &str) {
    let path = Path::new(manifest_dir).join("tests/frozen").join(file);
    if env::var_os("LIMITER_FROZEN").is_some_and(|value| value == "write") {
        if let Err(error) = fs::write(&path, actual) {
            panic!("cannot write {}: {error}", path.display());
        }
        return;
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    let (mut old, mut new) = (expected.lines(), actual.lines());
    let mut line = 0;
    loop {
        line += 1;
        let (old, new) = (old.next(), new.next());
        assert_eq!(old, new, "{}, line {line}", path.display());
        if old.is_none() {
            break;
        }
    }
    // Line ends and empty lines at the end.
    assert_eq!(expected, actual, "{}", path.display());
}
