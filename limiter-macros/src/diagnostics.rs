//! Collects the errors of one annotation, so that all are reported at once, each at its span.

use std::fmt::Display;

use proc_macro2::{Span, TokenStream};
use strsim::osa_distance;

/// The errors found so far.
#[derive(Default)]
pub(crate) struct Diagnostics {
    errors: Vec<AnnotationError>,
    /// True if the next errors belong to an attribute of the surrounding block.
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

    /// Returns the value; an error is added and yields `None`.
    pub(crate) fn ok<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// Returns the number of errors.
    pub(crate) fn count(&self) -> usize {
        self.errors.len()
    }

    /// Returns one `compile_error!` for each error.
    pub(crate) fn into_tokens(self) -> TokenStream {
        self.errors
            .iter()
            .map(|error| error.error.to_compile_error())
            .collect()
    }

    /// Returns the collected errors.
    pub(crate) fn into_errors(self) -> Vec<AnnotationError> {
        self.errors
    }
}

/// Returns the name in `known` that is most similar to `written`, if it is similar enough.
pub(crate) fn closest_match<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let written = written.to_lowercase();
    let tolerance = written.chars().count().div_ceil(3);
    known
        .into_iter()
        .map(|word| (osa_distance(&written, word), word))
        .filter(|(distance, _)| *distance <= tolerance)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_matched_to_known_words() {
        let known = ["capacity", "rate", "per", "need", "key"];
        assert_eq!(closest_match("capasity", known), Some("capacity"));
        assert_eq!(closest_match("arte", known), Some("rate"));
        assert_eq!(closest_match("Key", known), Some("key"));
        assert_eq!(closest_match("nede", known), Some("need"));
        assert_eq!(closest_match("colour", known), None);
        assert_eq!(closest_match("x", known), None);
    }
}
