//! Lines that cannot be replayed: counted by kind, with the first examples. Tests: below.

use serde::Serialize;

/// The number of examples of each kind.
const EXAMPLES: usize = 3;
/// The longest value in an example, in characters.
const MAX_VALUE: usize = 80;

/// The part of a line that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// The line is not in the format.
    Format,
    /// The line has no time, or one that cannot be read.
    Time,
    /// A field of the key is absent.
    Key,
    /// The cost is absent or no amount.
    Cost,
    /// The line is not UTF-8 or longer than the limit.
    Text,
}

/// The reason for which a line cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LineProblem {
    pub(super) kind: ProblemKind,
    pub(super) value: String,
    pub(super) expected: String,
}

impl LineProblem {
    pub(super) fn new(kind: ProblemKind, value: &str, expected: impl Into<String>) -> Self {
        let mut shown: String = value.chars().take(MAX_VALUE).collect();
        if shown.len() < value.len() {
            shown.push('…');
        }
        Self {
            kind,
            value: shown,
            expected: expected.into(),
        }
    }
}

/// Lines with one kind of problem.
#[derive(Clone, Debug, Serialize)]
pub struct BrokenLines {
    /// The part that cannot be read.
    pub kind: ProblemKind,
    /// The number of lines.
    pub lines: u64,
    /// The first of them: file, line, value and expectation.
    pub examples: Vec<String>,
}

/// The problems of all lines.
#[derive(Clone, Debug, Default)]
pub(super) struct Problems(Vec<BrokenLines>);

impl Problems {
    pub(super) fn add(&mut self, file: &str, line: u64, problem: &LineProblem) {
        let kind = problem.kind;
        let place = self.0.iter().position(|of| of.kind == kind);
        let index = place.unwrap_or_else(|| {
            self.0.push(BrokenLines {
                kind,
                lines: 0,
                examples: Vec::new(),
            });
            self.0.len() - 1
        });
        if let Some(broken) = self.0.get_mut(index) {
            broken.lines += 1;
            if broken.examples.len() < EXAMPLES {
                let LineProblem { value, expected, .. } = problem;
                broken
                    .examples
                    .push(format!("{file}:{line}: `{value}`, expected {expected}"));
            }
        }
    }

    pub(super) fn lines(&self) -> u64 {
        self.0.iter().map(|broken| broken.lines).sum()
    }

    pub(super) fn first(&self) -> Option<&str> {
        let examples = self.0.iter().flat_map(|broken| &broken.examples);
        examples.map(String::as_str).next()
    }

    pub(super) fn into_report(self) -> Vec<BrokenLines> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use crate::replay::problems::{LineProblem, ProblemKind, Problems};

    #[test]
    fn problems_keep_first_examples_and_count_all() {
        let mut problems = Problems::default();
        for line in 1..=5 {
            let problem = LineProblem::new(ProblemKind::Time, "noon", "RFC 3339");
            problems.add("a.log", line, &problem);
        }
        problems.add(
            "a.log",
            6,
            &LineProblem::new(ProblemKind::Key, &"x".repeat(200), "y"),
        );
        assert_eq!(problems.lines(), 6);
        let report = problems.into_report();
        assert_eq!(report[0].lines, 5);
        assert_eq!(report[0].examples.len(), 3);
        assert_eq!(report[0].examples[0], "a.log:1: `noon`, expected RFC 3339");
        assert!(report[1].examples[0].contains("xxx…`"));
    }
}
