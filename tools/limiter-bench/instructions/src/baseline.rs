//! The comparison of a run with committed counts.

use std::fmt::Write as _;

use crate::{Counts, PATHS};

/// The largest accepted increase.
const MAX_INCREASE: f64 = 0.03;

/// The committed counts with which a run is compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Baseline {
    counts: Counts,
}

/// One path in both runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The path's name.
    pub path: &'static str,
    /// Instructions per decision of the baseline, unless the path is new.
    pub before: Option<f64>,
    /// Instructions per decision of the run, unless the path was not measured.
    pub after: Option<f64>,
}

impl Change {
    /// Returns the increase as a fraction of the baseline.
    #[must_use]
    pub fn increase(&self) -> Option<f64> {
        Some(self.after? / self.before? - 1.0)
    }

    fn is_regression(&self) -> bool {
        self.increase().is_some_and(|increase| increase > MAX_INCREASE)
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    changes: Vec<Change>,
    /// Paths of the baseline that the run did not count.
    uncounted: Vec<String>,
    is_comparable: bool,
}

impl Baseline {
    /// Creates the baseline of the committed counts.
    #[must_use]
    pub fn new(counts: Counts) -> Self {
        Self { counts }
    }

    /// Chooses the counts with the same conditions as the run, else with the same compiler, else
    /// any.
    #[must_use]
    pub fn choose(run: &Counts, committed: impl IntoIterator<Item = Counts>) -> Option<Self> {
        let rank = |counts: &Counts| {
            let compiler = counts.conditions.compiler == run.conditions.compiler;
            (counts.conditions == run.conditions, compiler)
        };
        committed.into_iter().max_by_key(rank).map(Self::new)
    }

    /// Compares all paths.
    #[must_use]
    pub fn compare(&self, run: &Counts) -> Verdict {
        let change = |path: &crate::Path| Change {
            path: path.name,
            before: self.counts.get(path.name),
            after: run.get(path.name),
        };
        let is_uncounted = |path: &&str| run.get(path).is_none();
        Verdict {
            uncounted: self
                .counts
                .paths()
                .filter(is_uncounted)
                .map(str::to_owned)
                .collect(),
            changes: PATHS.iter().map(change).collect(),
            is_comparable: self.counts.conditions == run.conditions,
        }
    }
}

impl Verdict {
    /// Returns the reason for which the run is not accepted, as an error.
    ///
    /// # Errors
    ///
    /// A message that names each path of the baseline without a count, else each path with more
    /// than 3 % more instructions. Counts under other conditions than those of the baseline are not
    /// judged, but their absence is.
    pub fn judge(&self) -> Result<(), String> {
        if !self.uncounted.is_empty() {
            return Err(format!(
                "paths of the baseline that were not counted: {}; `--record` removes them",
                self.uncounted.join(", ")
            ));
        }
        let regressions: Vec<String> = self
            .changes
            .iter()
            .filter(|change| self.is_comparable && change.is_regression())
            .map(|change| {
                let increase = change.increase().unwrap_or_default();
                format!("{} ({:+.1} %)", change.path, increase * 100.0)
            })
            .collect();
        if regressions.is_empty() {
            return Ok(());
        }
        Err(format!(
            "more than {:.0} % more instructions: {}",
            MAX_INCREASE * 100.0,
            regressions.join(", ")
        ))
    }

    /// Returns a table of all paths.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{:<40} {:>12} {:>12} {:>8}\n",
            "path", "baseline", "now", "change"
        );
        for change in &self.changes {
            let count = |count: Option<f64>| count.map_or("-".to_owned(), |count| format!("{count:.1}"));
            let increase = change
                .increase()
                .map_or("-".to_owned(), |increase| format!("{:+.2} %", increase * 100.0));
            let Change { path, before, after } = *change;
            let _ = writeln!(
                text,
                "{path:<40} {:>12} {:>12} {increase:>8}",
                count(before),
                count(after)
            );
        }
        if !self.is_comparable {
            text.push_str("The baseline was measured under other conditions: nothing is judged.\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Conditions, DECISIONS};

    fn counts(processor: &str, each: u64) -> Counts {
        let conditions = Conditions {
            compiler: "rustc 1.95.0".to_owned(),
            processor: processor.to_owned(),
            valgrind: "valgrind-3.19.0".to_owned(),
        };
        Counts::new(conditions, [(PATHS[0].name.to_owned(), each * DECISIONS)])
    }

    fn judge(before: Counts, after: &Counts) -> Result<(), String> {
        Baseline::new(before).compare(after).judge()
    }

    #[test]
    fn increase_above_three_percent_fails_and_names_the_path() {
        assert_eq!(judge(counts("a", 1_000), &counts("a", 1_029)), Ok(()));
        let error = judge(counts("a", 1_000), &counts("a", 1_031)).expect_err("it is 3.1 %");
        assert!(
            error.contains(PATHS[0].name) && error.contains("+3.1 %"),
            "{error}"
        );
    }

    #[test]
    fn baseline_path_without_count_fails_and_is_named() {
        let uncounted = |processor| Counts::new(counts(processor, 1).conditions, []);
        for processor in ["a", "b"] {
            let error = judge(counts("a", 1_000), &uncounted(processor)).expect_err("a path is missing");
            assert!(error.contains(PATHS[0].name), "{error}");
        }
        assert_eq!(
            judge(uncounted("a"), &counts("a", 1_000)),
            Ok(()),
            "the path is new"
        );
    }

    #[test]
    fn baseline_path_that_was_removed_fails() {
        let removed = "compiler\trustc 1.95.0\nprocessor\ta\nvalgrind\tvalgrind-3.19.0\nremoved::path\t1.0\n";
        let error = judge(Counts::parse(removed).expect("valid"), &counts("a", 1)).expect_err("it is gone");
        assert!(error.contains("removed::path"), "{error}");
    }

    #[test]
    fn other_processor_is_reported_and_not_judged() {
        let verdict = Baseline::new(counts("a", 1_000)).compare(&counts("b", 2_000));
        assert_eq!(verdict.judge(), Ok(()));
        assert!(verdict.to_text().contains("+100.00 %"));
        assert!(verdict.to_text().contains("nothing is judged"));
    }

    #[test]
    fn baseline_with_equal_conditions_is_preferred() {
        let run = counts("b", 2_000);
        let committed = [counts("a", 1_000), counts("b", 1_500), counts("c", 1_000)];
        let chosen = Baseline::choose(&run, committed).expect("there are three");
        assert!(chosen.compare(&run).judge().is_err());
        assert_eq!(Baseline::choose(&run, []), None);
    }
}
