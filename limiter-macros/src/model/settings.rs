//! Settings of a limit beside its numbers: the deadline, the behaviour without the store, and
//! leases.

use std::ops::RangeInclusive;

use proc_macro2::{Ident, Span};
use syn::Expr;
use syn::spanned::Spanned;

use crate::argument_parser::plain_word;
use crate::argument_table::AttributeKind;
use crate::diagnostics::Diagnostics;
use crate::literal::Period;

/// An hour, in microseconds.
const MAX_DEADLINE: u64 = 3_600_000_000;
/// Ten milliseconds to an hour, in microseconds.
const LEASES: RangeInclusive<u64> = 10_000..=3_600_000_000;
/// A hundred milliseconds to a day, in microseconds.
const CONCURRENCY_LEASES: RangeInclusive<u64> = 100_000..=86_400_000_000;

pub(super) fn deadline(expr: Expr, diagnostics: &mut Diagnostics) -> Option<Period> {
    let span = expr.span();
    let deadline = diagnostics.ok(Period::read(expr, "deadline"))?;
    if matches!(deadline, Period::Literal(micros) if micros > MAX_DEADLINE) {
        diagnostics.at(
            span,
            "`deadline` is at most an hour: the longest time for a reply of the store",
        );
    }
    Some(deadline)
}

pub(super) fn lease(kind: AttributeKind, expr: Expr, diagnostics: &mut Diagnostics) -> Option<Period> {
    let span = expr.span();
    let lease = diagnostics.ok(Period::read(expr, "lease"))?;
    if kind == AttributeKind::Concurrency {
        let held = |micros: &u64| CONCURRENCY_LEASES.contains(micros) && micros % 1_000 == 0;
        if matches!(&lease, Period::Literal(micros) if !held(micros)) {
            diagnostics.at(
                span,
                "`lease` is whole milliseconds from 100 ms to a day: the time after which the permits of a dead \
                 process expire",
            );
        }
        return Some(lease);
    }
    if matches!(lease, Period::Literal(micros) if !LEASES.contains(&micros)) {
        diagnostics.at(
            span,
            "`lease` is 10 ms to an hour: the longest time for which tokens are leased",
        );
    }
    Some(lease)
}

pub(super) fn on_store_failure(expr: &Expr, diagnostics: &mut Diagnostics) -> Option<Ident> {
    let variant = match plain_word(expr).as_deref() {
        Some("fail_open") => "FailOpen",
        Some("fail_closed") => "FailClosed",
        Some("error") => "Error",
        Some("local") => "Local",
        _ => {
            let message =
                "`on_store_failure` is `local`, `fail_open`, `fail_closed` or `error`, without quotes";
            diagnostics.at(expr.span(), message);
            return None;
        }
    };
    Some(Ident::new(variant, Span::mixed_site()))
}
