//! List for the workload of one limit per decision: a single item saves the allocation, the length
//! and the drop loop of a `Vec`. `tests/allocations.rs` verifies that such a check in process
//! allocates nothing.

use std::iter::Chain;
use std::ops::{Deref, DerefMut};
use std::{option, slice, vec};

/// Like a `Vec`, without an allocation for a single item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OneOrMany<T> {
    /// One.
    One(T),
    /// Several items, or none.
    Several(Vec<T>),
}

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

impl<T> Deref for OneOrMany<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Self::One(one) => slice::from_ref(one),
            Self::Several(several) => several,
        }
    }
}

impl<T> DerefMut for OneOrMany<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(one) => slice::from_mut(one),
            Self::Several(several) => several,
        }
    }
}

impl<T> FromIterator<T> for OneOrMany<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut items = items.into_iter();
        match (items.next(), items.next()) {
            (Some(one), None) => Self::One(one),
            (Some(first), Some(second)) => {
                let mut several = Vec::with_capacity(items.size_hint().0 + 2);
                several.push(first);
                several.push(second);
                several.extend(items);
                Self::Several(several)
            }
            (None, _) => Self::default(),
        }
    }
}

impl<T> IntoIterator for OneOrMany<T> {
    type Item = T;
    type IntoIter = Chain<option::IntoIter<T>, vec::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, several) = match self {
            Self::One(one) => (Some(one), Vec::new()),
            Self::Several(several) => (None, several),
        };
        one.into_iter().chain(several)
    }
}

#[cfg(test)]
mod tests {
    use crate::support::one_or_many::*;

    #[test]
    fn order_is_kept_for_every_count() {
        for count in 0..5 {
            let items: OneOrMany<i32> = (0..count).collect();
            let all: Vec<i32> = (0..count).collect();
            assert_eq!(
                (&*items, items.clone().into_iter().collect()),
                (&*all, all.clone())
            );
            assert_eq!(matches!(items, OneOrMany::One(_)), count == 1);
        }
    }
}
