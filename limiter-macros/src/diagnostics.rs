//! Collects the mistakes of one annotation, so that all of them are reported at once, each at its
//! place.

use std::fmt::Display;

use proc_macro2::{Span, TokenStream};

/// The mistakes found so far.
#[derive(Default)]
pub(crate) struct Diagnostics {
    errors: Vec<Mistake>,
    /// Whether what is reported next stands in an attribute of the block around the function.
    pub(crate) of_block: bool,
}

/// One mistake.
pub(crate) struct Mistake {
    pub(crate) error: syn::Error,
    pub(crate) of_block: bool,
}

impl Diagnostics {
    /// Reports a mistake at one place.
    pub(crate) fn at(&mut self, span: Span, message: impl Display) {
        self.push(syn::Error::new(span, message));
    }

    /// Reports a mistake that a parser found.
    pub(crate) fn push(&mut self, error: syn::Error) {
        let of_block = self.of_block;
        self.errors.push(Mistake { error, of_block });
    }

    /// The value; a mistake is reported and leaves `None`.
    pub(crate) fn ok<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// How many mistakes were reported.
    pub(crate) fn count(&self) -> usize {
        self.errors.len()
    }

    /// One `compile_error!` for each mistake.
    pub(crate) fn into_tokens(self) -> TokenStream {
        self.errors
            .iter()
            .map(|mistake| mistake.error.to_compile_error())
            .collect()
    }

    /// What was found.
    pub(crate) fn into_mistakes(self) -> Vec<Mistake> {
        self.errors
    }
}

/// The word of `known` that somebody probably meant by `written`.
pub(crate) fn meant<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let written = written.to_lowercase();
    let tolerance = written.chars().count().div_ceil(3);
    known
        .into_iter()
        .map(|word| (distance(&written, word), word))
        .filter(|(distance, _)| *distance <= tolerance)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// How many letters must be inserted, removed, replaced, or swapped with their neighbour.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    let mut above_that: Vec<usize> = Vec::new();
    let mut previous = None;
    for (line, letter) in from.chars().enumerate() {
        let mut next = vec![line + 1];
        for (column, other) in to.iter().enumerate() {
            let at = |row: &[usize], column: usize| row.get(column).copied().unwrap_or(usize::MAX - 1);
            let replaced = at(&row, column) + usize::from(letter != *other);
            let mut least = replaced.min(at(&row, column + 1) + 1).min(at(&next, column) + 1);
            let left = column.checked_sub(1);
            let swapped = previous == Some(*other) && left.and_then(|left| to.get(left)) == Some(&letter);
            if let (true, Some(left)) = (swapped, left) {
                least = least.min(at(&above_that, left) + 1);
            }
            next.push(least);
        }
        above_that = std::mem::replace(&mut row, next);
        previous = Some(letter);
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_recognised() {
        let known = ["capacity", "rate", "per", "need", "key"];
        assert_eq!(meant("capasity", known), Some("capacity"));
        assert_eq!(meant("arte", known), Some("rate"));
        assert_eq!(meant("Key", known), Some("key"));
        assert_eq!(meant("nede", known), Some("need"));
        assert_eq!(meant("colour", known), None);
        assert_eq!(meant("x", known), None);
    }

    #[test]
    fn distances_count_swaps_once() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("arte", "rate"), 1);
        assert_eq!(distance("limti", "limit"), 1);
    }
}
