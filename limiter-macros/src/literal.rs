//! Literal numbers, rates and durations in attributes, parsed and checked at compile time.
//!
//! Numbers become thousandths of a permit, durations become microseconds, and a rate becomes a
//! reduced fraction of both. An expression that is not a literal is kept, and its value is checked
//! at run time.
//!
//! Invariant: limiter-core parses each accepted text at run time too, and all arithmetic is exact.
//! Tests: below, by comparison with limiter-core.

use proc_macro2::Ident;
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Expr, Lit, LitStr, Path, UnOp};

use crate::constant_expr::{folded, is_constant, peel};

/// The largest duration of the exact arithmetic, in microseconds: 142 years.
pub(crate) const MAX_SPAN: u64 = 1 << 52;
/// Both halves of a reduced rate stay below this.
const MAX_RATE_PART: u64 = 1 << 42;

/// A number of permits.
#[derive(Clone)]
pub(crate) enum Number {
    /// In thousandths.
    Literal(u64),
    Computed(Expr),
}

/// A span of time.
#[derive(Clone)]
pub(crate) enum Period {
    /// In microseconds.
    Literal(u64),
    Computed(Expr),
}

/// A rate written as text, as a reduced fraction.
#[derive(Clone, Copy)]
pub(crate) struct RateText {
    /// Thousandths of a permit …
    pub(crate) thousandths: u64,
    /// … per this many microseconds.
    pub(crate) micros: u64,
}

/// Returns the text, if the expression is a string literal.
pub(crate) fn text(expr: &Expr) -> Option<&LitStr> {
    match peel(expr) {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

impl Number {
    /// One permit, the default of `need`.
    pub(crate) const ONE: Self = Self::Literal(1_000);

    pub(crate) fn is_constant(&self, is_item: &dyn Fn(&Path) -> bool) -> bool {
        match self {
            Self::Literal(_) => true,
            Self::Computed(expr) => is_constant(expr, is_item),
        }
    }

    /// Parses the whole number of the argument `word`. `example` is shown in errors.
    pub(crate) fn read_whole(expr: Expr, word: &str, example: &str) -> syn::Result<Self> {
        let span = expr.span();
        match Self::read(expr, word, example)? {
            Self::Literal(thousandths) if thousandths % 1_000 != 0 => {
                let message = format!("`{word}` is a whole number of calls, such as `{example}`");
                Err(syn::Error::new(span, message))
            }
            number => Ok(number),
        }
    }

    /// Parses the number of the argument `word`. `example` is shown in errors.
    pub(crate) fn read(expr: Expr, word: &str, example: &str) -> syn::Result<Self> {
        let refuse = |message: String| Err(syn::Error::new(expr.span(), message));
        let is_sum = matches!(peel(&expr), Expr::Binary(_));
        let folded = folded(&expr).filter(|_| is_sum);
        let (negative, positive) = match peel(&expr) {
            Expr::Unary(unary) if matches!(unary.op, UnOp::Neg(_)) => (true, peel(&unary.expr)),
            positive => (false, positive),
        };
        let negative = folded.map_or(negative, |value| value < 0);
        if let Some(literal) = literal_with_unit(positive) {
            return refuse(format!(
                "`{word}` is a number without a unit, such as `{example}`, not `{}`",
                literal.to_token_stream()
            ));
        }
        let digits = match positive {
            _ if folded.is_some() => folded.map(i128::unsigned_abs).unwrap_or_default().to_string(),
            Expr::Lit(literal) => match &literal.lit {
                Lit::Int(number) => number.base10_digits().to_owned(),
                Lit::Float(number) => number.base10_digits().to_owned(),
                Lit::Str(text) => {
                    return refuse(format!(
                        "`{word}` is a number, without quotes, such as `{example}`, not {:?}",
                        text.value()
                    ));
                }
                _ => return refuse(format!("`{word}` is a number, such as `{example}`")),
            },
            Expr::Path(path)
                if path
                    .path
                    .segments
                    .last()
                    .is_some_and(|last| not_finite(&last.ident)) =>
            {
                return refuse(format!("`{word}` is a finite number, such as `{example}`"));
            }
            _ => return Ok(Self::Computed(expr)),
        };
        if negative {
            return refuse(format!("`{word}` is more than zero, such as `{example}`"));
        }
        let Some(thousandths) = thousandths(&digits).and_then(|number| u64::try_from(number).ok()) else {
            let message = format!(
                "`{word}` is a plain number with at most three decimals and below 10^16, such as `{example}`"
            );
            return refuse(message);
        };
        match thousandths {
            0 if word == "need" => refuse(
                "a call that needs 0 takes no permit, so nothing would be limited: give `need` a number above zero, or \
                 leave it out"
                    .to_owned(),
            ),
            0 => refuse(format!("`{word}` is more than zero, such as `{example}`: 0 would reject every call")),
            thousandths => Ok(Self::Literal(thousandths)),
        }
    }
}

impl Period {
    pub(crate) fn is_constant(&self, is_item: &dyn Fn(&Path) -> bool) -> bool {
        match self {
            Self::Literal(_) => true,
            Self::Computed(expr) => is_constant(expr, is_item),
        }
    }

    /// Parses the duration of the argument `word`.
    pub(crate) fn read(expr: Expr, word: &str) -> syn::Result<Self> {
        let refuse = |message: String| Err(syn::Error::new(expr.span(), message));
        if let Some(literal) = text(&expr) {
            return match duration(&literal.value()) {
                Some(0) => refuse(format!(
                    "`{word}` is longer than no time, such as `{word} = \"500ms\"`"
                )),
                Some(micros) if micros <= MAX_SPAN => Ok(Self::Literal(micros)),
                Some(_) => refuse(format!("`{word}` is at most 142 years")),
                None => refuse(format!(
                    "`{word}` is a number with a unit (us, ms, s, m, h, d, w), such as \"500ms\", \"10s\", \"1m\" or \
                     \"1h30m\", not {:?}",
                    literal.value()
                )),
            };
        }
        match peel(&expr) {
            number if is_literal(number) => {
                let number = number.to_token_stream().to_string().replace(' ', "");
                let number = number.trim_start_matches('-');
                let number = if number.bytes().all(|byte| byte.is_ascii_digit()) {
                    number
                } else {
                    "10"
                };
                refuse(format!(
                    "`{word}` needs a unit: write `{word} = \"{number}s\"` or `{word} = \"{number}ms\"`, or give a \
                     `Duration`"
                ))
            }
            _ => Ok(Self::Computed(expr)),
        }
    }
}

impl RateText {
    /// Reads `100/min`, `7/3s`, `1/30d`.
    pub(crate) fn read(literal: &LitStr) -> syn::Result<Self> {
        let written = literal.value();
        let refuse = |message: String| Err(syn::Error::new(literal.span(), message));
        let parsed = written.split_once('/').and_then(|(amount, period)| {
            let period = period.trim();
            // A period without a number, such as `min`, is one unit.
            let is_unit = period.starts_with(char::is_alphabetic);
            let period = if is_unit {
                duration(&format!("1{period}"))
            } else {
                duration(period)
            };
            Some((thousandths(&amount.trim().replace('_', ""))?, period?))
        });
        match parsed {
            None => refuse(format!(
                "`rate` is permits per time, such as \"10/s\", \"100/min\", \"7/3s\" or \"1/30d\", or a number per \
                 second, not {written:?}"
            )),
            Some((0, _) | (_, 0)) => {
                refuse("`rate` is more than zero permits in more than zero time".to_owned())
            }
            Some((thousandths, micros)) => {
                Self::exact(thousandths, micros).map_err(|message| syn::Error::new(literal.span(), message))
            }
        }
    }

    /// Rejects a rate that the exact arithmetic cannot represent.
    pub(crate) fn exact(thousandths: u128, micros: u64) -> Result<Self, String> {
        let divisor = greatest_common_divisor(thousandths, micros.into());
        let part = |parts: u128| {
            u64::try_from(parts / divisor)
                .ok()
                .filter(|part| *part < MAX_RATE_PART)
        };
        match (part(thousandths), part(micros.into())) {
            (Some(thousandths), Some(reduced)) if micros <= MAX_SPAN => Ok(Self { thousandths, micros: reduced }),
            _ => Err("`rate` has no exact form: as a reduced fraction of thousandths of a permit to microseconds, \
                      both parts stay below 2^42"
                .to_owned()),
        }
    }
}

/// Returns whether the expression is a literal, with or without a sign. A dereferenced variable is
/// none.
fn is_literal(expr: &Expr) -> bool {
    match peel(expr) {
        Expr::Lit(_) => true,
        Expr::Unary(unary) => matches!(unary.op, UnOp::Neg(_)) && is_literal(&unary.expr),
        _ => false,
    }
}

/// Returns the literal, if its suffix is no type that the compiler accepts there, such as `10k`.
fn literal_with_unit(expr: &Expr) -> Option<&Lit> {
    const INTEGERS: [&str; 12] = [
        "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize",
    ];
    const FLOATS: [&str; 3] = ["", "f32", "f64"];
    let Expr::Lit(literal) = expr else { return None };
    let is_type = match &literal.lit {
        Lit::Int(number) => FLOATS.contains(&number.suffix()) || INTEGERS.contains(&number.suffix()),
        Lit::Float(number) => FLOATS.contains(&number.suffix()),
        _ => true,
    };
    (!is_type).then_some(&literal.lit)
}

fn not_finite(name: &Ident) -> bool {
    name == "NAN" || name == "INFINITY" || name == "NEG_INFINITY"
}

/// `0.5` in thousandths.
fn thousandths(digits: &str) -> Option<u128> {
    let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
    let decimals = decimals.trim_end_matches('0');
    let plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !plain(whole) || !plain(decimals) || decimals.len() > 3 {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let decimals: u128 = format!("{decimals:0<3}").parse().ok()?;
    Some(u128::from(whole) * 1_000 + decimals)
}

/// Formats thousandths as a decimal number: `0.5`.
pub(crate) fn permits(thousandths: &u64) -> String {
    let (whole, rest) = (thousandths / 1_000, thousandths % 1_000);
    let text = format!("{whole}.{rest:03}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `1h30m` in microseconds.
fn duration(text: &str) -> Option<u64> {
    let mut rest = text.trim();
    let mut total: u64 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let (digits, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '_')?);
        let tail = tail.trim_start();
        let (unit, tail) = tail.split_at(
            tail.find(|c: char| !c.is_ascii_alphabetic())
                .unwrap_or(tail.len()),
        );
        let count: u64 = digits.replace('_', "").parse().ok()?;
        total = total.checked_add(count.checked_mul(unit_micros(unit)?)?)?;
        rest = tail.trim_start();
    }
    Some(total)
}

fn unit_micros(unit: &str) -> Option<u64> {
    const SECOND: u64 = 1_000_000;
    Some(match unit {
        "us" | "micros" | "microsecond" | "microseconds" => 1,
        "ms" | "millis" | "millisecond" | "milliseconds" => 1_000,
        "s" | "sec" | "secs" | "second" | "seconds" => SECOND,
        "m" | "min" | "mins" | "minute" | "minutes" => 60 * SECOND,
        "h" | "hr" | "hour" | "hours" => 3_600 * SECOND,
        "d" | "day" | "days" => 86_400 * SECOND,
        "w" | "week" | "weeks" => 7 * 86_400 * SECOND,
        _ => return None,
    })
}

fn greatest_common_divisor(a: u128, b: u128) -> u128 {
    if b == 0 {
        a.max(1)
    } else {
        greatest_common_divisor(b, a % b)
    }
}

#[cfg(test)]
mod tests {
    use limiter_core::{Amount, Rate, parse_duration};
    use proc_macro2::Span;

    use super::*;

    #[test]
    fn number_with_unit_is_rejected() {
        let read = |text: &str| {
            let number = syn::parse_str(text).unwrap();
            Number::read(number, "capacity", "capacity = 20").map(|_| ())
        };
        for typed in [
            "20",
            "20u32",
            "-20_i8 + 30",
            "0x14usize",
            "1.5",
            "1.5f32",
            "2_f64",
        ] {
            assert!(read(typed).is_ok(), "{typed}");
        }
        for unit in ["10k", "10s", "5MB", "1.5m", "1.5u32", "10_000ms"] {
            let error = read(unit).expect_err(unit).to_string();
            let expected =
                format!("`capacity` is a number without a unit, such as `capacity = 20`, not `{unit}`");
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn texts_are_parsed_as_at_run_time() {
        for text in [
            "1m", "500ms", "1h30m", "1_000 s", "7days", "", "10", "s", "1x", "-1s", "1.5s", "0s", "1d 2h",
        ] {
            let expected = parse_duration(text)
                .ok()
                .map(|span| u64::try_from(span.as_micros()).unwrap_or(u64::MAX));
            assert_eq!(duration(text), expected, "{text}");
        }
        for text in [
            "1",
            "0.5",
            "12.345",
            "0.0001",
            "5.",
            "1e3",
            "007",
            "x",
            "18446744073709551615",
        ] {
            let expected = text.trim_end_matches('.').parse::<Amount>().ok();
            assert_eq!(thousandths(text), expected.map(Amount::as_thousandths), "{text}");
        }
        for text in [
            "7/3s",
            "7/_3s",
            "0.001/s",
            "1_000_000/s",
            "999_983/day",
            "1/30d",
            "100/min",
            "10",
            "0/s",
            "1/0s",
            "x/s",
            "1/fortnight",
            "-1/s",
            "5000000000/us",
            "0.001/60d1us",
            "60857968597548750/d",
        ] {
            let read = RateText::read(&LitStr::new(text, Span::call_site())).ok();
            assert_eq!(read.is_some(), text.parse::<Rate>().is_ok(), "{text}");
            // 7 per 3 s in the smallest numbers.
            assert!(text != "7/_3s" || read.is_some_and(|rate| rate.micros == 3_000));
        }
    }
}
