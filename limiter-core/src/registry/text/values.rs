//! Writes the values that several tables of a text have in common: quotas and strings.

use std::fmt;
use std::fmt::Write as _;

use crate::policy::{
    Algorithm, Concurrency, CounterWindow, FixedWindow, Funnel, Periods, Policy, SlidingWindow, Span,
    TokenBucket,
};
use crate::units::Amount;

/// Writes the quota of a policy: capacity and rate, limit and window, or maximum.
pub(super) fn write_numbers(text: &mut String, policy: &Policy) -> fmt::Result {
    match *policy.algorithm() {
        Algorithm::TokenBucket(TokenBucket { capacity, rate })
        | Algorithm::Funnel(Funnel { capacity, rate, .. }) => {
            let capacity = Amount::from_thousandths(capacity);
            writeln!(text, "capacity = {capacity}\nrate = \"{rate}\"")?;
        }
        Algorithm::SlidingWindow(SlidingWindow { limit, window })
        | Algorithm::CounterWindow(CounterWindow { limit, window }) => {
            writeln!(text, "limit = {limit}\nwindow = \"{}\"", Span(window))?;
        }
        Algorithm::Concurrency(Concurrency { max, .. }) => writeln!(text, "max = {max}")?,
        Algorithm::FixedWindow(FixedWindow {
            limit,
            window,
            periods,
        }) => {
            writeln!(text, "limit = {limit}")?;
            match periods {
                Periods::FirstUse => writeln!(text, "window = \"{}\"", Span(window))?,
                Periods::Aligned(offset) => {
                    writeln!(text, "window = \"{}\"\nalign = \"{offset}\"", Span(window))?;
                }
                Periods::Months(offset) => writeln!(text, "window = \"month\"\nalign = \"{offset}\"")?,
            }
        }
    }
    Ok(())
}

/// Displays text as a basic string of TOML.
pub(super) struct QuotedText<'a>(pub(super) &'a str);

impl fmt::Display for QuotedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                '\n' => f.write_str("\\n")?,
                c if c.is_control() => write!(f, "\\U{:08X}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_str("\"")
    }
}
