//! Counts of one run, the conditions on which they depend, and the file with both.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use crate::{DECISIONS, PATHS};

/// The conditions under which counts are comparable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// The first line of `rustc --version`.
    pub compiler: String,
    /// The model of the processor: libraries choose instructions by it.
    pub processor: String,
    /// `valgrind --version`: it decides which processor the program sees.
    pub valgrind: String,
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            compiler,
            processor,
            valgrind,
        } = self;
        write!(f, "{compiler}; {processor}; {valgrind}")
    }
}

/// Instructions per decision, by path.
#[derive(Clone, Debug, PartialEq)]
pub struct Counts {
    /// The conditions of the run.
    pub conditions: Conditions,
    per_decision: BTreeMap<String, f64>,
}

const COMPILER: &str = "compiler";
const PROCESSOR: &str = "processor";
const VALGRIND: &str = "valgrind";

impl Counts {
    /// Creates the counts of a run, from the instructions of whole functions. If a function was
    /// measured repeatedly, its lowest count is used, because disturbances add instructions.
    #[must_use]
    pub fn new(conditions: Conditions, of_functions: impl IntoIterator<Item = (String, u64)>) -> Self {
        let mut per_decision = BTreeMap::new();
        for (path, count) in of_functions {
            let count = count as f64 / DECISIONS as f64;
            let lowest = per_decision.entry(path).or_insert(count);
            *lowest = count.min(*lowest);
        }
        Self {
            conditions,
            per_decision,
        }
    }

    /// Instructions per decision on this path.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<f64> {
        self.per_decision.get(path).copied()
    }

    /// Returns the names of the counted paths.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.per_decision.keys().map(String::as_str)
    }

    /// Returns the content of a file that [`parse`](Self::parse) reads: one tab-separated pair a
    /// line.
    #[must_use]
    pub fn to_text(&self) -> String {
        let Conditions {
            compiler,
            processor,
            valgrind,
        } = &self.conditions;
        let mut text = format!(
            "# Instructions per decision. Written by `cargo xtask bench --instructions --record`.\n\
             # Built with one codegen unit, since the partition into several changes the inlining.\n\
             {COMPILER}\t{compiler}\n{PROCESSOR}\t{processor}\n{VALGRIND}\t{valgrind}\n"
        );
        for path in PATHS {
            if let Some(count) = self.get(path.name) {
                let _ = writeln!(text, "{}\t{count:.1}", path.name);
            }
        }
        text
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// A message that names the malformed line, or the missing condition.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut fields = BTreeMap::new();
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            let (name, value) = line
                .split_once('\t')
                .ok_or_else(|| format!("`{line}` is not a name and a value with a tab between them"))?;
            fields.insert(name, value);
        }
        let mut condition = |name| {
            let value = fields.remove(name).map(str::to_owned);
            value.ok_or_else(|| format!("the line `{name}` is missing"))
        };
        let conditions = Conditions {
            compiler: condition(COMPILER)?,
            processor: condition(PROCESSOR)?,
            valgrind: condition(VALGRIND)?,
        };
        let count = |(name, value): (&str, &str)| match value.parse() {
            Ok(count) => Ok((name.to_owned(), count)),
            Err(_) => Err(format!("the count of `{name}` is not a number: `{value}`")),
        };
        Ok(Self {
            conditions,
            per_decision: fields.into_iter().map(count).collect::<Result<_, _>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsed_text_equals_written_counts() {
        let conditions = Conditions {
            compiler: "rustc 1.95.0 (59807616e 2026-04-14)".to_owned(),
            processor: "A Processor".to_owned(),
            valgrind: "valgrind-3.19.0".to_owned(),
        };
        let function = |each| (PATHS[0].name.to_owned(), each * DECISIONS);
        let counts = Counts::new(conditions, [function(512), function(520)]);
        assert_eq!(counts.get(PATHS[0].name), Some(512.0));
        assert_eq!(Counts::parse(&counts.to_text()), Ok(counts));
    }

    #[test]
    fn malformed_files_are_rejected_with_the_line() {
        let refused = |text: &str, reason: &str| {
            let error = Counts::parse(text).expect_err("the text is malformed");
            assert!(error.contains(reason), "{error}");
        };
        refused("compiler\tc\nprocessor\tp\n", "valgrind");
        refused("compiler rustc", "compiler rustc");
        refused("compiler\tc\nprocessor\tp\nvalgrind\tv\npath\tmany\n", "many");
    }
}
