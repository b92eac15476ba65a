//! Writes draft 7 and the legacy headers, which show only the most restrictive limit.
//!
//! Both formats have one number of remaining permits, but a decision can have several limits. The
//! limit with the fewest remaining permits is shown and, for equal numbers, the longest wait.
//! Headers of inner layers are parsed for the same comparison.
//!
//! Invariant: a client that follows the headers satisfies every limit. Tests: `headers/tests/`, in
//! particular `draft_7_names_one_of_two_policies_with_equal_quota`.

use std::cmp::Reverse;
use std::time::Duration;

use http::HeaderValue;
use limiter_core::{Decision, LimitOutcome};

use super::header_buffer::HeaderBuffer;
use super::{Costs, MergedFields, Unsettled, fields_for, full_for, known_of, remaining, window};

/// Returns the limit with the fewest remaining permits and, for equal numbers, the longest wait.
fn expiring<'a>(
    decision: &'a Decision,
    open: &'a Unsettled,
    costs: &Costs,
) -> Option<(&'a LimitOutcome, Duration)> {
    known_of(decision, open)
        .filter_map(|limit| Some((limit, window(limit, costs)?)))
        .min_by_key(|(limit, window)| (remaining(limit, costs), Reverse(*window)))
}

pub(super) fn write_draft7(
    decision: &Decision,
    open: &Unsettled,
    costs: &Costs,
    text: &mut HeaderBuffer,
) -> Option<MergedFields> {
    for (place, policy) in policies(decision) {
        let quota = policy.quota().whole();
        // Two policies must not have the same quota.
        if policies(decision).any(|(other, policy)| other < place && policy.quota().whole() == quota) {
            continue;
        }
        if text.len() > 0 {
            text.push(", ");
        }
        text.integer(quota);
        text.push(";w=");
        text.seconds(policy.window());
    }
    let (first, expiring) = (text.len(), expiring(decision, open, costs));
    if let Some((limit, window)) = expiring {
        text.push("limit=");
        text.integer(limit.policy().quota().whole());
        text.push(", remaining=");
        text.integer(remaining(limit, costs));
        text.push(", reset=");
        text.seconds(window);
    }
    (first > 0).then(|| MergedFields {
        ends: [first, text.len()],
        full_for: expiring.map_or(Duration::ZERO, |(limit, window)| {
            full_for(remaining(limit, costs), window)
        }),
    })
}

pub(super) fn write_legacy(
    decision: &Decision,
    open: &Unsettled,
    costs: &Costs,
    text: &mut HeaderBuffer,
) -> Option<MergedFields> {
    let (limit, window) = expiring(decision, open, costs)?;
    text.integer(limit.policy().quota().whole());
    let first = text.len();
    text.integer(remaining(limit, costs));
    let second = text.len();
    text.seconds(window);
    Some(MergedFields {
        ends: [first, second],
        full_for: full_for(remaining(limit, costs), window),
    })
}

/// Returns the policies that have a window, with their indexes.
fn policies(decision: &Decision) -> impl Iterator<Item = (usize, &limiter_core::Policy)> {
    fields_for(decision)
        .filter(|limit| limit.effective_window().is_some())
        .map(LimitOutcome::policy)
        .enumerate()
}

/// Parses the remaining permits and the reset from headers. In draft 7, `RateLimit` contains both.
/// The more restrictive limit is the smaller value.
pub(super) fn remaining_and_reset(
    remaining: &HeaderValue,
    reset: Option<&HeaderValue>,
) -> Option<(u64, Reverse<Option<u64>>)> {
    let reset = reset.and_then(|reset| number_in(reset, "reset="));
    Some((number_in(remaining, "remaining=")?, Reverse(reset)))
}

/// Parses the number after `name` in a value, or the whole value as a number.
fn number_in(value: &HeaderValue, name: &str) -> Option<u64> {
    let value = value.to_str().ok()?;
    let number = match value.split_once(name) {
        Some((_, rest)) => rest.split([',', ';']).next()?,
        None => value,
    };
    number.trim().parse().ok()
}
