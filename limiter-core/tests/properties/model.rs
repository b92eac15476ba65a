//! Reference models of limits, computed in the simplest way.

use limiter_core::{Amount, LimitOutcome, Policy, Rate};
use proptest::prelude::*;

use crate::PARTS;
use crate::Step;
use crate::support::micros;

/// Numbers of a bucket or a funnel: thousandths, and thousandths per period in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    pub(crate) funnel: bool,
    pub(crate) capacity: u64,
    pub(crate) amount: u64,
    pub(crate) period: u64,
}

pub(crate) fn level() -> impl Strategy<Value = Level> {
    let capacity = prop_oneof![
        1..3_000_u64,
        1_000..30_000_u64,
        (1..20_u64).prop_map(|whole| whole * 1_000)
    ];
    let rate = prop_oneof![
        (1..20_000_u64, 1..5_000_000_u64),
        (1..20_u64).prop_map(|whole| (whole * 1_000, 1_000_000)),
        Just((7_000, 3_000_000)),
        Just((999_983_000, 86_400_000_000)),
    ];
    (any::<bool>(), capacity, rate).prop_map(|(funnel, capacity, (amount, period))| Level {
        funnel,
        capacity,
        amount,
        period,
    })
}

impl Level {
    pub(crate) fn policy(self, name: &str) -> Policy {
        let capacity = Amount::from_thousandths(self.capacity);
        let rate = Rate::per(Amount::from_thousandths(self.amount), micros(self.period)).unwrap();
        if self.funnel {
            Policy::funnel(name)
                .capacity(capacity)
                .rate(rate)
                .build()
                .unwrap()
        } else {
            Policy::token_bucket(name)
                .capacity(capacity)
                .rate(rate)
                .build()
                .unwrap()
        }
    }

    pub(crate) fn cost(self, step: Step) -> Amount {
        Amount::from_thousandths(1 + (self.capacity - 1) * step.part / PARTS)
    }
}

/// Numbers of a window: permits, and microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) limit: u64,
    pub(crate) length: u64,
}

pub(crate) fn window() -> impl Strategy<Value = Window> {
    let limit = prop_oneof![1..8_u64, 1..40_u64];
    let length = prop_oneof![1..10_u64, 1..5_000_000_u64, Just(1_000_000)];
    (limit, length).prop_map(|(limit, length)| Window { limit, length })
}

impl Window {
    pub(crate) fn policy(self, name: &str) -> Policy {
        let policy = Policy::sliding_window(name)
            .limit(self.limit)
            .window(micros(self.length));
        policy.build().unwrap()
    }

    pub(crate) fn counter(self, name: &str) -> Policy {
        let policy = Policy::counter_window(name)
            .limit(self.limit)
            .window(micros(self.length));
        policy.build().unwrap()
    }

    pub(crate) fn fixed(self, name: &str) -> Policy {
        let policy = Policy::fixed_window(name)
            .limit(self.limit)
            .window(micros(self.length));
        policy.build().unwrap()
    }

    pub(crate) fn cost(self, step: Step) -> Amount {
        Amount::from(1 + (self.limit - 1) * step.part / PARTS)
    }
}

/// Fits, remaining, retry, reset: amounts in thousandths, times in microseconds.
pub(crate) type Facts = (bool, u128, u128, u128);

pub(crate) fn facts(outcome: &LimitOutcome) -> Facts {
    (
        outcome.is_allowed(),
        outcome.remaining().as_thousandths(),
        outcome.retry_after().as_micros(),
        outcome.reset_after().as_micros(),
    )
}

/// A reference model of a limit.
pub(crate) trait Model {
    /// Decides a call of this cost at this time; charges it if it fits and `charge` is set.
    fn answer(&mut self, cost: Amount, moment: u64, charge: bool) -> Facts;
}

/// The usage of a bucket or a funnel, in fractions; `period` fractions are one thousandth.
pub(crate) struct LevelModel {
    level: Level,
    used: u128,
    at: u64,
}

impl Model for LevelModel {
    fn answer(&mut self, cost: Amount, moment: u64, charge: bool) -> Facts {
        let (amount, period) = (u128::from(self.level.amount), u128::from(self.level.period));
        let full = u128::from(self.level.capacity) * period;
        let cost = cost.as_thousandths() * period;
        self.used = self.used.saturating_sub(u128::from(moment - self.at) * amount);
        self.at = moment;
        let fits = self.used + cost <= full;
        let retry = (self.used + cost).saturating_sub(full).div_ceil(amount);
        self.used += if fits && charge { cost } else { 0 };
        (
            fits,
            (full - self.used) / period,
            retry,
            self.used.div_ceil(amount),
        )
    }
}

/// All that a window has granted, oldest first, one entry a permit.
pub(crate) struct Log {
    window: Window,
    granted: Vec<u64>,
}

impl Model for Log {
    fn answer(&mut self, cost: Amount, moment: u64, charge: bool) -> Facts {
        let Window { limit, length } = self.window;
        self.granted.retain(|at| at + length > moment);
        let (used, cost) = (self.granted.len() as u64, cost.whole());
        let fits = used + cost <= limit;
        // The number of oldest permits that have to expire first.
        let leaving = usize::try_from((used + cost).saturating_sub(limit)).unwrap();
        let retry = if fits {
            0
        } else {
            self.granted[leaving - 1] + length - moment
        };
        if fits && charge {
            self.granted.extend((0..cost).map(|_| moment));
        }
        let reset = self.granted.last().map_or(0, |newest| newest + length - moment);
        let remaining = limit - self.granted.len() as u64;
        (fits, u128::from(remaining) * 1_000, retry.into(), reset.into())
    }
}

impl LevelModel {
    pub(crate) fn new(level: Level) -> Self {
        Self {
            level,
            used: 0,
            at: 0,
        }
    }
}

impl Log {
    pub(crate) fn new(window: Window) -> Self {
        Self {
            window,
            granted: Vec::new(),
        }
    }
}
