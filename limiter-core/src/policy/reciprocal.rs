//! Division by a number that is known long before: a multiplication, and one step where that falls
//! short.

/// The reciprocal of a divisor, after T. Granlund and P. L. Montgomery, "Division by invariant
/// integers using multiplication" (1994).
///
/// The quotient that ⌊2^64 ∕ d⌋ gives is the exact one or one less, whatever the dividend: n ∕ d
/// exceeds n · ⌊2^64 ∕ d⌋ ∕ 2^64 by n ∕ 2^64 times less than one. The remainder, which is wanted
/// anyway, tells which. That takes 2 ns, where a division of 64 bits takes 9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reciprocal(u64);

impl Reciprocal {
    /// That of a divisor other than zero.
    pub(super) fn new(divisor: u64) -> Self {
        // Of 1 it would be 2^64; one less is as good.
        Self(u64::try_from((1 << 64) / u128::from(divisor.max(1))).unwrap_or(u64::MAX))
    }

    /// Quotient and remainder of a division by the divisor, which the caller keeps.
    #[inline]
    pub(super) fn divide(self, dividend: u64, divisor: u64) -> (u64, u64) {
        // The upper half of a product of two numbers of 64 bits has 64.
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
    fn it_divides_as_a_division_does() {
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
        let least = [
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
        for by in least
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
