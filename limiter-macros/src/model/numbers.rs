//! The algorithm of an attribute and its numbers.
//!
//! The kind of the attribute selects the algorithm. Its required numbers are read as literals or
//! kept as expressions. A number with a period and a rate in text form become one exact fraction;
//! an expression without a period can also be a `Rate`. A policy with constant
//! numbers only is built once.
//!
//! Tests: `tests/ui/fail` (`rate_*.rs`, `capacity_*.rs`, `max_*.rs`), `tests/behaviour/plain.rs`,
//! `tests/compiles/arguments.rs`.

use syn::spanned::Spanned;
use syn::{Expr, Path};

use super::{Algorithm, Rate, window};
use crate::argument_parser::Args;
use crate::argument_table::{ArgumentName, AttributeKind};
use crate::constant_expr::is_constant;
use crate::diagnostics::Diagnostics;
use crate::literal::{self, Number, Period, RateText};

const MAX_IN_FLIGHT: u64 = 1 << 20;
/// The largest capacity of the exact arithmetic, in thousandths.
const MAX_CAPACITY: u64 = 1 << 52;

impl Algorithm {
    /// Returns whether permits are held until the body ends.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self, Self::Concurrency { .. } | Self::Named { held: true })
    }

    /// Returns the maximum cost, and the name of its argument.
    pub(super) fn quota(&self) -> Option<(&'static str, &Number)> {
        Some(match self {
            Self::Named { .. } => return None,
            Self::Token { capacity, .. } | Self::Funnel { capacity, .. } => {
                (ArgumentName::Capacity.text(), capacity)
            }
            Self::Window { limit, .. }
            | Self::CounterWindow { limit, .. }
            | Self::FixedWindow { limit, .. } => (ArgumentName::Limit.text(), limit),
            Self::Concurrency { max } => (ArgumentName::Max.text(), max),
        })
    }

    pub(super) fn is_constant(&self, is_item: &dyn Fn(&Path) -> bool) -> bool {
        match self {
            Self::Token { capacity, rate } | Self::Funnel { capacity, rate, .. } => {
                capacity.is_constant(is_item) && rate.is_constant(is_item)
            }
            Self::Window { limit, window, .. } | Self::CounterWindow { limit, window } => {
                limit.is_constant(is_item) && window.is_constant(is_item)
            }
            Self::FixedWindow { limit, window, .. } => {
                let windows = window.as_ref().is_none_or(|window| window.is_constant(is_item));
                limit.is_constant(is_item) && windows
            }
            Self::Named { .. } => false,
            Self::Concurrency { max } => max.is_constant(is_item),
        }
    }
}

impl Rate {
    fn is_constant(&self, is_item: &dyn Fn(&Path) -> bool) -> bool {
        match self {
            Self::Text(_) => true,
            Self::Per { amount, period } => amount.is_constant(is_item) && period.is_constant(is_item),
            Self::Computed(expr) => is_constant(expr, is_item),
        }
    }
}

pub(super) fn algorithm(args: &mut Args, diagnostics: &mut Diagnostics) -> Option<Algorithm> {
    if args.kind == AttributeKind::Window {
        return window::algorithm(args, diagnostics);
    }
    if args.kind == AttributeKind::Concurrency {
        let max = args.require(ArgumentName::Max, diagnostics);
        let max = max.map(|expr| max_in_flight(expr, diagnostics))??;
        return Some(Algorithm::Concurrency { max });
    }
    let capacity = args.require(ArgumentName::Capacity, diagnostics);
    let capacity = capacity.map(|expr| bounded_capacity(expr, diagnostics));
    let rate = args
        .require(ArgumentName::Rate, diagnostics)
        .map(|expr| rate(expr, args, diagnostics));
    let (capacity, rate) = (capacity??, rate??);
    Some(match args.kind {
        AttributeKind::Funnel => Algorithm::Funnel {
            capacity,
            rate,
            paced: paced(args, diagnostics)?,
        },
        _ => Algorithm::Token { capacity, rate },
    })
}

/// Returns whether a funnel is paced.
fn paced(args: &Args, diagnostics: &mut Diagnostics) -> Option<bool> {
    let place = args.span_of(ArgumentName::Paced);
    if let (Some(place), Some(_)) = (place, args.span_of(ArgumentName::Lease)) {
        let message = "a paced funnel has no lease, because only the store knows the order of its calls: leave out \
                       `paced` or `lease`";
        diagnostics.at(place, message);
        return None;
    }
    Some(place.is_some())
}

fn bounded_capacity(expr: Expr, diagnostics: &mut Diagnostics) -> Option<Number> {
    let span = expr.span();
    let capacity = diagnostics.ok(Number::read(expr, "capacity", "capacity = 20"))?;
    if matches!(capacity, Number::Literal(thousandths) if thousandths > MAX_CAPACITY) {
        let max = literal::permits(&MAX_CAPACITY);
        diagnostics.at(span, format!("`capacity` is at most {max}"));
        return None;
    }
    Some(capacity)
}

fn max_in_flight(expr: Expr, diagnostics: &mut Diagnostics) -> Option<Number> {
    let span = expr.span();
    let max = diagnostics.ok(Number::read_whole(expr, "max", "max = 4"))?;
    if matches!(max, Number::Literal(thousandths) if thousandths / 1_000 > MAX_IN_FLIGHT) {
        diagnostics.at(
            span,
            format!("at most {MAX_IN_FLIGHT} calls are in flight at once"),
        );
        return None;
    }
    Some(max)
}

fn rate(expr: Expr, args: &mut Args, diagnostics: &mut Diagnostics) -> Option<Rate> {
    let span = expr.span();
    let per = args
        .take_value(ArgumentName::Per)
        .map(|expr| diagnostics.ok(Period::read(expr, "per")));
    if let Some(text) = literal::text(&expr) {
        if let Some(place) = args.span_of(ArgumentName::Per) {
            diagnostics.at(place, "the rate contains its period already: use `per` with a number, such as `rate = 100, per = \"1m\"`");
        }
        return diagnostics.ok(RateText::read(text)).map(Rate::Text);
    }
    let amount = diagnostics.ok(Number::read(expr, "rate", "rate = 10"));
    let period = match (per, amount.as_ref()) {
        (Some(period), _) => period,
        (None, Some(Number::Computed(expr))) => return Some(Rate::Computed(expr.clone())),
        (None, _) => Some(Period::Literal(1_000_000)),
    };
    let (amount, period) = (amount?, period?);
    if let (Number::Literal(thousandths), Period::Literal(micros)) = (&amount, &period) {
        let rate = RateText::exact((*thousandths).into(), *micros);
        return diagnostics
            .ok(rate.map_err(|message| syn::Error::new(span, message)))
            .map(Rate::Text);
    }
    Some(Rate::Per { amount, period })
}

#[cfg(test)]
mod tests {
    use limiter_core::{Amount, Policy};

    use super::*;

    #[test]
    fn capacity_is_bounded_as_at_run_time() {
        for (thousandths, expected) in [(MAX_CAPACITY, true), (MAX_CAPACITY + 1, false)] {
            let text = literal::permits(&thousandths);
            let capacity = text.parse::<Amount>().unwrap();
            let policy = Policy::token_bucket("p").capacity(capacity).rate(1_000_000);
            assert_eq!(policy.build().is_ok(), expected, "{text}");
            let mut diagnostics = Diagnostics::default();
            let read = bounded_capacity(syn::parse_str(&text).unwrap(), &mut diagnostics);
            assert_eq!(read.is_some(), expected, "{text}");
        }
    }
}
