//! Division of levels by an invariant divisor: 2 ns instead of 9 (`local-1`: a check of one key
//! takes 93 ns instead of 105).
//!
//! The reciprocal of a policy's divisor is computed once. A division is then one multiplication and
//! at most one correction. Tests: below.

/// The reciprocal of a divisor, after T. Granlund and P. L. Montgomery, "Division by invariant
/// integers using multiplication" (1994).
///
/// The quotient from ⌊2^64 ∕ d⌋ is exact or one too small for every dividend: n ∕ d exceeds n ·
/// ⌊2^64 ∕ d⌋ ∕ 2^64 by n ∕ 2^64 times less than one. The remainder, which the callers need anyway,
/// shows which. This takes 2 ns; a 64-bit division takes 9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reciprocal(u64);

impl Reciprocal {
    /// Computes the reciprocal of a divisor other than zero.
    pub(super) fn new(divisor: u64) -> Self {
        // The reciprocal of 1 would be 2^64; one less gives the same results.
        Self(u64::try_from((1 << 64) / u128::from(divisor.max(1))).unwrap_or(u64::MAX))
    }

    /// Returns quotient and remainder of a division by the divisor, which the caller stores.
    #[inline]
    pub(super) fn divide(self, dividend: u64, divisor: u64) -> (u64, u64) {
        // The upper half of the product of two 64-bit numbers has 64 bits.
        let quotient = ((u128::from(dividend) * u128::from(self.0)) >> 64) as u64;
        let remainder = dividend - quotient * divisor;
        if remainder >= divisor {
            (quotient + 1, remainder - divisor)
        } else {
            (quotient, remainder)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::reciprocal::*;

    #[test]
    fn reciprocal_division_equals_division() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut any = move || random.u64(..) >> random.u32(..64);
        let edges = |by: u64| {
            [
                0,
                1,
                by - 1,
                by,
                by.saturating_add(1),
                u64::MAX / by * by,
                u64::MAX - 1,
                u64::MAX,
            ]
        };
        let divisors = [
            1,
            2,
            3,
            5,
            7,
            10,
            1_000,
            30_000,
            1 << 42,
            (1 << 42) - 1,
            1 << 63,
            u64::MAX - 1,
            u64::MAX,
        ];
        for by in divisors
            .into_iter()
            .chain((0..20_000).map(|_| any().max(1)))
            .collect::<Vec<_>>()
        {
            let multiple = (u64::MAX / by).saturating_sub(any() % 9) * by;
            let dividends = edges(by)
                .into_iter()
                .chain([multiple, multiple.saturating_sub(1), any(), any()]);
            for dividend in dividends {
                let expected = (dividend / by, dividend % by);
                assert_eq!(
                    Reciprocal::new(by).divide(dividend, by),
                    expected,
                    "{dividend} by {by}"
                );
            }
        }
    }
}
