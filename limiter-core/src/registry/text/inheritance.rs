//! The inheritance and the trial of a policy as text: its generation, its numbers before a
//! proportional change (`scaled`), and its trial values (`trial`).
//!
//! Both tables contain numbers of the policy's algorithm and a time, so they are read by the reader
//! of policies and written in one line. The generation is applied first, because the other two are
//! derived from the policy with its generation. Tests: `tests/registry/text.rs`,
//! `tests/registry/text_errors.rs`, `tests/registry/overlays.rs` (trial).

use std::fmt;
use std::fmt::Write as _;

use crate::policy::Policy;
use crate::registry::text::fields::{Field, Table};
use crate::registry::text::policy_spec::{AlgorithmKind, PolicySpec, SharedSettings};
use crate::registry::text::report::ErrorReport;
use crate::registry::text::rfc3339::Rfc3339;
use crate::registry::text::values::write_numbers;

/// The fields `generation`, `scaled` and `trial` of a policy.
pub(super) struct InheritanceSpec<'t> {
    generation: Option<Field<'t>>,
    scaled: Option<Field<'t>>,
    trial: Option<Field<'t>>,
}

impl<'t> InheritanceSpec<'t> {
    pub(super) fn from_table(table: &mut Table<'t>) -> Self {
        Self {
            generation: table.take("generation"),
            scaled: table.take("scaled"),
            trial: table.take("trial"),
        }
    }

    /// Returns the policy with its inheritance. Reports errors of all fields even if the policy
    /// itself has an error.
    pub(super) fn apply(
        &self,
        report: &mut ErrorReport<'_>,
        kind: AlgorithmKind,
        policy: Option<Policy>,
    ) -> Option<Policy> {
        let generation = self.generation.as_ref().map(|field| field.number(report));
        let policy = policy.map(|policy| policy.with_generation(generation.flatten().unwrap_or(0)));
        let policy = self.apply_scaled(report, kind, policy);
        self.apply_trial(report, kind, policy)
    }

    fn apply_scaled(
        &self,
        report: &mut ErrorReport<'_>,
        kind: AlgorithmKind,
        policy: Option<Policy>,
    ) -> Option<Policy> {
        let Some(field) = &self.scaled else {
            return policy;
        };
        let mut table = field.table(report)?;
        let at = table.require(report, "at").and_then(|at| at.time(report));
        let numbers = PolicySpec::read(report, &mut table, kind, SharedSettings::default());
        table.refuse_rest(report, &format!("{}, at", kind.numbers()));
        let policy = policy?;
        let before = numbers.build(report, &table, policy.name())?;
        let changed = policy.proportional_to(&before, at?);
        changed.map_err(|error| field.refuse_as(report, &error)).ok()
    }

    fn apply_trial(
        &self,
        report: &mut ErrorReport<'_>,
        kind: AlgorithmKind,
        policy: Option<Policy>,
    ) -> Option<Policy> {
        let Some(field) = &self.trial else {
            return policy;
        };
        let mut table = field.table(report)?;
        let until = table.require(report, "until");
        let until = until.and_then(|until| until.time(report));
        let numbers = PolicySpec::read(report, &mut table, kind, SharedSettings::default());
        table.refuse_rest(report, &format!("{}, until", kind.numbers()));
        let policy = policy?;
        let numbers = numbers.build(report, &table, policy.name())?;
        let changed = policy.with_trial(&numbers, until?);
        changed.map_err(|error| field.refuse_as(report, &error)).ok()
    }
}

pub(super) fn write(text: &mut String, policy: &Policy) -> fmt::Result {
    if policy.generation() > 0 {
        writeln!(text, "generation = {}", policy.generation())?;
    }
    if let Some((before, at)) = policy.before() {
        writeln!(text, "scaled = {{ {}, at = {} }}", one_line(before)?, Rfc3339(at))?;
    }
    if let Some((numbers, until)) = policy.trial() {
        writeln!(
            text,
            "trial = {{ {}, until = {} }}",
            one_line(numbers)?,
            Rfc3339(until)
        )?;
    }
    Ok(())
}

/// Returns the numbers of a policy in one line.
fn one_line(policy: &Policy) -> Result<String, fmt::Error> {
    let mut numbers = String::new();
    write_numbers(&mut numbers, policy)?;
    // Values contain no line breaks, so each line is one field.
    Ok(numbers.trim_end().replace('\n', ", "))
}
