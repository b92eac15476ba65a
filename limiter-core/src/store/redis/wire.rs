//! What goes to the script and what comes back; the layout is told in `lua/driver.lua`.

use std::time::Duration;

use bb8_redis::redis::Value;
use smallvec::SmallVec;

use super::question::Question;
use super::script::{Call, DECIDE};
use crate::algorithm::Outcome;
use crate::error::{StoreError, StoreErrorKind};
use crate::policy::{Algorithm, Funnel, SlidingWindow, TokenBucket};
use crate::request::Verdict;
use crate::units::Timestamp;

/// The server expires keys by its own clock, so under an injected one they must not expire while a test runs.
const LEAST_TTL_MS_UNDER_INJECTED_CLOCK: u32 = 3_600_000;

/// Integers of one limit's outcome in a reply.
pub(super) const OUTCOME_FIELDS: usize = 5;

/// The answers to one question.
pub(super) type Verdicts = SmallVec<[Result<Verdict, StoreError>; 1]>;

/// A question, and how often it is asked in a row.
pub(super) type Item<'a> = (&'a Question, usize);

/// The call that asks these questions, in this order; their keys lie in one slot.
pub(super) fn call(items: &[Item<'_>], injected: Option<Timestamp>, deadline: Duration) -> Call {
    let each = || {
        items
            .iter()
            .flat_map(|(question, count)| std::iter::repeat_n(*question, *count))
    };
    let keys = each()
        .flat_map(|question| question.keys.iter().cloned())
        .collect();
    let mut plan = head(injected);
    let decisions: usize = items.iter().map(|(_, count)| count).sum();
    // Both counts are bounded where requests and batches are made, far below these integers' range.
    plan.extend_from_slice(&u16::try_from(decisions).unwrap_or(u16::MAX).to_le_bytes());
    for question in each() {
        plan.push(question.operation as u8);
        plan.push(u8::try_from(question.limits.len()).unwrap_or(u8::MAX));
        for limit in &question.limits {
            let (algorithm, numbers) = parameters(&limit.algorithm);
            plan.push(algorithm);
            plan.extend_from_slice(&limit.cost.to_le_bytes());
            for number in numbers {
                plan.extend_from_slice(&number.to_le_bytes());
            }
        }
    }
    Call::new(&DECIDE, keys, plan, deadline)
}

/// An algorithm's number, and its parameters.
pub(super) fn parameters(algorithm: &Algorithm) -> (u8, [u64; 3]) {
    match *algorithm {
        Algorithm::TokenBucket(TokenBucket { capacity, rate }) => {
            (1, [capacity, rate.thousandths, rate.micros])
        }
        Algorithm::Funnel(Funnel { capacity, rate }) => (2, [capacity, rate.thousandths, rate.micros]),
        Algorithm::SlidingWindow(SlidingWindow { limit, window }) => (3, [limit, window, 0]),
    }
}

/// What each script's argument begins with: the time, and the least TTL.
pub(super) fn head(injected: Option<Timestamp>) -> Vec<u8> {
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

/// The verdicts of a reply to these questions: for each, one for each time that it was asked.
pub(super) fn verdicts(reply: &Value, items: &[Item<'_>]) -> Result<Vec<Verdicts>, StoreError> {
    let numbers = integers(reply)?;
    let (now, outcomes) = numbers.split_first().ok_or_else(malformed)?;
    let limits = |(question, count): &Item<'_>| question.limits.len() * count;
    if outcomes.len() != items.iter().map(limits).sum::<usize>() * OUTCOME_FIELDS {
        return Err(malformed());
    }
    let decided_at = Timestamp::from_micros(*now);
    let mut outcomes = outcomes.chunks_exact(OUTCOME_FIELDS);
    let mut verdict = |limits: usize| {
        // Every outcome is taken, also after one that failed, so that the next decision starts at its own.
        let outcomes: Vec<_> = outcomes.by_ref().take(limits).map(outcome).collect();
        let outcomes = outcomes
            .into_iter()
            .collect::<Result<SmallVec<[Outcome; 1]>, StoreError>>()?;
        Ok(Verdict { decided_at, outcomes })
    };
    let verdicts =
        |(question, count): &Item<'_>| (0..*count).map(|_| verdict(question.limits.len())).collect();
    Ok(items.iter().map(verdicts).collect())
}

/// A reply of integers, none of them negative.
pub(super) fn integers(reply: &Value) -> Result<SmallVec<[u64; 16]>, StoreError> {
    let Value::Array(integers) = reply else {
        return Err(malformed());
    };
    let number = |integer: &Value| match integer {
        Value::Int(number) => u64::try_from(*number).map_err(|_| malformed()),
        _ => Err(malformed()),
    };
    integers.iter().map(number).collect()
}

fn malformed() -> StoreError {
    StoreError::new(StoreErrorKind::Protocol, "the script's reply is malformed")
}

pub(super) fn outcome(fields: &[u64]) -> Result<Outcome, StoreError> {
    let failed = |kind, detail: &str| Err(StoreError::new(kind, detail));
    match *fields {
        // Whoever waits would ask again at once, and for ever.
        [1, _, 0, ..] => failed(
            StoreErrorKind::Protocol,
            "the script's reply denies for no time at all",
        ),
        [fits @ (0 | 1), remaining, retry_after, reset_after, expires_after] => Ok(Outcome {
            fits: fits == 0,
            remaining,
            retry_after,
            reset_after,
            expires_after,
        }),
        [2, ..] => failed(
            StoreErrorKind::WrongType,
            "the key contains a value of another type",
        ),
        [3, ..] => failed(
            StoreErrorKind::UnknownLayout,
            "the key contains a value of an unknown layout",
        ),
        _ => failed(
            StoreErrorKind::Protocol,
            "the script's reply contains an unknown outcome",
        ),
    }
}
