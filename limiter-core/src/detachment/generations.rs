//! The generations of its policies in which an id may have been made.

use smallvec::SmallVec;

/// The maximum number of combinations that are tried for one id.
const MAX_COMBINATIONS: u32 = 256;
/// The maximum number of generations that are tried for one limit.
const MAX_GENERATIONS: u32 = 16;

/// Returns the combinations of generations of the limits of an id, which earlier resets may have
/// ended. The current generations come first.
pub(crate) fn generations(current: SmallVec<[u32; 1]>) -> impl Iterator<Item = SmallVec<[u32; 1]>> {
    let limits = u32::try_from(current.len()).unwrap_or(u32::MAX);
    let combinations = |each: u32| each.checked_pow(limits).filter(|all| *all <= MAX_COMBINATIONS);
    let each = (1..=MAX_GENERATIONS)
        .rev()
        .find(|each| combinations(*each).is_some());
    let each = each.unwrap_or(1);
    let all = combinations(each).unwrap_or(1);
    (0..all).filter_map(move |combination| {
        let mut rest = combination;
        let earlier = current.iter().map(|generation| {
            let resets = rest % each;
            rest /= each;
            generation.checked_sub(resets)
        });
        earlier.collect()
    })
}

#[cfg(test)]
mod tests {
    use crate::detachment::generations::*;

    fn all(current: &[u32]) -> Vec<Vec<u32>> {
        generations(current.into()).map(|each| each.to_vec()).collect()
    }

    #[test]
    fn current_generations_come_first() {
        assert_eq!(all(&[0]), [[0]]);
        assert_eq!(all(&[2]), [[2], [1], [0]]);
        assert_eq!(all(&[1, 1]), [[1, 1], [0, 1], [1, 0], [0, 0]]);
        assert_eq!(all(&[]), [[0_u32; 0]]);
    }

    #[test]
    fn combinations_are_bounded() {
        for limits in 1..=16 {
            let count = all(&vec![100; limits]).len();
            assert!((1..=256).contains(&count), "{limits}: {count}");
        }
        assert_eq!(all(&[100]).len(), 16);
    }
}
