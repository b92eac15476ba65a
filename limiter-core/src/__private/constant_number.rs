//! The numbers of permits that the compiler can compare: conversions without traits, which
//! constants cannot call.
//!
//! The expansion wraps a constant `need` and a constant quota in `ConstantNumber`, converts both to
//! thousandths, and compares them in a constant expression, so that a `need` above the quota is a
//! compile error. A number that is unknown at compile time passes, and the conversion at run time
//! checks it. Tests: below, and `limiter-macros/tests/compiles/constants.rs`.

use std::mem::ManuallyDrop;

use crate::error::ConfigError;
use crate::units::Amount;

/// A constant of a type that `capacity`, `limit`, `max` and `need` accept. One without a
/// destructor, since a constant cannot run any.
#[derive(Debug)]
pub struct ConstantNumber<T>(pub ManuallyDrop<T>);

/// Returns whether a cost does not exceed a quota. A number that is unknown here is checked at run
/// time.
#[must_use]
pub const fn need_fits(need: Option<u128>, quota: Option<u128>) -> bool {
    match (need, quota) {
        (Some(need), Some(quota)) => need <= quota,
        _ => true,
    }
}

macro_rules! constants {
    ($($number:ty: |$value:ident| $thousandths:expr;)*) => {$(
        impl ConstantNumber<$number> {
            /// Returns the number in thousandths; `None` if the conversion at run time rejects it.
            #[must_use]
            pub const fn thousandths(self) -> Option<u128> {
                let $value = ManuallyDrop::into_inner(self.0);
                $thousandths
            }
        }

        impl ConstantNumber<&$number> {
            /// Returns the number in thousandths; `None` if the conversion at run time rejects it.
            #[must_use]
            pub const fn thousandths(self) -> Option<u128> {
                let $value = *ManuallyDrop::into_inner(self.0);
                $thousandths
            }
        }
    )*};
}

constants! {
    u8: |value| Some(value as u128 * 1_000);
    u16: |value| Some(value as u128 * 1_000);
    u32: |value| Some(value as u128 * 1_000);
    u64: |value| Some(value as u128 * 1_000);
    usize: |value| Some(value as u128 * 1_000);
    i8: |value| signed(value as i128);
    i16: |value| signed(value as i128);
    i32: |value| signed(value as i128);
    i64: |value| signed(value as i128);
    isize: |value| signed(value as i128);
    f32: |value| float(value as f64);
    f64: |value| float(value);
    Amount: |value| Some(value.as_thousandths());
}

impl ConstantNumber<Result<Amount, ConfigError>> {
    /// Unknown: a constant cannot read a value that has a destructor.
    #[must_use]
    pub const fn thousandths(self) -> Option<u128> {
        None
    }
}

const fn signed(value: i128) -> Option<u128> {
    if value < 0 {
        return None;
    }
    Some(value.unsigned_abs() * 1_000)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a negative number, infinity and NaN are not converted, and a fraction is rounded to thousandths"
)]
const fn float(value: f64) -> Option<u128> {
    if value >= 0.0 && value < f64::MAX {
        Some((value * 1_000.0 + 0.5) as u128)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! thousandths {
        ($value:expr) => {
            const { ConstantNumber(ManuallyDrop::new($value)).thousandths() }
        };
    }

    #[test]
    fn constants_are_converted_to_thousandths() {
        assert_eq!(thousandths!(7_u8), Some(7_000));
        assert_eq!(thousandths!(u64::MAX), Some(u128::from(u64::MAX) * 1_000));
        assert_eq!(thousandths!(-1_i32), None);
        assert_eq!(thousandths!(1.001_f64), Some(1_001));
        assert_eq!(thousandths!(0.5_f32), Some(500));
        assert_eq!(thousandths!(f64::NAN), None);
        assert_eq!(thousandths!(f64::INFINITY), None);
        assert_eq!(thousandths!(&3_i8), Some(3_000));
        assert_eq!(thousandths!(Amount::from_thousandths(1_500)), Some(1_500));
        const RESULT: Result<Amount, ConfigError> = Ok(Amount::ONE);
        assert_eq!(thousandths!(RESULT), None);
    }

    #[test]
    fn need_fits_unless_it_exceeds_a_known_quota() {
        assert!(need_fits(Some(1), Some(1)) && need_fits(Some(2), None) && need_fits(None, Some(0)));
        assert!(!need_fits(Some(2), Some(1)));
    }
}
