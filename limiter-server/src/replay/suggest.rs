//! Suggests the numbers of a token bucket for recorded traffic.
//!
//! For each of twenty rates, a search finds the smallest capacity that meets a target: a share of
//! denied calls, or a share of keys without a denied call. A denied call charges nothing, as in the
//! limiter. The lowest rate whose capacity refills within a minute is recommended. Tests: the
//! properties below compare with the limiter.

mod bucket;
mod events;
mod rates;
mod search;
mod streams;

#[cfg(test)]
mod tests;

use std::str::FromStr;

use serde::Serialize;

use crate::replay::suggest::events::EventLog;
pub use crate::replay::suggest::rates::SuggestedRate;
use crate::replay::suggest::search::smallest_capacity;
pub(super) use crate::replay::suggest::streams::EventStreams;

/// The number of rates.
const RATES: usize = 20;
/// The longest time in which the recommended capacity refills, in seconds.
const MAX_REFILL: u64 = 60;
/// A whole in the parts of a target.
const MILLION: u64 = 1_000_000;

/// The accepted denials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DenialTarget {
    /// At most this number of a million calls is denied.
    DeniedCallsPerMillion(u64),
    /// At most this number of a million keys has a denied call.
    DeniedKeysPerMillion(u64),
}

impl Default for DenialTarget {
    /// 0.1 % of calls.
    fn default() -> Self {
        Self::DeniedCallsPerMillion(1_000)
    }
}

impl std::fmt::Display for DenialTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::DeniedCallsPerMillion(part) => write!(f, "at most {} % of calls denied", Percent(*part)),
            Self::DeniedKeysPerMillion(part) => {
                write!(
                    f,
                    "no call denied for {} % of keys",
                    Percent(MILLION - part.min(&MILLION))
                )
            }
        }
    }
}

/// A percentage with up to four decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(pub u64);

impl std::fmt::Display for Percent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{}.{:04}", self.0 / 10_000, self.0 % 10_000);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl FromStr for Percent {
    type Err = String;

    /// Parses a percentage, as parts of a million: `0.1` and `0.1%` are 1,000.
    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("`{text}` is no percentage, expected 0 to 100 with at most four decimals");
        let number = text.strip_suffix('%').unwrap_or(text).trim();
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        if decimals.len() > 4 || !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(error());
        }
        let whole: u64 = whole.parse().map_err(|_| error())?;
        let decimals: u64 = format!("{decimals:0<4}").parse().map_err(|_| error())?;
        let part = whole.saturating_mul(10_000).saturating_add(decimals);
        if part > MILLION {
            return Err(error());
        }
        Ok(Self(part))
    }
}

/// A rate with the smallest capacity that meets the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SuggestedBucket {
    /// The rate, as a policy states it: `2.5/s`.
    pub rate: SuggestedRate,
    /// The capacity.
    pub capacity: u64,
    /// The number of calls that this bucket denies.
    pub denied_calls: u64,
    /// The number of keys with a denied call.
    pub denied_keys: u64,
}

/// The suggestion for one policy, or for all calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suggestion {
    /// The policy whose rule selects the calls; `None` for all calls.
    pub policy: Option<String>,
    /// The target, as a sentence.
    pub target: String,
    /// The number of calls from which the capacities are computed.
    pub calls: u64,
    /// The number of their keys.
    pub keys: u64,
    /// The number of further calls, which are left out.
    pub omitted_calls: u64,
    /// The calls of one in this number of keys are used.
    pub one_key_in: u64,
    /// True if the costs of calls differ. A capacity that is smaller than the suggested one by more
    /// than one can then meet the target too.
    pub costs_differ: bool,
    /// The buckets, that of the lowest rate first.
    pub buckets: Vec<SuggestedBucket>,
    /// The position of the recommended bucket.
    pub recommended: Option<usize>,
}

impl Suggestion {
    /// Computes the suggestion; `None` without calls that cost something.
    fn compute(policy: Option<String>, events: EventLog, target: DenialTarget) -> Option<Self> {
        let traffic = events.into_traffic();
        let rates = rates::candidates(&traffic, target, RATES)?;
        let buckets: Vec<SuggestedBucket> = rates
            .into_iter()
            .map(|rate| smallest_capacity(&traffic, rate, target))
            .collect();
        let recommended = buckets
            .iter()
            .position(|bucket| bucket.rate.refills_within(bucket.capacity, MAX_REFILL));
        Some(Self {
            policy,
            target: target.to_string(),
            calls: traffic.calls(),
            keys: traffic.keys(),
            omitted_calls: traffic.omitted_calls,
            one_key_in: traffic.one_key_in,
            costs_differ: traffic.costs_differ(),
            buckets,
            recommended,
        })
    }

    /// Returns the recommended bucket.
    #[must_use]
    pub fn recommendation(&self) -> Option<&SuggestedBucket> {
        self.buckets.get(self.recommended?)
    }
}
