//! Display and debug output of policies.

use std::fmt;

use crate::policy::rate::Span;
use crate::policy::{
    Algorithm, CounterWindow, FixedWindow, Funnel, Periods, Policy, SlidingWindow, TokenBucket,
};
use crate::units::Amount;

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.0.name)
            .field("algorithm", &self.0.algorithm)
            .field("group", &self.0.group)
            .field("on_store_failure", &self.on_store_failure())
            .field("deadline", &self.deadline())
            .field("lease", &self.0.lease)
            .field("extras", &self.0.extras)
            .field("generation", &self.0.generation)
            .field("before", &self.before())
            .finish()
    }
}

/// `search (token bucket: 20, refilled at 10/s)`.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self.0.algorithm {
            Algorithm::TokenBucket(TokenBucket { capacity, rate }) => {
                write!(
                    f,
                    "{name} (token bucket: {}, refilled at {rate})",
                    Amount::from_thousandths(capacity)
                )
            }
            Algorithm::Funnel(Funnel {
                capacity,
                rate,
                paced,
            }) => {
                write!(
                    f,
                    "{name} ({}: {}, drained at {rate})",
                    if paced { "paced funnel" } else { "funnel" },
                    Amount::from_thousandths(capacity)
                )
            }
            Algorithm::SlidingWindow(SlidingWindow { limit, window }) => {
                write!(f, "{name} (sliding window: {limit} in any {})", Span(window))
            }
            Algorithm::CounterWindow(CounterWindow { limit, window }) => {
                write!(f, "{name} (counter window: {limit} in about {})", Span(window))
            }
            Algorithm::FixedWindow(FixedWindow {
                limit,
                window,
                periods,
            }) => {
                write!(f, "{name} (fixed window: {limit} in each ")?;
                match periods {
                    Periods::FirstUse => write!(f, "{} from its first use)", Span(window)),
                    Periods::Aligned(offset) => write!(f, "{} of {offset})", Span(window)),
                    Periods::Months(offset) => write!(f, "month of {offset})"),
                }
            }
            Algorithm::Concurrency(limit) => write!(f, "{name} (concurrency: {limit})"),
        }
    }
}
