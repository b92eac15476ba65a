//! The numbers of today, which may only fall.

use std::collections::BTreeMap;
use std::fmt;

/// The subject of a count: a check, and a file or a name within a crate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) subject: String,
    pub(super) check: &'static str,
}

pub(super) const CHECKS: [&str; 10] = [
    "cycles", "headers", "headless", "layers", "length", "names", "openings", "roots", "width", "words",
];

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Baseline(BTreeMap<Key, usize>);

impl Key {
    pub(super) fn new(check: &'static str, subject: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            check,
        }
    }

    /// Returns the check within a crate, whose total may not rise. A crate is the first folder, or
    /// the second one below `tools`.
    fn group(&self) -> String {
        let mut parts = self.subject.split('/');
        let first = parts.next().unwrap_or_default();
        let is_file = !self.subject.contains('/');
        let of_crate = match first {
            "tools" => parts.next().unwrap_or_default(),
            // Documents of the repository's root move into docs.
            _ if is_file => "docs",
            _ => first,
        };
        format!("{} {of_crate}", self.check)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.subject, self.check)
    }
}

impl From<BTreeMap<Key, usize>> for Baseline {
    fn from(numbers: BTreeMap<Key, usize>) -> Self {
        Self(numbers)
    }
}

impl Baseline {
    /// Reads lines of `<file> <check> <number>`. Markers of a merge conflict and other lines are
    /// skipped; of two numbers for one key, which both sides of a conflict have, the higher one
    /// counts.
    pub(super) fn parse(text: &str) -> Self {
        let mut numbers = BTreeMap::new();
        for line in text.lines() {
            let mut parts = line.split(' ');
            let (Some(subject), Some(check), Some(number), None) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let check = CHECKS.iter().find(|name| **name == check);
            if let (Some(check), Ok(number)) = (check, number.parse::<usize>()) {
                let entry = numbers.entry(Key::new(check, subject)).or_insert(0);
                *entry = number.max(*entry);
            }
        }
        Self(numbers)
    }

    /// Returns the keys whose numbers are above the baseline, and those whose numbers are below it,
    /// each with the baseline's number first.
    pub(super) fn compare(&self, counts: &BTreeMap<Key, usize>) -> (Vec<(Key, usize, usize)>, Vec<Key>) {
        let allowed = |key: &Key| self.0.get(key).copied().unwrap_or_default();
        let found = |key: &Key| counts.get(key).copied().unwrap_or_default();
        let raised = counts
            .iter()
            .filter(|(key, found)| **found > allowed(key))
            .map(|(key, found)| (key.clone(), allowed(key), *found));
        let lowered = self.0.keys().filter(|key| found(key) < allowed(key));
        (raised.collect(), lowered.cloned().collect())
    }

    /// Returns the totals of a check in a crate that are higher than here, with both totals.
    pub(super) fn raised_totals(&self, counts: &BTreeMap<Key, usize>) -> Vec<(String, usize, usize)> {
        let old = totals(&self.0);
        let raised = totals(counts).into_iter().filter_map(|(group, new)| {
            let old = old.get(&group).copied().unwrap_or_default();
            (new > old).then_some((group, old, new))
        });
        raised.collect()
    }
}

fn totals(numbers: &BTreeMap<Key, usize>) -> BTreeMap<String, usize> {
    let mut totals = BTreeMap::new();
    for (key, number) in numbers {
        *totals.entry(key.group()).or_default() += number;
    }
    totals
}

/// Returns the number of violations of each check.
pub(super) fn totals_by_check(numbers: &BTreeMap<Key, usize>) -> BTreeMap<&'static str, usize> {
    let mut totals = BTreeMap::new();
    for (key, number) in numbers {
        *totals.entry(key.check).or_default() += number;
    }
    totals
}

impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|(key, number)| writeln!(f, "{key} {number}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(text: &str) -> BTreeMap<Key, usize> {
        Baseline::parse(text).0
    }

    #[test]
    fn text_round_trips_in_sorted_order() {
        let text = "a/src/lib.rs width 3\nb/src/lib.rs words 1\n";
        assert_eq!(Baseline::parse(text).to_string(), text);
        assert_eq!(
            Baseline::parse("b/src/lib.rs words 1\na/src/lib.rs width 3\n").to_string(),
            text
        );
    }

    #[test]
    fn compare_reports_raised_and_lowered_numbers() {
        let baseline = Baseline::parse("a/x.rs width 3\na/y.rs width 3\n");
        let (raised, lowered) = baseline.compare(&counts("a/x.rs width 4\na/y.rs width 2\n"));
        assert_eq!(raised, [(Key::new("width", "a/x.rs"), 3, 4)]);
        assert_eq!(lowered, [Key::new("width", "a/y.rs")]);
        let (raised, lowered) = baseline.compare(&counts("a/x.rs width 3\na/y.rs width 3\n"));
        assert!(raised.is_empty() && lowered.is_empty());
    }

    #[test]
    fn update_accepts_moved_files_and_refuses_a_higher_total() {
        let baseline = Baseline::parse("a/src/old.rs width 3\ntools/t/src/x.rs width 1\n");
        assert!(
            baseline
                .raised_totals(&counts("a/src/new.rs width 3\nt/src/x.rs width 1\n"))
                .is_empty()
        );
        let raised = baseline.raised_totals(&counts("a/src/old.rs width 3\na/src/new.rs width 1\n"));
        assert_eq!(raised, [("width a".to_owned(), 3, 4)]);
    }

    #[test]
    fn conflict_markers_are_skipped_and_the_higher_number_counts() {
        let text = "<<<<<<< HEAD\na/x.rs width 3\n=======\na/x.rs width 5\n>>>>>>> commit\n";
        assert_eq!(Baseline::parse(text).to_string(), "a/x.rs width 5\n");
    }
}
