//! What a policy was before a change, as text.

use std::fmt;
use std::fmt::Write as _;

use crate::book::text::draft::{Draft, Kind, Settings};
use crate::book::text::fields::{Field, Table};
use crate::book::text::moment;
use crate::book::text::moment::Rfc3339;
use crate::book::text::report::Report;
use crate::book::text::write::write_numbers;
use crate::policy::Policy;

/// The fields of a policy that say what it inherits.
pub(super) struct Lineage<'t> {
    generation: Option<Field<'t>>,
    scaled: Option<Field<'t>>,
}

impl<'t> Lineage<'t> {
    pub(super) fn take(table: &mut Table<'t>) -> Self {
        Self {
            generation: table.take("generation"),
            scaled: table.take("scaled"),
        }
    }

    /// The policy with what is said. It is read, and told, if the policy itself has a mistake, too.
    pub(super) fn apply(
        &self,
        report: &mut Report<'_>,
        kind: Kind,
        policy: Option<Policy>,
    ) -> Option<Policy> {
        let generation = self.generation.as_ref().map(|field| field.number(report));
        let policy = policy.map(|policy| policy.with_generation(generation.flatten().unwrap_or(0)));
        let Some(field) = &self.scaled else {
            return policy;
        };
        let mut table = field.table(report)?;
        let at = table
            .require(report, "at")
            .and_then(|at| moment::read(report, &at));
        let numbers = Draft::read(report, &mut table, kind, Settings::default());
        table.refuse_rest(report, &format!("{}, at", kind.numbers()));
        let policy = policy?;
        let before = numbers.build(report, &table, policy.name())?;
        let changed = policy.in_proportion_to(&before, at?);
        changed.map_err(|error| field.refuse_as(report, &error)).ok()
    }
}

pub(super) fn write(text: &mut String, policy: &Policy) -> fmt::Result {
    if policy.generation() > 0 {
        writeln!(text, "generation = {}", policy.generation())?;
    }
    if let Some((before, at)) = policy.before() {
        let mut numbers = String::new();
        write_numbers(&mut numbers, before)?;
        // No number has a line break in it.
        let numbers = numbers.trim_end().replace('\n', ", ");
        writeln!(text, "scaled = {{ {numbers}, at = {} }}", Rfc3339(at))?;
    }
    Ok(())
}
