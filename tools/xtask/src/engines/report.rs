//! Reads which tests failed from the output of `cargo test`.

use std::fmt;

/// The result of all suites on one engine.
#[derive(Debug, Default)]
pub(super) struct Report {
    passed: u64,
    failed: u64,
    /// Each as `target: test`.
    failures: Vec<String>,
    /// True if a call of cargo failed.
    has_error: bool,
}

impl Report {
    /// Records the end of a cargo command.
    pub(super) fn ended(&mut self, is_success: bool) {
        self.has_error |= !is_success;
    }

    /// Reads the output of all calls.
    pub(super) fn read(&mut self, log: &str) {
        let mut target = "";
        for line in log.lines().map(str::trim) {
            if let Some(running) = line.strip_prefix("Running ") {
                target = running.split(" (").next().unwrap_or(running);
            } else if let Some(result) = line.strip_prefix("test result: ") {
                self.passed += count(result, "passed");
                self.failed += count(result, "failed");
            } else if let Some(test) = line
                .strip_prefix("test ")
                .and_then(|rest| rest.strip_suffix(" ... FAILED"))
            {
                self.failures.push(format!("{target}: {test}"));
            }
        }
    }

    /// Returns whether every test passed. A suite that ended without a result, such as by a signal,
    /// has failed.
    pub(super) fn is_success(&self) -> bool {
        !self.has_error && self.failed == 0 && self.failures.is_empty() && self.passed > 0
    }
}

/// Returns the number in front of a word, in `ok. 12 passed; 0 failed; …`.
fn count(result: &str, word: &str) -> u64 {
    let words: Vec<&str> = result.split([' ', ';']).collect();
    let found = words.windows(2).find_map(|pair| match pair {
        [number, next] if *next == word => number.parse().ok(),
        _ => None,
    });
    found.unwrap_or(0)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.has_error && self.failures.is_empty() {
            write!(f, "; a suite ended without a result, see the log")?;
        }
        self.failures
            .iter()
            .try_for_each(|failure| write!(f, "\n        {failure}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "     Running unittests src/lib.rs (target/debug/deps/limiter_core-1)\n\n\
        running 2 tests\n\
        test waiting::a ... ok\n\
        test waiting::b ... FAILED\n\n\
        test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\n\
             Running tests/contract.rs (target/debug/deps/contract-1)\n\
        test result: ok. 30 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";

    #[test]
    fn failures_are_listed_with_their_target() {
        let mut report = Report::default();
        report.ended(false);
        report.read(LOG);
        assert!(!report.is_success());
        let shown = report.to_string();
        assert_eq!(
            shown,
            "31 passed, 1 failed\n        unittests src/lib.rs: waiting::b"
        );
    }

    #[test]
    fn suite_without_a_result_is_a_failure() {
        let mut report = Report::default();
        report.ended(false);
        report.read("test result: ok. 3 passed; 0 failed;\n     Running tests/cluster.rs (…)\n");
        assert!(!report.is_success());
        assert!(report.to_string().contains("without a result"));
        assert!(!Report::default().is_success());
    }
}
