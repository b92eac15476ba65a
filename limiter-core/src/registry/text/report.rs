//! Collects the errors and warnings of one text.
//!
//! A strict report rejects the text for every error. A lenient one, for the subscription of Redis,
//! turns unknown fields into warnings and rejects single policies: a newer program may have
//! published fields or algorithms that this one cannot read, and the other policies of the text
//! must apply. Each error is recorded in a scope, which defines the part that it rejects.
//!
//! Invariant: a report contains at most `MAX_MESSAGES` errors, in the order of the text. Tests:
//! `tests/registry/text_errors.rs` (`all_errors_are_reported_in_order`),
//! `tests/registry_redis/newer_programs.rs` (lenient reports).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::registry::text::parse_error::{ParseError, RegistryError};

/// Maximum number of errors, and of warnings, that are kept of one text.
const MAX_MESSAGES: usize = 50;

/// The part that an error rejects in a lenient report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// The whole text.
    Text,
    /// The policy of this name, with its key overrides.
    Policy(Box<str>),
    /// All rules.
    Rules,
    /// A table that contains no policy.
    Table,
}

/// The errors and warnings of one text.
pub(super) struct ErrorReport<'t> {
    place: &'t str,
    text: &'t str,
    is_lenient: bool,
    scope: Scope,
    /// With the byte offset of each.
    errors: Vec<(usize, String)>,
    warnings: Vec<(usize, String)>,
    rejects_text: bool,
    rejects_rules: bool,
    rejected: BTreeSet<Box<str>>,
}

/// The result of a lenient report on a text that is not rejected as a whole.
#[derive(Debug, Default)]
#[cfg_attr(
    not(feature = "redis"),
    expect(dead_code, reason = "only Redis is read leniently")
)]
pub(crate) struct Findings {
    /// The policies that cannot be read.
    pub(crate) rejected: BTreeSet<Box<str>>,
    /// The rules cannot be read.
    pub(crate) rejects_rules: bool,
    /// The errors of the rejected policies and rules.
    pub(crate) errors: Vec<ParseError>,
    /// Unknown fields.
    pub(crate) warnings: Vec<ParseError>,
}

impl<'t> ErrorReport<'t> {
    pub(super) fn strict(place: &'t str, text: &'t str) -> Self {
        Self {
            place,
            text,
            is_lenient: false,
            scope: Scope::Text,
            errors: Vec::new(),
            warnings: Vec::new(),
            rejects_text: false,
            rejects_rules: false,
            rejected: BTreeSet::new(),
        }
    }

    #[cfg(feature = "redis")]
    pub(super) fn lenient(place: &'t str, text: &'t str) -> Self {
        Self {
            is_lenient: true,
            ..Self::strict(place, text)
        }
    }

    /// Sets the scope that the following errors reject.
    pub(super) fn enter(&mut self, scope: Scope) {
        self.scope = scope;
    }

    /// Records an error.
    pub(super) fn push(&mut self, at: usize, message: String) {
        self.errors.push((at, message));
        match &self.scope {
            Scope::Text => self.rejects_text = true,
            Scope::Policy(name) => {
                self.rejected.insert(name.clone());
            }
            Scope::Rules => self.rejects_rules = true,
            Scope::Table => {}
        }
    }

    /// Records an unknown field.
    pub(super) fn push_unknown(&mut self, at: usize, message: String) {
        if self.is_lenient {
            self.warnings.push((at, message));
        } else {
            self.push(at, message);
        }
    }

    /// Returns the number of errors so far.
    pub(super) fn len(&self) -> usize {
        self.errors.len()
    }

    /// Returns the beginning of a part of the text.
    pub(super) fn excerpt(&self, span: Range<usize>) -> String {
        const SHOWN: usize = 60;
        let part = self.text.get(span).unwrap_or_default();
        let line = part.lines().next().unwrap_or_default();
        let mut shown: String = line.chars().take(SHOWN).collect();
        if shown.len() < part.len() {
            shown.push('…');
        }
        shown
    }

    /// Returns the findings, unless the text is rejected.
    pub(super) fn finish(self) -> Result<Findings, RegistryError> {
        let is_rejected = self.rejects_text || !(self.is_lenient || self.errors.is_empty());
        let errors = located(self.place, self.text, self.errors);
        if is_rejected {
            return Err(RegistryError::Parse { errors });
        }
        Ok(Findings {
            rejected: self.rejected,
            rejects_rules: self.rejects_rules,
            errors,
            warnings: located(self.place, self.text, self.warnings),
        })
    }
}

fn located(place: &str, text: &str, mut messages: Vec<(usize, String)>) -> Vec<ParseError> {
    messages.sort_by_key(|(at, _)| *at);
    messages.truncate(MAX_MESSAGES);
    let place: Arc<str> = place.into();
    let located = messages.into_iter().map(|(at, message)| {
        let before = text.get(..at).unwrap_or(text);
        let line = before.rsplit('\n').next().unwrap_or_default();
        ParseError {
            place: Arc::clone(&place),
            line: before.matches('\n').count() + 1,
            column: line.chars().count() + 1,
            message,
        }
    });
    located.collect()
}
