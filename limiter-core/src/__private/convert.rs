//! Conversions of attribute arguments. Each takes a reference, so that evaluating an attribute
//! moves no argument of the annotated function.
//!
//! An argument may be an expression of the user, so its type is known only to the compiler. One
//! trait for each kind of argument (key, limiter, amount, rate, duration) converts the accepted
//! types, and its `on_unimplemented` message names them. Tests:
//! `limiter-macros/tests/behaviour/keys.rs`, `limiter-macros/tests/ui.rs` (the messages).

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use crate::error::ConfigError;
use crate::key::{Key, KeyBuffer};
use crate::limiter::Limiter;
use crate::policy::Rate;
use crate::units::{Amount, parse_duration};

/// A value of `key = …` and `group = …`: any type that implements `Display`, and a [`Key`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a key",
    label = "this is no key",
    note = "a key is anything that implements `Display`, or a `limiter_core::Key`;",
    note = "for an `Option`, write `key = x.as_deref().unwrap_or(\"anonymous\")`, or `when = x.is_some()` with a \
            key of the contained value"
)]
pub trait ToKey {
    /// Returns the key, without moving the value. The key is written to `buffer`, so that a lock
    /// from which the value borrows can be released.
    fn to_key<'k>(&self, buffer: &'k mut KeyBuffer) -> Key<'k>;
}

impl<T: Display + ?Sized> ToKey for T {
    #[inline]
    fn to_key<'k>(&self, buffer: &'k mut KeyBuffer) -> Key<'k> {
        buffer.whole(self).key()
    }
}

impl ToKey for Key<'_> {
    #[inline]
    fn to_key<'k>(&self, buffer: &'k mut KeyBuffer) -> Key<'k> {
        buffer.copy_of(self)
    }
}

impl ToKey for &Key<'_> {
    #[inline]
    fn to_key<'k>(&self, buffer: &'k mut KeyBuffer) -> Key<'k> {
        buffer.copy_of(self)
    }
}

/// A value of `limiter = …`: a [`Limiter`], and references to one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no limiter",
    label = "this is no limiter",
    note = "`limiter = …` takes a `limiter_core::Limiter`, or a reference to one"
)]
pub trait ToLimiter {
    /// Returns the limiter.
    fn to_limiter(&self) -> &Limiter;
}

impl ToLimiter for Limiter {
    #[inline]
    fn to_limiter(&self) -> &Limiter {
        self
    }
}

/// A value of `capacity`, `limit` and `need`: a number, an [`Amount`], or a `Result` with one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no number of permits",
    label = "this is no number",
    note = "permits are an integer, a float with at most three decimals, a `limiter_core::Amount`, or a \
            `Result<Amount, ConfigError>`"
)]
pub trait ToAmount {
    /// Converts to an amount.
    ///
    /// # Errors
    ///
    /// The number is negative, not a number, or finer than a thousandth.
    fn to_amount(&self) -> Result<Amount, ConfigError>;
}

/// A value of `rate` without a `per`: a number per second, text such as `"100/min"`, a [`Rate`], or
/// a `Result` with one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no rate",
    label = "this is no rate",
    note = "a rate is a number (per second), text such as \"100/min\", a `limiter_core::Rate`, or a \
            `Result<Rate, ConfigError>`"
)]
pub trait ToRate {
    /// Converts to a rate.
    ///
    /// # Errors
    ///
    /// The rate is not above zero, or has no exact form.
    fn to_rate(&self) -> Result<Rate, ConfigError>;
}

/// A value of `window`, `per`, `wait` and `deadline`: a [`Duration`], or text such as `"1m"`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no span of time",
    label = "this is no duration",
    note = "a span of time is text with a unit, such as \"500ms\" or \"1m\", or a `std::time::Duration`"
)]
pub trait ToDuration {
    /// Converts to a duration.
    ///
    /// # Errors
    ///
    /// The text is malformed.
    fn to_duration(&self) -> Result<Duration, ConfigError>;
}

macro_rules! through_pointers {
    ($($trait:ident :: $method:ident -> $output:ty),*) => {$(
        impl<T: $trait + ?Sized> $trait for &T {
            fn $method(&self) -> $output {
                (**self).$method()
            }
        }

        impl<T: $trait + ?Sized> $trait for Arc<T> {
            fn $method(&self) -> $output {
                (**self).$method()
            }
        }
    )*};
}
through_pointers!(
    ToLimiter::to_limiter -> &Limiter,
    ToAmount::to_amount -> Result<Amount, ConfigError>,
    ToRate::to_rate -> Result<Rate, ConfigError>,
    ToDuration::to_duration -> Result<Duration, ConfigError>
);

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl ToAmount for $number {
            fn to_amount(&self) -> Result<Amount, ConfigError> {
                Amount::try_from(*self).map_err(Into::into)
            }
        }

        impl ToRate for $number {
            fn to_rate(&self) -> Result<Rate, ConfigError> {
                Rate::try_from(*self)
            }
        }
    )*};
}
numbers!(
    u8, u16, u32, u64, usize, i8, i16, i32, i64, isize, f32, f64, Amount
);

impl ToAmount for Result<Amount, ConfigError> {
    fn to_amount(&self) -> Result<Amount, ConfigError> {
        self.clone()
    }
}

impl ToRate for Rate {
    fn to_rate(&self) -> Result<Rate, ConfigError> {
        Ok(*self)
    }
}

impl ToRate for Result<Rate, ConfigError> {
    fn to_rate(&self) -> Result<Rate, ConfigError> {
        self.clone()
    }
}

impl ToRate for str {
    fn to_rate(&self) -> Result<Rate, ConfigError> {
        self.parse()
    }
}

impl ToRate for String {
    fn to_rate(&self) -> Result<Rate, ConfigError> {
        self.parse()
    }
}

impl ToDuration for Duration {
    fn to_duration(&self) -> Result<Duration, ConfigError> {
        Ok(*self)
    }
}

impl ToDuration for str {
    fn to_duration(&self) -> Result<Duration, ConfigError> {
        parse_duration(self)
    }
}

impl ToDuration for String {
    fn to_duration(&self) -> Result<Duration, ConfigError> {
        parse_duration(self)
    }
}
