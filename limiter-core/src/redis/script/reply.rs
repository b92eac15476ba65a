//! Decodes the replies of the decision script; `lua/wire.lua` defines the layout.
//!
//! The reply contains, for each input, how many of its equal requests were granted, and for each
//! level the state that was stored before. The algorithm computes the outcomes from this state, so
//! the script need not compute them, and equal requests that were decided together receive
//! individual verdicts.
//!
//! Invariant: a reply of another length, or with a verdict that contradicts the algorithm, is an
//! error. Tests: `tests/differential.rs`, `tests/scripts/values.rs` (unreadable values), and the
//! fuzz target `reply`.

use bb8_redis::redis::Value;
use smallvec::{SmallVec, smallvec};

use crate::algorithm::{
    FastLevel, Mode, PeriodCount, StepOutcome, StepState, StoredLevel, StoredLoans, WindowCounters, step,
};
use crate::error::{StoreError, StoreErrorKind};
use crate::policy::{Algorithm, SlidingWindow};
use crate::redis::script::wire::Item;
use crate::redis::script::wire::{Operation, ScriptInput};
use crate::request::{ReportedState, Verdict};
use crate::units::{MAX_EXACT, Timestamp};

/// The results of one input, one for each of its equal requests. Empty if the node does not serve
/// the key, which only the reply to a call across slots states; nothing was executed then.
pub(crate) type Replies = SmallVec<[Result<Verdict, StoreError>; 1]>;

/// The stored value of a limit as the script found it.
pub(crate) const READABLE: u8 = 0;
pub(crate) const WRONG_TYPE: u8 = 1;
pub(crate) const UNKNOWN_LAYOUT: u8 = 2;
/// The node does not serve the slot of the key.
const ELSEWHERE: u8 = 3;

/// Decodes the results of all inputs of a call.
pub(crate) fn verdicts(reply: &Value, items: &[Item<'_>]) -> Result<Vec<Replies>, StoreError> {
    let Value::BulkString(bytes) = reply else {
        return Err(malformed());
    };
    let mut reader = Reader(bytes);
    let now = reader.timestamp()?;
    let mut verdicts = Vec::with_capacity(items.len());
    for (input, times) in items {
        verdicts.push(decode_input(&mut reader, input, *times, now)?);
    }
    if reader.0.is_empty() {
        Ok(verdicts)
    } else {
        Err(malformed())
    }
}

/// Decodes the results of one input.
fn decode_input(
    reader: &mut Reader<'_>,
    input: &ScriptInput,
    times: usize,
    now: u64,
) -> Result<Replies, StoreError> {
    let granted = usize::from(u16::from_le_bytes(reader.array()?));
    if granted > times {
        return Err(malformed());
    }
    let found = reader.take(input.limits.len())?;
    if found == [ELSEWHERE] {
        return Ok(Replies::new());
    }
    if let Some(unreadable) = found.iter().find(|found| **found != READABLE) {
        return Ok(smallvec![Err(unreadable_as(*unreadable)?); times]);
    }
    let decided_at = Timestamp::from_micros(now);
    if input.operation == Operation::Reset {
        let outcomes = smallvec![StepOutcome { fits: true, ..StepOutcome::default() }; input.limits.len()];
        return Ok(smallvec![Ok(Verdict::new(decided_at, outcomes)); times]);
    }
    // Loops instead of `collect`, which moves each item through the adapter of `Result`.
    let mut parts: SmallVec<[Reader<'_>; 1]> = SmallVec::new();
    for _ in &input.limits {
        parts.push(reader.length_prefixed()?);
    }
    // A malformed state fails only the decision of its key; its length is known, so the following
    // parts are still readable.
    let verdicts = compute_verdicts(&parts, input, granted, times, now);
    Ok(verdicts.unwrap_or_else(|error| smallvec![Err(error); times]))
}

/// Computes the verdicts of one input, of which `granted` requests were granted, from its limits'
/// states.
fn compute_verdicts(
    parts: &[Reader<'_>],
    input: &ScriptInput,
    granted: usize,
    times: usize,
    now: u64,
) -> Result<Replies, StoreError> {
    let decided_at = Timestamp::from_micros(now);
    let mut replies: SmallVec<[LimitReply; 1]> = SmallVec::new();
    for (limit, part) in input.limits.iter().zip(parts) {
        replies.push(LimitReply::read(*part, &limit.algorithm)?);
    }
    let mut take = |before: usize, mode: Mode| -> Result<Verdict, StoreError> {
        let limits = input.limits.iter().zip(&mut replies);
        let outcomes: SmallVec<[StepOutcome; 1]> = limits
            .map(|(limit, reply)| {
                let mode = match mode {
                    Mode::Charge if limit.blocks => Mode::Refuse,
                    mode => mode,
                };
                reply.outcome(&limit.algorithm, limit.cost, before, now, mode)
            })
            .collect();
        // The script and the algorithm must agree; otherwise the reply comes from a different
        // script.
        let fits = outcomes.iter().all(|outcome| outcome.fits);
        match mode {
            Mode::Charge if !fits => Err(malformed()),
            Mode::Refuse if fits => Err(malformed()),
            _ => Ok(Verdict::new(decided_at, outcomes)),
        }
    };
    let mut verdicts = Replies::new();
    for before in 0..granted {
        verdicts.push(Ok(take(before, Mode::Charge)?));
    }
    if granted < times {
        let mode = if input.operation == Operation::Check {
            Mode::Refuse
        } else {
            Mode::Peek
        };
        // A denial changes nothing, so all denied calls have the same verdict.
        let mut verdict = take(granted, mode)?;
        if mode == Mode::Refuse {
            verdict.states = Some(replies.into_iter().map(LimitReply::into_state).collect());
        }
        verdicts.extend(std::iter::repeat_n(Ok(verdict), times - granted));
    }
    Ok(verdicts)
}

/// The reply for one limit.
pub(crate) enum LimitReply {
    /// The stored state before the decision.
    Stored(StepState),
    /// The values of a sliding window; its state stays in Redis.
    Window {
        /// Permits in the window before the first was granted.
        used: u64,
        /// Microseconds until the cost fits, after all that was granted.
        retry_after: u64,
        reset_after: u64,
        expires_after: u64,
        next_after: u64,
    },
}

impl LimitReply {
    pub(crate) fn read(mut reader: Reader<'_>, algorithm: &Algorithm) -> Result<Self, StoreError> {
        let reply = match algorithm {
            Algorithm::SlidingWindow(_) => {
                let numbers: [u64; 5] = reader.numbers()?;
                let [used, retry_after, reset_after, expires_after, next_after] = numbers;
                if numbers.iter().any(|number| *number > 2 * MAX_EXACT) {
                    return Err(malformed());
                }
                Self::Window {
                    used,
                    retry_after,
                    reset_after,
                    expires_after,
                    next_after,
                }
            }
            _ if reader.0.is_empty() => Self::Stored(StepState::Absent),
            Algorithm::CounterWindow(_) => {
                // The layout and the algorithm code, which are known here.
                reader.take(2)?;
                let counters = WindowCounters::stored(reader.numbers()?).ok_or_else(malformed)?;
                Self::Stored(StepState::CounterWindow(counters))
            }
            Algorithm::FixedWindow(_) => {
                reader.take(2)?;
                let [used, at, until] = reader.numbers()?;
                let count = PeriodCount::stored(used, at, until).ok_or_else(malformed)?;
                Self::Stored(StepState::FixedWindow(count))
            }
            _ => {
                reader.take(2)?;
                let parts = reader.number()?;
                let amount = i64::from_le_bytes(reader.array()?);
                let [remainder, at, keep_until] = reader.numbers()?;
                let stored = StoredLevel {
                    amount,
                    remainder,
                    parts,
                    at,
                    keep_until,
                };
                // Nearly all levels have this form, and its step is shorter.
                if let (true, Some(fast)) = (reader.0.is_empty(), FastLevel::from_stored(algorithm, &stored))
                {
                    return Ok(Self::Stored(StepState::Fast(fast)));
                }
                let mut state = stored.state(algorithm).ok_or_else(malformed)?;
                if !reader.0.is_empty() {
                    let [current, previous, since] = reader.numbers()?;
                    let [epoch, number] = [reader.array()?, reader.array()?].map(u32::from_le_bytes);
                    let mut loans = StoredLoans {
                        current,
                        previous,
                        since,
                        epoch,
                        number,
                        steady: [0; 2],
                        fraction: 0,
                    };
                    if !reader.0.is_empty() {
                        loans.steady = [reader.array()?, reader.array()?].map(u32::from_le_bytes);
                        loans.fraction = u32::from_le_bytes(reader.array()?);
                    }
                    state = loans.state(&state).ok_or_else(malformed)?;
                }
                Self::Stored(state)
            }
        };
        if reader.0.is_empty() {
            Ok(reply)
        } else {
            Err(malformed())
        }
    }

    /// Returns the state after a denial.
    fn into_state(self) -> ReportedState {
        match self {
            Self::Stored(state) => ReportedState::Stored(state),
            Self::Window { used, .. } => ReportedState::WindowUsage(used),
        }
    }

    /// Computes the outcome of a request after `before` equal requests were granted.
    pub(crate) fn outcome(
        &mut self,
        algorithm: &Algorithm,
        cost: u64,
        before: usize,
        now: u64,
        mode: Mode,
    ) -> StepOutcome {
        match (self, algorithm) {
            (
                Self::Window {
                    used,
                    retry_after,
                    reset_after,
                    expires_after,
                    next_after,
                },
                Algorithm::SlidingWindow(SlidingWindow { limit, .. }),
            ) => {
                let granted = before as u64 + u64::from(mode == Mode::Charge);
                let retry_after = if mode == Mode::Charge { 0 } else { *retry_after };
                StepOutcome {
                    fits: retry_after == 0,
                    remaining: limit.saturating_sub(used.saturating_add(granted.saturating_mul(cost))),
                    retry_after,
                    reset_after: *reset_after,
                    next_after: *next_after,
                    expires_after: *expires_after,
                    ..StepOutcome::default()
                }
            }
            (Self::Stored(state), algorithm) => step(algorithm, state, cost, now, mode),
            (Self::Window { .. }, _) => StepOutcome::default(),
        }
    }
}

pub(crate) fn malformed() -> StoreError {
    StoreError::new(StoreErrorKind::Protocol, "malformed reply of the decision script")
}

/// Converts the code of an unreadable value into its error.
pub(crate) fn unreadable_as(found: u8) -> Result<StoreError, StoreError> {
    let (kind, detail) = match found {
        WRONG_TYPE => (
            StoreErrorKind::WrongType,
            "the key contains a value of another type, which another program wrote: delete the key, or use another namespace",
        ),
        UNKNOWN_LAYOUT => (
            StoreErrorKind::UnknownLayout,
            "the key contains a value of an unknown layout",
        ),
        _ => return Err(malformed()),
    };
    Ok(StoreError::new(kind, detail))
}

/// The part of a reply that is not decoded yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    /// Reads a length-prefixed part.
    pub(crate) fn length_prefixed(&mut self) -> Result<Reader<'a>, StoreError> {
        let [length] = self.array()?;
        Ok(Reader(self.take(usize::from(length))?))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], StoreError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or_else(malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn number(&mut self) -> Result<u64, StoreError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads the time of the decision, in microseconds.
    pub(crate) fn timestamp(&mut self) -> Result<u64, StoreError> {
        let now = Some(self.number()?).filter(|now| *now <= MAX_EXACT);
        now.ok_or_else(malformed)
    }

    pub(crate) fn numbers<const N: usize>(&mut self) -> Result<[u64; N], StoreError> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = self.number()?;
        }
        Ok(numbers)
    }
}
