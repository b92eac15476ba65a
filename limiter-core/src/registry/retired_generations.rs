//! Generations of policies that were removed from the registry.
//!
//! A name that is removed after a reset and added again must not find usage from before the reset.
//! The table stores the last generation of each such name while that usage may count. Expired
//! entries are removed each time the table doubles, so its size is at most twice the number of
//! active names or 64. Tests: below, `registry/sources/tests.rs`, `tests/registry.rs`.

use std::collections::HashMap;

use crate::units::Timestamp;

/// Last generations of names that code has reset and removed. A name that is added again continues
/// after its last generation, so usage from before a reset never counts again. An entry is kept
/// while such usage may count.
#[derive(Debug, Default)]
pub(super) struct RetiredGenerations {
    names: HashMap<Box<str>, LastGeneration>,
    /// The number of names at which expired entries are removed.
    tidy_at: usize,
}

#[derive(Clone, Copy, Debug)]
struct LastGeneration {
    generation: u32,
    counts_until: Timestamp,
}

impl RetiredGenerations {
    const TIDY_AT_LEAST: usize = 64;

    /// Returns the last generation of a name, if it is not the first one.
    pub(super) fn generation(&self, name: &str) -> Option<u32> {
        self.names.get(name).map(|last| last.generation)
    }

    /// Records the last generation of a name, and the time until which usage in earlier generations
    /// may count.
    pub(super) fn record(&mut self, name: &str, generation: u32, counts_until: Timestamp, now: Timestamp) {
        if self.names.len() >= self.tidy_at {
            self.names.retain(|_, last| last.counts_until > now);
            // Doubling amortizes the removal.
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

    use crate::registry::retired_generations::*;

    #[test]
    fn retired_names_are_bounded_by_twice_the_active_ones() {
        let (mut left, mut now) = (RetiredGenerations::default(), Timestamp::from_micros(1));
        let lasts = Duration::from_secs(300);
        for number in 0..10_000 {
            now = now.after(Duration::from_secs(1));
            left.record(&format!("tenant {number}"), 1, now.after(lasts), now);
            left.record("reset every second", number, now.after(lasts), now);
            assert!(left.names.len() <= 2 * 302, "{}", left.names.len());
        }
        assert_eq!(left.generation("tenant 9999"), Some(1));
        assert_eq!(left.generation("tenant 9700"), Some(1), "usage still counts");
        assert_eq!(left.generation("reset every second"), Some(9_999));
        assert_eq!(left.generation("tenant 9000"), None);
    }

    #[test]
    fn longest_period_is_kept() {
        let (mut left, now) = (RetiredGenerations::default(), Timestamp::from_micros(1));
        let after = |seconds| now.after(Duration::from_secs(seconds));
        left.record("a", 2, after(100), now);
        left.record("a", 1, after(10), now);
        for number in 0..1_000 {
            left.record(&number.to_string(), 1, after(50), after(50));
        }
        assert_eq!(left.generation("a"), Some(2));
    }
}
