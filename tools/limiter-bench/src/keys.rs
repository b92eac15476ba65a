//! The sequence of keys, equal for all contenders.

use std::sync::Arc;

/// Long enough that the processor's caches do not learn it; two to a power, so that walking it is
/// cheap.
const STEPS: usize = 1 << 20;
const SEED: u64 = 0x6c69_6d69_7465_7221;

/// The distribution of calls over keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distribution {
    /// This number of keys, all with equal probability.
    Even(usize),
    /// This number of keys; the probability of the n-th is proportional to 1/n.
    Zipf(usize),
}

impl Distribution {
    pub(crate) fn keys(self) -> usize {
        match self {
            Self::Even(keys) | Self::Zipf(keys) => keys,
        }
    }
}

/// A sequence of keys, by their numbers.
#[derive(Clone, Debug)]
pub(crate) struct Order(Arc<[u32]>);

impl Order {
    pub(crate) fn new(distribution: Distribution) -> Self {
        let mut random = fastrand::Rng::with_seed(SEED);
        let keys = distribution.keys();
        Self(match distribution {
            Distribution::Even(_) => (0..STEPS).map(|_| random.usize(..keys) as u32).collect(),
            Distribution::Zipf(_) => {
                let mut sum = 0.0;
                let weights = (1..=keys).map(|rank| {
                    sum += 1.0 / rank as f64;
                    sum
                });
                let reached: Vec<f64> = weights.collect();
                let draw = |_| {
                    let drawn = random.f64() * sum;
                    reached.partition_point(|&weight| weight < drawn) as u32
                };
                (0..STEPS).map(draw).collect()
            }
        })
    }

    /// Returns the sequence of one of several tasks: each starts at another position and wraps
    /// around.
    pub(crate) fn walk(&self, task: usize, tasks: usize) -> Walk {
        Walk {
            order: self.clone(),
            next: STEPS / tasks * task,
        }
    }
}

/// An endless walk through an [`Order`].
#[derive(Debug)]
pub(crate) struct Walk {
    order: Order,
    next: usize,
}

impl Walk {
    #[inline]
    pub(crate) fn next(&mut self) -> usize {
        let key = self.order.0[self.next];
        self.next = (self.next + 1) & (STEPS - 1);
        key as usize
    }
}

/// Returns the names of keys, as an application would have them at hand.
pub(crate) fn names(keys: usize) -> Arc<[String]> {
    (0..keys).map(name).collect()
}

pub(crate) fn name(key: usize) -> String {
    format!("user-{key:07}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_of_a_thousand_keys_is_every_seventh() {
        let mut walk = Order::new(Distribution::Zipf(1_000)).walk(0, 1);
        let first = (0..100_000).filter(|_| walk.next() == 0).count();
        assert!((12_000..15_000).contains(&first), "{first}");
    }

    #[test]
    fn all_keys_occur() {
        let mut walk = Order::new(Distribution::Even(100)).walk(3, 4);
        let mut seen = [false; 100];
        (0..10_000).for_each(|_| seen[walk.next()] = true);
        assert!(seen.iter().all(|seen| *seen));
    }
}
