//! What goes to the script; the layout is told in `lua/wire.lua`.

use std::time::Duration;

use smallvec::SmallVec;

use crate::identity::Identity;
use crate::policy::{
    Algorithm, CounterWindow, FixedWindow, Funnel, Periods, SlidingWindow, TokenBucket, origin,
};
use crate::redis::script::input::ScriptInput;
use crate::redis::script::{Call, DECIDE};
use crate::units::Timestamp;

/// The server expires keys by its own clock, so under an injected one they must not expire while a
/// test runs.
const LEAST_TTL_MS_UNDER_INJECTED_CLOCK: u32 = 3_600_000;

/// Added to the algorithm of a limit that is asked for and never charged.
const BLOCK: u8 = 128;

/// A question, and how often it is asked in a row: at most `u16::MAX` times.
pub(crate) type Item<'a> = (&'a ScriptInput, usize);

/// The call that asks these questions, in this order; their keys lie in one slot.
pub(crate) fn call<'a>(items: &[Item<'a>], injected: Option<Timestamp>, deadline: Duration) -> Call<'a> {
    let keys = items.iter().flat_map(|(input, _)| &input.keys);
    let mut plan = head(injected);
    // Questions that ask the same of different keys stand there once.
    let runs =
        || items.chunk_by(|(one, times), (next, next_times)| times == next_times && one.is_alike(next));
    // Counts are bounded where requests and batches are made, far below these integers' range.
    plan.extend_from_slice(&count(runs().count()).to_le_bytes());
    for run in runs() {
        let Some((input, times)) = run.first() else {
            continue;
        };
        plan.reserve(7 + 33 * input.limits.len());
        plan.extend_from_slice(&count(run.len()).to_le_bytes());
        plan.push(u8::from(input.charges_a_value() && all_differ(run)));
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

/// Whether no limit is asked for twice, of questions about one limit each.
fn all_differ(run: &[Item<'_>]) -> bool {
    let alone = |(input, _): &Item<'_>| match input.limits.as_slice() {
        [limit] => Some(limit.identity),
        _ => None,
    };
    let Some(mut limits) = run
        .iter()
        .map(alone)
        .collect::<Option<SmallVec<[Identity; 64]>>>()
    else {
        return false;
    };
    limits.sort_unstable();
    limits
        .windows(2)
        .all(|pair| !matches!(pair, [one, other] if one == other))
}

/// An algorithm's number, and its parameters.
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
                // An origin is less than the window, and what is ahead is more than nothing: the
                // three are told apart.
                Periods::Aligned(offset) => 1 + origin(window, offset),
                Periods::Months(offset) => window + offset.ahead_and_a_day(),
            };
            (5, [limit, window, periods])
        }
        // Asked by another script.
        Algorithm::Concurrency(_) => (0, [0; 3]),
    }
}

fn count(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

/// What each script's argument begins with: the time, and the least TTL.
pub(crate) fn head(injected: Option<Timestamp>) -> Vec<u8> {
    // Zero stands for the server's time.
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
