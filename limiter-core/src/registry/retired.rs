//! Generations of policies that are not in the registry any more.

use std::collections::HashMap;

use crate::units::Timestamp;

/// The generations that code gave names, of those that were reset: what was used before must not
/// come back with their names. It is remembered as long as that may count.
#[derive(Debug, Default)]
pub(super) struct RetiredGenerations {
    names: HashMap<Box<str>, LastGeneration>,
    /// When there are so many, those are looked for that are of no account any more.
    tidy_at: usize,
}

#[derive(Clone, Copy, Debug)]
struct LastGeneration {
    generation: u32,
    counts_until: Timestamp,
}

impl RetiredGenerations {
    const TIDY_AT_LEAST: usize = 64;

    /// The last generation of a name, where that is not the first.
    pub(super) fn generation(&self, name: &str) -> Option<u32> {
        self.names.get(name).map(|last| last.generation)
    }

    /// This generation is a name's last, and until this moment what was used in the ones before may
    /// count.
    pub(super) fn note(&mut self, name: &str, generation: u32, counts_until: Timestamp, now: Timestamp) {
        if self.names.len() >= self.tidy_at {
            self.names.retain(|_, last| last.counts_until > now);
            // So that it is seldom done, however many there are.
            self.tidy_at = (2 * self.names.len()).max(Self::TIDY_AT_LEAST);
        }
        let last = self.names.entry(name.into()).or_insert(LastGeneration {
            generation,
            counts_until,
        });
        last.generation = last.generation.max(generation);
        last.counts_until = last.counts_until.max(counts_until);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::registry::retired::*;

    #[test]
    fn no_more_names_are_remembered_than_twice_those_that_count() {
        let (mut left, mut now) = (RetiredGenerations::default(), Timestamp::from_micros(1));
        let lasts = Duration::from_secs(300);
        for number in 0..10_000 {
            now = now.after(Duration::from_secs(1));
            left.note(&format!("tenant {number}"), 1, now.after(lasts), now);
            left.note("reset every second", number, now.after(lasts), now);
            assert!(left.names.len() <= 2 * 302, "{}", left.names.len());
        }
        assert_eq!(left.generation("tenant 9999"), Some(1));
        assert_eq!(left.generation("tenant 9700"), Some(1), "it counts still");
        assert_eq!(left.generation("reset every second"), Some(9_999));
        assert_eq!(left.generation("tenant 9000"), None);
    }

    #[test]
    fn what_counts_longest_is_waited_for() {
        let (mut left, now) = (RetiredGenerations::default(), Timestamp::from_micros(1));
        let after = |seconds| now.after(Duration::from_secs(seconds));
        left.note("a", 2, after(100), now);
        left.note("a", 1, after(10), now);
        for number in 0..1_000 {
            left.note(&number.to_string(), 1, after(50), after(50));
        }
        assert_eq!(left.generation("a"), Some(2));
    }
}
