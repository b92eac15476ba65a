//! Encodes the calls of the decision script; `lua/wire.lua` defines the layout.

use std::time::Duration;

use smallvec::SmallVec;

use crate::identity::Identity;
use crate::policy::{
    Algorithm, CounterWindow, FixedWindow, Funnel, Periods, SlidingWindow, TokenBucket, origin,
};
use crate::redis::script::input::ScriptInput;
use crate::redis::script::{Call, DECIDE};
use crate::units::Timestamp;

/// The server expires keys by its own clock, so with an injected clock keys must not expire while a
/// test runs.
const LEAST_TTL_MS_UNDER_INJECTED_CLOCK: u32 = 3_600_000;

/// Added to the algorithm code of a limit that is checked and never charged.
const BLOCK: u8 = 128;

/// An input and the number of its equal requests: at most `u16::MAX`.
pub(crate) type Item<'a> = (&'a ScriptInput, usize);

/// Builds the call for these inputs, in this order; their keys are in one slot.
pub(crate) fn call<'a>(items: &[Item<'a>], injected: Option<Timestamp>, deadline: Duration) -> Call<'a> {
    let keys = items.iter().flat_map(|(input, _)| &input.keys);
    let mut plan = head(injected);
    // Consecutive inputs that differ only in their keys are encoded once.
    let runs =
        || items.chunk_by(|(one, times), (next, next_times)| times == next_times && one.is_alike(next));
    // Requests and batches have bounds far below the range of these integers.
    plan.extend_from_slice(&count(runs().count()).to_le_bytes());
    for run in runs() {
        let Some((input, times)) = run.first() else {
            continue;
        };
        plan.reserve(7 + 33 * input.limits.len());
        plan.extend_from_slice(&count(run.len()).to_le_bytes());
        plan.push(u8::from(input.charges_values() && all_differ(run)));
        plan.push(input.operation as u8);
        plan.push(u8::try_from(input.limits.len()).unwrap_or(u8::MAX));
        plan.extend_from_slice(&count(*times).to_le_bytes());
        for limit in &input.limits {
            let (algorithm, numbers) = parameters(&limit.algorithm);
            plan.push(if limit.blocks {
                algorithm | BLOCK
            } else {
                algorithm
            });
            for number in [limit.cost].into_iter().chain(numbers) {
                plan.extend_from_slice(&number.to_le_bytes());
            }
        }
    }
    Call::new(&DECIDE, keys, plan, deadline)
}

/// Returns whether no limit occurs twice.
fn all_differ(run: &[Item<'_>]) -> bool {
    let limits = run.iter().flat_map(|(input, _)| &input.limits);
    let mut identities: SmallVec<[Identity; 64]> = limits.map(|limit| limit.identity).collect();
    identities.sort_unstable();
    identities
        .windows(2)
        .all(|pair| !matches!(pair, [one, other] if one == other))
}

/// Returns an algorithm's code and its parameters.
pub(crate) fn parameters(algorithm: &Algorithm) -> (u8, [u64; 3]) {
    match *algorithm {
        Algorithm::TokenBucket(TokenBucket { capacity, rate }) => {
            (1, [capacity, rate.thousandths, rate.micros])
        }
        Algorithm::Funnel(Funnel { capacity, rate, .. }) => (2, [capacity, rate.thousandths, rate.micros]),
        Algorithm::SlidingWindow(SlidingWindow { limit, window }) => (3, [limit, window, 0]),
        Algorithm::CounterWindow(CounterWindow { limit, window }) => (4, [limit, window, 0]),
        Algorithm::FixedWindow(FixedWindow {
            limit,
            window,
            periods,
        }) => {
            let periods = match periods {
                Periods::FirstUse => 0,
                // An origin is less than the window, and the offset of a month is more than the
                // window, so one number encodes the three cases.
                Periods::Aligned(offset) => 1 + origin(window, offset),
                Periods::Months(offset) => window + offset.ahead_and_a_day(),
            };
            (5, [limit, window, periods])
        }
        // Concurrency limits have a script of their own.
        Algorithm::Concurrency(_) => (0, [0; 3]),
    }
}

fn count(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

/// Encodes the first fields of every script's argument: the time and the minimum TTL.
pub(crate) fn head(injected: Option<Timestamp>) -> Vec<u8> {
    // Zero means the server's time.
    let now = injected.map_or(0, |moment| moment.as_micros().max(1));
    let least_ttl_ms = if injected.is_some() {
        LEAST_TTL_MS_UNDER_INJECTED_CLOCK
    } else {
        0
    };
    let mut head = Vec::with_capacity(32);
    head.extend_from_slice(&now.to_le_bytes());
    head.extend_from_slice(&least_ttl_ms.to_le_bytes());
    head
}
