//! The last descriptors without a policy, for operators.
//!
//! Clients choose descriptors, so they never become a metric label: all are counted together, and
//! the last distinct ones are kept with a bounded length.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::gateway::rules::DescriptorEntry;

/// The number of distinct descriptors that are kept.
const KEPT: usize = 100;
/// The length of a kept descriptor in characters.
const KEPT_CHARS: usize = 120;

/// The last distinct descriptors without a policy.
#[derive(Debug, Default)]
pub struct UnmatchedDescriptors(Mutex<VecDeque<String>>);

impl UnmatchedDescriptors {
    /// Counts and keeps a descriptor.
    pub fn record<E: DescriptorEntry>(&self, domain: &str, entries: &[E]) {
        metrics::counter!("limiter_server_descriptors_total", "policy" => "unmatched").increment(1);
        let shown = shown(domain, entries);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.contains(&shown) {
            return;
        }
        tracing::debug!(descriptor = %shown, "no rule or policy for a descriptor");
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(shown);
    }

    /// Returns the kept descriptors, the oldest first.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().cloned().collect()
    }
}

/// Returns a descriptor as text, truncated.
fn shown<E: DescriptorEntry>(domain: &str, entries: &[E]) -> String {
    let mut chars = domain.chars().chain(" ".chars()).collect::<Vec<_>>();
    for (number, entry) in entries.iter().enumerate() {
        if number > 0 {
            chars.push(',');
        }
        let room = KEPT_CHARS.saturating_sub(chars.len());
        chars.extend(entry.key().chars().take(room));
        chars.push('=');
        chars.extend(entry.value().chars().take(room));
        if chars.len() >= KEPT_CHARS {
            break;
        }
    }
    chars.into_iter().take(KEPT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_descriptors_are_kept_up_to_a_bound() {
        let unmatched = UnmatchedDescriptors::default();
        let long = "é".repeat(1_000);
        for number in 0..300 {
            let value = format!("{number}{long}");
            unmatched.record("edge", &[("key", &*value)]);
            unmatched.record("edge", &[("key", &*value)]);
        }
        let listed = unmatched.list();
        assert_eq!(listed.len(), KEPT);
        assert!(listed[0].starts_with("edge key=200é"), "{}", listed[0]);
        assert!(listed.iter().all(|shown| shown.chars().count() == KEPT_CHARS));
    }
}
