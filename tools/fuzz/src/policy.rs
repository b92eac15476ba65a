//! Policy texts: an accepted text prints to an equal policy, and a rejected one names the error.

use std::time::Duration;

use arbitrary::Arbitrary;
use limiter_core::{Amount, ConfigError, Policy, PolicyBuilder, Rate, parse_duration};

/// Something that was written, where a program reads it.
#[derive(Arbitrary, Debug)]
pub enum Written<'a> {
    /// As an amount.
    Amount(&'a str),
    /// As a rate.
    Rate(&'a str),
    /// As a span of time.
    Duration(&'a str),
    /// In Rust, as an amount for each period.
    Per(Number<'a>, Duration),
    /// In Rust, as a policy.
    Policy(Shape<'a>, Common<'a>),
}

/// Parameters of an algorithm.
#[derive(Arbitrary, Debug)]
#[expect(missing_docs, reason = "as the builders name them")]
pub enum Shape<'a> {
    Level {
        funnel: bool,
        capacity: Option<Number<'a>>,
        rate: Option<Number<'a>>,
    },
    Window {
        limit: Option<Number<'a>>,
        window: Option<Span<'a>>,
    },
}

/// Settings of every policy.
#[derive(Arbitrary, Debug)]
pub struct Common<'a> {
    name: &'a str,
    group: Option<&'a str>,
    deadline: Option<Duration>,
}

/// A number of any type.
#[derive(Arbitrary, Clone, Copy, Debug)]
#[expect(missing_docs, reason = "as Rust names them")]
pub enum Number<'a> {
    U8(u8),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Text(&'a str),
}

/// A length of a window.
#[derive(Arbitrary, Clone, Copy, Debug)]
#[expect(missing_docs, reason = "as Rust names them")]
pub enum Span<'a> {
    Text(&'a str),
    Duration(Duration),
}

impl Written<'_> {
    /// Parses the input.
    pub fn check(self) {
        match self {
            Self::Amount(text) => match text.parse::<Amount>() {
                Ok(amount) => reads_back(amount),
                Err(error) => names("amount", text, &error),
            },
            Self::Rate(text) => match text.parse::<Rate>() {
                Ok(rate) => reads_back(rate),
                Err(error) => names_some(&error),
            },
            Self::Duration(text) => match parse_duration(text) {
                Ok(span) => assert_eq!(parse_duration(&format!("{}us", span.as_micros())), Ok(span)),
                Err(error) => names("duration", text, &error),
            },
            Self::Per(number, period) => {
                let amount = match number {
                    Number::U8(number) => Ok(number.into()),
                    Number::U64(number) => Ok(number.into()),
                    Number::I64(number) => number.try_into(),
                    Number::F32(number) => number.try_into(),
                    Number::F64(number) => number.try_into(),
                    Number::Text(number) => number.try_into(),
                };
                if let Ok(amount) = amount {
                    reads_back::<Amount>(amount);
                    match Rate::per(amount, period) {
                        Ok(rate) => reads_back(rate),
                        Err(error) => names_some(&error),
                    }
                }
            }
            Self::Policy(shape, common) => match shape.build(&common) {
                Ok(policy) => check_policy(&policy, &common),
                Err(error) => names_some(&error),
            },
        }
    }
}

impl Shape<'_> {
    fn build(&self, common: &Common<'_>) -> Result<Policy, ConfigError> {
        match *self {
            Self::Level {
                funnel,
                capacity,
                rate,
            } => {
                let new = if funnel {
                    Policy::funnel
                } else {
                    Policy::token_bucket
                };
                let mut builder = common.on(new(common.name.to_owned()));
                builder = match capacity {
                    None => builder,
                    Some(Number::U8(number)) => builder.capacity(number),
                    Some(Number::U64(number)) => builder.capacity(number),
                    Some(Number::I64(number)) => builder.capacity(number),
                    Some(Number::F32(number)) => builder.capacity(number),
                    Some(Number::F64(number)) => builder.capacity(number),
                    Some(Number::Text(text)) => builder.capacity(text),
                };
                builder = match rate {
                    None => builder,
                    Some(Number::U8(number)) => builder.rate(number),
                    Some(Number::U64(number)) => builder.rate(number),
                    Some(Number::I64(number)) => builder.rate(number),
                    Some(Number::F32(number)) => builder.rate(number),
                    Some(Number::F64(number)) => builder.rate(number),
                    Some(Number::Text(text)) => builder.rate(text),
                };
                builder.build()
            }
            Self::Window { limit, window } => {
                let mut builder = common.on(Policy::sliding_window(common.name));
                builder = match limit {
                    None => builder,
                    Some(Number::U8(number)) => builder.limit(number),
                    Some(Number::U64(number)) => builder.limit(number),
                    Some(Number::I64(number)) => builder.limit(number),
                    Some(Number::F32(number)) => builder.limit(number),
                    Some(Number::F64(number)) => builder.limit(number),
                    Some(Number::Text(text)) => builder.limit(text),
                };
                builder = match window {
                    None => builder,
                    Some(Span::Text(text)) => builder.window(text),
                    Some(Span::Duration(span)) => builder.window(span),
                };
                builder.build()
            }
        }
    }
}

impl Common<'_> {
    fn on<S>(&self, mut builder: PolicyBuilder<S>) -> PolicyBuilder<S> {
        if let Some(group) = self.group {
            builder = builder.group(group);
        }
        if let Some(deadline) = self.deadline {
            builder = builder.deadline(deadline);
        }
        builder
    }
}

/// The printed form parses as the same policy.
fn reads_back<T>(value: T)
where
    T: ToString + std::str::FromStr<Err = ConfigError> + PartialEq + std::fmt::Debug,
{
    let shown = value.to_string();
    assert_eq!(shown.parse(), Ok(value), "{shown}");
}

/// The error states the purpose of the value and shows the value in one line: at least the
/// characters that take 200 bytes when control characters are escaped.
fn names(argument: &str, text: &str, error: &ConfigError) {
    const MIN_SHOWN_BYTES: usize = 200;
    let mut beginning = String::new();
    for character in text.chars() {
        let escaped = match character.is_control() {
            true => character.escape_default().to_string(),
            false => character.to_string(),
        };
        if beginning.len() + escaped.len() > MIN_SHOWN_BYTES {
            break;
        }
        beginning.push_str(&escaped);
    }
    let shown = error.to_string();
    assert!(
        shown.starts_with(&format!("{argument} is `{beginning}")),
        "{shown}"
    );
    names_some(error);
}

/// The error has a value and an expectation, and is short enough for a log.
fn names_some(error: &ConfigError) {
    let shown = error.to_string();
    assert!(shown.len() < 1_000, "{shown}");
    assert!(
        shown.contains("`, expected ") || shown.ends_with(" is missing"),
        "{shown}"
    );
}

/// A policy returns its settings, and its printed form builds an equal policy.
fn check_policy(policy: &Policy, common: &Common<'_>) {
    assert_eq!((policy.name(), policy.group()), (common.name, common.group));
    assert!(!policy.quota().is_zero() && !policy.window().is_zero() && !policy.deadline().is_zero());
    let shown = policy.to_string();
    let shape = shown
        .strip_prefix(common.name)
        .and_then(|shape| shape.strip_suffix(')'));
    let shape = shape.unwrap_or_else(|| panic!("{shown}"));
    let again = if let Some(window) = shape.strip_prefix(" (sliding window: ") {
        let (limit, window) = window.split_once(" in any ").expect("limit and window");
        common
            .on(Policy::sliding_window(common.name))
            .limit(limit)
            .window(window)
            .build()
    } else if let Some(bucket) = shape.strip_prefix(" (token bucket: ") {
        let (capacity, rate) = bucket.split_once(", refilled at ").expect("capacity and rate");
        common
            .on(Policy::token_bucket(common.name))
            .capacity(capacity)
            .rate(rate)
            .build()
    } else {
        let funnel = shape.strip_prefix(" (funnel: ").expect("an algorithm");
        let (capacity, rate) = funnel.split_once(", drained at ").expect("capacity and rate");
        common
            .on(Policy::funnel(common.name))
            .capacity(capacity)
            .rate(rate)
            .build()
    };
    assert_eq!(again.as_ref(), Ok(policy), "{shown}");
}
