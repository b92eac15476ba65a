//! Values of a list and the times at which they end.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use crate::units::Timestamp;

/// Values and their ends.
#[derive(Clone)]
pub(super) struct EndTable<T>(HashMap<T, Timestamp>);

impl<T> Default for EndTable<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Eq + Hash> EndTable<T> {
    /// Adds a value. Of two ends of one value, the later one applies.
    pub(super) fn insert(&mut self, value: T, end: Timestamp) {
        let known = self.0.entry(value).or_insert(end);
        *known = end.max(*known);
    }

    pub(super) fn contains<Q: Eq + Hash + ?Sized>(&self, value: &Q, now: Timestamp) -> bool
    where
        T: Borrow<Q>,
    {
        self.0.get(value).is_some_and(|end| now < *end)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
