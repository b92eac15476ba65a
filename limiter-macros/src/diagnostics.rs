//! Collects the errors of one annotation, so that all are reported at once, each at its span.

use std::fmt::Display;

use proc_macro2::{Span, TokenStream};

/// The errors found so far.
#[derive(Default)]
pub(crate) struct Diagnostics {
    errors: Vec<AnnotationError>,
    /// Whether the next errors belong to an attribute of the surrounding block.
    pub(crate) of_block: bool,
}

/// One error.
pub(crate) struct AnnotationError {
    pub(crate) error: syn::Error,
    pub(crate) of_block: bool,
}

impl Diagnostics {
    /// Adds an error at a span.
    pub(crate) fn at(&mut self, span: Span, message: impl Display) {
        self.push(syn::Error::new(span, message));
    }

    /// Adds an error of a parser.
    pub(crate) fn push(&mut self, error: syn::Error) {
        let of_block = self.of_block;
        self.errors.push(AnnotationError { error, of_block });
    }

    /// The value; an error is added and yields `None`.
    pub(crate) fn ok<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// The number of errors.
    pub(crate) fn count(&self) -> usize {
        self.errors.len()
    }

    /// One `compile_error!` for each error.
    pub(crate) fn into_tokens(self) -> TokenStream {
        self.errors
            .iter()
            .map(|error| error.error.to_compile_error())
            .collect()
    }

    /// The collected errors.
    pub(crate) fn into_errors(self) -> Vec<AnnotationError> {
        self.errors
    }
}

/// The name in `known` that is most similar to `written`, if it is similar enough.
pub(crate) fn closest_match<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let written = written.to_lowercase();
    let tolerance = written.chars().count().div_ceil(3);
    known
        .into_iter()
        .map(|word| (distance(&written, word), word))
        .filter(|(distance, _)| *distance <= tolerance)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// The edit distance: the number of insertions, deletions, replacements and swaps of neighbours.
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
        assert_eq!(closest_match("capasity", known), Some("capacity"));
        assert_eq!(closest_match("arte", known), Some("rate"));
        assert_eq!(closest_match("Key", known), Some("key"));
        assert_eq!(closest_match("nede", known), Some("need"));
        assert_eq!(closest_match("colour", known), None);
        assert_eq!(closest_match("x", known), None);
    }

    #[test]
    fn distances_count_swaps_once() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("arte", "rate"), 1);
        assert_eq!(distance("limti", "limit"), 1);
    }
}
