//! Reads and changes the rules of a registry.
//!
//! A change replaces the rules of the source `code`. The effective list has the rules of all
//! sources and is shared with the readers, which compare it by its address: it is replaced only if
//! its rules differ. Tests: `tests/rules.rs`.

use std::sync::Arc;

use crate::error::ConfigError;
use crate::registry::PolicyRegistry;
use crate::registry::rule::Rule;
use crate::registry::sources::{SourceSnapshot, SourceStack};

impl PolicyRegistry {
    /// Maximum number of rules of one source.
    pub const MAX_RULES: usize = 10_000;

    /// Returns the effective rules in the order in which they are tried: the rules of Redis, then
    /// of files, then of code.
    #[must_use]
    pub fn rules(&self) -> Arc<[Rule]> {
        let rules = self.0.rules.read();
        Arc::clone(&rules)
    }

    /// Replaces the rules of [code](Self#where-policies-come-from).
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for more than [`MAX_RULES`](Self::MAX_RULES) rules.
    pub fn set_rules(&self, rules: impl IntoIterator<Item = Rule>) -> Result<(), ConfigError> {
        let rules: Arc<[Rule]> = rules.into_iter().collect();
        if rules.len() > Self::MAX_RULES {
            let expected = format!("at most {}", Self::MAX_RULES);
            return Err(ConfigError::invalid("number of rules", rules.len(), expected));
        }
        let mut sources = self.sources();
        if sources.code().rules == rules {
            return Ok(());
        }
        sources.code().rules = rules;
        self.renew_rules(&sources);
        self.count_change();
        Ok(())
    }

    /// Recomputes the effective rules from all sources.
    pub(super) fn renew_rules(&self, sources: &SourceStack) {
        let rules = sources.rules();
        let mut now = self.0.rules.write();
        // Readers compare the list by its address.
        if *now != rules {
            *now = rules;
        }
    }
}

impl SourceStack {
    /// Returns the rules of all sources, in descending order of precedence.
    fn rules(&self) -> Arc<[Rule]> {
        let mut sources = self.iter().rev().map(|source| &source.rules);
        let mut with_rules = sources.by_ref().filter(|rules| !rules.is_empty());
        match (with_rules.next(), with_rules.next()) {
            (None, _) => Arc::default(),
            (Some(only), None) => Arc::clone(only),
            (Some(first), Some(second)) => {
                let lists = [first, second].into_iter().chain(with_rules);
                lists.flat_map(|rules| rules.iter().cloned()).collect()
            }
        }
    }
}

impl SourceSnapshot {
    /// Keeps the rules of the previous snapshot.
    #[cfg(all(feature = "registry", feature = "redis"))]
    pub(super) fn retain_rules(&mut self, before: &Self) {
        self.rules = Arc::clone(&before.rules);
    }
}
