//! The three kinds of windows: exact, counter and fixed.
//!
//! The kinds have different bounds of limit and length, which are checked for literals: an exact
//! window stores each permit, so one with more than 10,000 needs an explicit `kind = exact`. Months
//! and `align` are for fixed windows only, since the other kinds do not start at calendar times.
//!
//! Invariant: an offset in `align` is accepted exactly if limiter-core parses it. Tests: below,
//! `tests/ui/fail` (`window_*.rs`), `tests/behaviour/windows.rs`.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::{Expr, LitStr};

use super::Algorithm;
use crate::argument_parser::{Args, plain_word};
use crate::argument_table::ArgumentName;
use crate::diagnostics::Diagnostics;
use crate::literal::{self, MAX_SPAN, Number, Period};

/// The largest limit of an exact window.
const MAX_EXACT_LIMIT: u64 = 1 << 20;
/// A larger limit needs an explicit `kind = exact`, because each key needs memory for all of its
/// permits.
const MAX_LIMIT_WITHOUT_KIND: u64 = 10_000;
/// The memory of an exact window: per key, and per permit.
const HEADER_BYTES: u64 = 53;
const PERMIT_BYTES: u64 = 8;
/// The largest limit of a counter window, and the longest window in microseconds.
const MAX_COUNTED: u64 = 1 << 42;
const DAY: u64 = 86_400_000_000;

/// The kind of a window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WindowKind {
    Exact,
    Counter,
    Fixed,
}

/// The length of a window.
enum Length {
    Of(Period),
    Month,
}

pub(super) fn algorithm(args: &mut Args, diagnostics: &mut Diagnostics) -> Option<Algorithm> {
    let parsed_kind = args
        .take_value(ArgumentName::Kind)
        .map(|expr| kind(&expr, diagnostics));
    let limit = args.require(ArgumentName::Limit, diagnostics).map(|expr| {
        let span = expr.span();
        let limit = diagnostics.ok(Number::read_whole(expr, "limit", "limit = 5"));
        (limit, span)
    });
    let window = args.require(ArgumentName::Window, diagnostics).map(|expr| {
        let span = expr.span();
        (length(expr, diagnostics), span)
    });
    let align = args
        .take_value(ArgumentName::Align)
        .map(|expr| align(&expr, diagnostics));
    // After an invalid kind, the other arguments are not checked.
    let kind = parsed_kind.map_or(Some(WindowKind::Exact), |kind| kind)?;

    let limit = limit.and_then(|(limit, span)| {
        let limit = limit?;
        check_limit(&limit, kind, parsed_kind.is_none(), span, diagnostics).then_some(limit)
    });
    if let (Some(place), false) = (args.span_of(ArgumentName::Align), kind == WindowKind::Fixed) {
        let message = "`align` needs `kind = fixed`: other windows do not start at calendar times";
        diagnostics.at(place, message);
        return None;
    }
    let (window, span) = window?;
    let window = window?;
    let limit = limit?;
    if kind == WindowKind::Fixed {
        let align = align.map_or(Some(None), |align| align.map(Some))?;
        let window = fixed_length(window, align.is_some(), span, diagnostics)?;
        return Some(Algorithm::FixedWindow { limit, window, align });
    }
    let window = match window {
        Length::Of(window) => window,
        Length::Month => {
            let message = "a month is a calendar period: it needs `kind = fixed, align = \"utc\"`";
            diagnostics.at(span, message);
            return None;
        }
    };
    if kind == WindowKind::Exact {
        let kind_is_omitted = parsed_kind.is_none();
        return Some(Algorithm::Window {
            limit,
            window,
            kind_is_omitted,
        });
    }
    if matches!(window, Period::Literal(micros) if micros > MAX_COUNTED) {
        diagnostics.at(span, "the window of a `kind = counter` is at most 50 days");
        return None;
    }
    Some(Algorithm::CounterWindow { limit, window })
}

fn kind(expr: &Expr, diagnostics: &mut Diagnostics) -> Option<WindowKind> {
    match plain_word(expr).as_deref() {
        Some("exact") => Some(WindowKind::Exact),
        Some("counter") => Some(WindowKind::Counter),
        Some("fixed") => Some(WindowKind::Fixed),
        _ => {
            diagnostics.at(
                expr.span(),
                "`kind` is `exact`, `counter` or `fixed`, without quotes",
            );
            None
        }
    }
}

fn length(expr: Expr, diagnostics: &mut Diagnostics) -> Option<Length> {
    match literal::text(&expr).map(LitStr::value).as_deref().map(str::trim) {
        Some("month") => Some(Length::Month),
        Some("week") => Some(Length::Of(Period::Literal(7 * DAY))),
        _ => diagnostics.ok(Period::read(expr, "window")).map(Length::Of),
    }
}

fn align(expr: &Expr, diagnostics: &mut Diagnostics) -> Option<LitStr> {
    let text = literal::text(expr);
    if let Some(text) = text.filter(|text| is_offset(&text.value())) {
        return Some(text.clone());
    }
    let message =
        "`align` is \"utc\", or an offset from it in hours and minutes, such as \"+02:00\" or \"-05:30\"";
    diagnostics.at(expr.span(), message);
    None
}

/// Returns whether limiter-core accepts the text as an offset from UTC.
fn is_offset(text: &str) -> bool {
    let text = text.trim();
    if text.eq_ignore_ascii_case("utc") || text == "Z" {
        return true;
    }
    let number = |part: &str| match part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit()) {
        true => part.parse::<u8>().ok(),
        false => None,
    };
    let parts = text
        .strip_prefix(['+', '-'])
        .and_then(|text| text.split_once(':'));
    let parts = parts.and_then(|(hours, minutes)| Some((number(hours)?, number(minutes)?)));
    parts.is_some_and(|(hours, minutes)| hours < 24 && minutes < 60)
}

fn check_limit(
    limit: &Number,
    kind: WindowKind,
    kind_is_omitted: bool,
    span: Span,
    diagnostics: &mut Diagnostics,
) -> bool {
    let Number::Literal(thousandths) = limit else {
        return true;
    };
    let permits = thousandths / 1_000;
    let message = match kind {
        WindowKind::Exact if permits > MAX_EXACT_LIMIT => format!(
            "an exact window holds at most {MAX_EXACT_LIMIT} calls: more are a `kind = counter`, or a `#[token_limiter]`"
        ),
        WindowKind::Exact if kind_is_omitted && permits > MAX_LIMIT_WITHOUT_KIND => format!(
            "an exact window takes {PERMIT_BYTES} bytes a permit, here {} bytes a key: write `kind = exact` if that is \
             meant, or `kind = counter`, which takes 42 bytes and is less exact",
            HEADER_BYTES + PERMIT_BYTES * permits
        ),
        WindowKind::Counter if permits > MAX_COUNTED => {
            format!("the limit of a `kind = counter` is at most {MAX_COUNTED}")
        }
        WindowKind::Fixed if permits > MAX_SPAN => {
            format!("the limit of a `kind = fixed` is at most {MAX_SPAN}")
        }
        _ => return true,
    };
    diagnostics.at(span, message);
    false
}

/// Returns the length of a fixed window. `None` is a month, which has to be aligned.
fn fixed_length(
    window: Length,
    aligned: bool,
    span: Span,
    diagnostics: &mut Diagnostics,
) -> Option<Option<Period>> {
    match window {
        Length::Month if !aligned => {
            let message = "a month is a calendar period: add `align = \"utc\"`, or write `window = \"30d\"`";
            diagnostics.at(span, message);
            None
        }
        Length::Month => Some(None),
        Length::Of(window) => Some(Some(window)),
    }
}

#[cfg(test)]
mod tests {
    use limiter_core::UtcOffset;

    use super::*;

    #[test]
    fn offsets_are_parsed_as_at_run_time() {
        for text in [
            "utc", "UTC", " Utc ", "Z", "z", "+02:00", "-05:30", "+23:59", "+24:00", "+2:00", "02:00",
            "+02:60", "+0200", "", "+", "CET", "-00:00", "+1:000",
        ] {
            assert_eq!(is_offset(text), text.parse::<UtcOffset>().is_ok(), "{text}");
        }
    }
}
