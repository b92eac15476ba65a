//! What goes to the script and what comes back; the layout is told in `lua/driver.lua`.

use bb8_redis::redis::Value;
use smallvec::SmallVec;

use crate::algorithm::{Mode, Outcome};
use crate::error::{StoreError, StoreErrorKind};
use crate::policy::{Algorithm, Funnel, SlidingWindow, TokenBucket};
use crate::request::{Request, Verdict};
use crate::units::Timestamp;

/// The server expires keys by its own clock, so under an injected one they must not expire while a test runs.
const LEAST_TTL_MS_UNDER_INJECTED_CLOCK: u32 = 3_600_000;

/// Integers of one limit's outcome in a reply.
const OUTCOME_FIELDS: usize = 5;

/// What is to be done with the limits of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Check = 0,
    Peek = 1,
    Reset = 2,
}

impl From<Mode> for Operation {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Charge => Self::Check,
            Mode::Peek | Mode::Refuse => Self::Peek,
        }
    }
}

/// The script's argument for a list of decisions.
pub(super) fn plan(decisions: &[(&Request<'_>, Operation)], injected: Option<Timestamp>) -> Vec<u8> {
    let limits: usize = decisions.iter().map(|(request, _)| request.limits.len()).sum();
    let mut plan = head(injected);
    plan.reserve(2 + 2 * decisions.len() + 33 * limits);
    // Both counts are bounded where requests and batches are made, far below these integers' range.
    plan.extend_from_slice(&u16::try_from(decisions.len()).unwrap_or(u16::MAX).to_le_bytes());
    for (request, operation) in decisions {
        plan.push(*operation as u8);
        plan.push(u8::try_from(request.limits.len()).unwrap_or(u8::MAX));
        for limit in &request.limits {
            let (algorithm, numbers) = match *limit.policy.algorithm() {
                Algorithm::TokenBucket(TokenBucket { capacity, rate }) => {
                    (1, [capacity, rate.thousandths, rate.micros])
                }
                Algorithm::Funnel(Funnel { capacity, rate }) => {
                    (2, [capacity, rate.thousandths, rate.micros])
                }
                Algorithm::SlidingWindow(SlidingWindow { limit, window }) => (3, [limit, window, 0]),
            };
            plan.push(algorithm);
            plan.extend_from_slice(&limit.cost.to_le_bytes());
            for number in numbers {
                plan.extend_from_slice(&number.to_le_bytes());
            }
        }
    }
    plan
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

/// The verdicts of a reply, one for each decision, given the number of limits in each.
pub(super) fn verdicts(
    reply: &Value,
    limits: &[usize],
) -> Result<Vec<Result<Verdict, StoreError>>, StoreError> {
    let malformed = || StoreError::new(StoreErrorKind::Protocol, "the script's reply is malformed");
    let Value::Array(items) = reply else {
        return Err(malformed());
    };
    let mut numbers = SmallVec::<[u64; 16]>::with_capacity(items.len());
    for item in items {
        let Value::Int(number) = item else {
            return Err(malformed());
        };
        numbers.push(u64::try_from(*number).map_err(|_| malformed())?);
    }
    let (now, outcomes) = numbers.split_first().ok_or_else(malformed)?;
    if outcomes.len() != limits.iter().sum::<usize>() * OUTCOME_FIELDS {
        return Err(malformed());
    }
    let decided_at = Timestamp::from_micros(*now);
    let mut outcomes = outcomes.chunks_exact(OUTCOME_FIELDS);
    Ok(limits
        .iter()
        .map(|count| {
            // Every outcome is taken, also after one that failed, so that the next decision starts at its own.
            let outcomes: Vec<_> = outcomes.by_ref().take(*count).map(outcome).collect();
            let outcomes = outcomes
                .into_iter()
                .collect::<Result<SmallVec<[Outcome; 1]>, StoreError>>()?;
            Ok(Verdict { decided_at, outcomes })
        })
        .collect())
}

fn outcome(fields: &[u64]) -> Result<Outcome, StoreError> {
    let failed = |kind, detail: &str| Err(StoreError::new(kind, detail));
    match *fields {
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
