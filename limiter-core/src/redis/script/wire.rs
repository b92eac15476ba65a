//! The input of the decision script for one request, and the encoding of its calls; `lua/wire.lua`
//! defines the layout.
//!
//! An input owns the data that is needed after the caller may have been dropped. A draft is
//! compared with queued inputs before it is built, so a call that joins an equal input allocates no
//! keys. Consecutive inputs that differ only in their keys are encoded once.
//!
//! Tests: below, `tests/differential.rs`, `tests/scripts/commands.rs`; `tests/frozen/redis.rs`
//! (layout).

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::Mode;
use crate::identity::Identity;
use crate::key::Namespace;
use crate::policy::{
    Algorithm, CounterWindow, FixedWindow, Funnel, Periods, SlidingWindow, TokenBucket, origin,
};
use crate::redis::script::{Call, DECIDE, DECIDE_ACROSS_SLOTS};
use crate::request::{DecisionRequest, ValidatedLimit};
use crate::units::Timestamp;

/// The server expires keys by its own clock, so with an injected clock keys must not expire while a
/// test runs.
const LEAST_TTL_MS_UNDER_INJECTED_CLOCK: u32 = 3_600_000;

/// Added to the algorithm code of a limit that is checked and never charged.
const BLOCK: u8 = 128;

/// The operation on the limits of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Check = 0,
    Peek = 1,
    Reset = 2,
}

/// The input for one decision.
#[derive(Clone, Debug)]
pub(crate) struct ScriptInput {
    pub(crate) operation: Operation,
    /// One key for each limit; all are in one slot.
    pub(crate) keys: SmallVec<[String; 1]>,
    pub(crate) limits: SmallVec<[LimitInput; 1]>,
}

/// The input of a request, which is built only if no equal input is already queued.
#[derive(Debug)]
pub(crate) struct InputDraft<'a, 'r> {
    request: &'a DecisionRequest<'r>,
    operation: Operation,
    namespace: &'a Namespace,
    made: OnceLock<Arc<ScriptInput>>,
}

/// One limit of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitInput {
    pub(crate) identity: Identity,
    pub(crate) algorithm: Algorithm,
    /// In the algorithm's unit.
    pub(crate) cost: u64,
    /// A block of a penalty, which is checked like the others and never charged.
    pub(crate) blocks: bool,
}

impl From<Mode> for Operation {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Charge => Self::Check,
            Mode::Peek | Mode::Refuse => Self::Peek,
        }
    }
}

impl ScriptInput {
    pub(crate) fn new(request: &DecisionRequest<'_>, operation: Operation, namespace: &Namespace) -> Self {
        let name = |limit: &ValidatedLimit<'_>| {
            let policy = limit.policy;
            namespace.redis_key(policy.code(), policy.escaped_name(), limit.group(), &limit.key)
        };
        // No allocation for one limit.
        let (keys, limits) = match &*request.limits {
            [limit] => (
                SmallVec::from_buf([name(limit)]),
                SmallVec::from_buf([LimitInput::from(limit)]),
            ),
            limits => (
                limits.iter().map(name).collect(),
                limits.iter().map(LimitInput::from).collect(),
            ),
        };
        Self {
            operation,
            keys,
            limits,
        }
    }

    /// Returns whether it charges limits whose values the script reads with one MGET.
    pub(crate) fn charges_values(&self) -> bool {
        let is_read_alone = match self.limits.as_slice() {
            [limit] => matches!(
                limit.algorithm,
                Algorithm::SlidingWindow(_) | Algorithm::CounterWindow(_)
            ),
            limits => limits
                .iter()
                .any(|limit| matches!(limit.algorithm, Algorithm::SlidingWindow(_))),
        };
        self.operation == Operation::Check && !is_read_alone
    }

    /// Returns whether a call across slots can decide it: the first command on its only key changes
    /// nothing, and reports whether the node serves the key.
    pub(crate) fn fits_across_slots(&self) -> bool {
        let is_read_first = |limit: &LimitInput| !matches!(limit.algorithm, Algorithm::CounterWindow(_));
        self.operation != Operation::Reset
            && matches!(self.limits.as_slice(), [limit] if is_read_first(limit))
    }

    /// Returns whether it requests the same operation and costs, regardless of the keys.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        let parameters = |limit: &LimitInput| (limit.algorithm, limit.cost, limit.blocks);
        self.operation == other.operation
            && self
                .limits
                .iter()
                .map(parameters)
                .eq(other.limits.iter().map(parameters))
    }
}

impl<'a, 'r> InputDraft<'a, 'r> {
    pub(crate) fn new(
        request: &'a DecisionRequest<'r>,
        operation: Operation,
        namespace: &'a Namespace,
    ) -> Self {
        Self {
            request,
            operation,
            namespace,
            made: OnceLock::new(),
        }
    }

    /// Returns the identities of its limits.
    pub(crate) fn identities(&self) -> impl Iterator<Item = Identity> {
        self.request.limits.iter().map(|limit| limit.identity)
    }

    /// Returns whether an input requests the same from the same limits, so that both can be sent as
    /// one input with a count.
    pub(crate) fn is_same(&self, input: &ScriptInput) -> bool {
        let limits = &self.request.limits;
        let is_equal = |(limit, input): (&ValidatedLimit<'_>, &LimitInput)| {
            input.identity == limit.identity
                && input.cost == limit.cost
                && input.algorithm == *limit.policy.algorithm()
                && input.blocks == limit.blocks.is_some()
        };
        self.operation == input.operation
            && limits.len() == input.limits.len()
            && limits.iter().zip(&input.limits).all(is_equal)
    }

    /// Returns the input, and builds it if necessary.
    pub(crate) fn input(&self) -> &Arc<ScriptInput> {
        self.made
            .get_or_init(|| Arc::new(ScriptInput::new(self.request, self.operation, self.namespace)))
    }

    #[cfg(test)]
    pub(crate) fn is_built(&self) -> bool {
        self.made.get().is_some()
    }
}

impl From<&ValidatedLimit<'_>> for LimitInput {
    fn from(limit: &ValidatedLimit<'_>) -> Self {
        Self {
            identity: limit.identity,
            algorithm: *limit.policy.algorithm(),
            cost: limit.cost,
            blocks: limit.blocks.is_some(),
        }
    }
}

/// An input and the number of its equal requests: at most `u16::MAX`.
pub(crate) type Item<'a> = (&'a ScriptInput, usize);

/// Builds the call for these inputs, in this order; their keys are in one slot.
pub(crate) fn call<'a>(items: &[Item<'a>], injected: Option<Timestamp>, deadline: Duration) -> Call<'a> {
    let plan = plan(items, injected, |input| input.charges_values());
    Call::new(&DECIDE, keys(items), plan, deadline)
}

/// Builds the call for inputs with keys in several slots of one node.
pub(crate) fn call_across_slots<'a>(
    items: &[Item<'a>],
    injected: Option<Timestamp>,
    deadline: Duration,
) -> Call<'a> {
    // MGET reads keys of one slot.
    let plan = plan(items, injected, |_| false);
    Call::across_slots(&DECIDE_ACROSS_SLOTS, keys(items), plan, deadline)
}

fn keys<'a>(items: &[Item<'a>]) -> impl Iterator<Item = &'a String> {
    items.iter().flat_map(|(input, _)| &input.keys)
}

/// Encodes the decisions. `is_read_at_once` selects the inputs whose values one MGET may read.
fn plan(
    items: &[Item<'_>],
    injected: Option<Timestamp>,
    is_read_at_once: impl Fn(&ScriptInput) -> bool,
) -> Vec<u8> {
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
        plan.push(u8::from(is_read_at_once(input) && all_differ(run)));
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
    plan
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
                Periods::Months(offset) => window + offset.plus_one_day(),
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

#[cfg(test)]
mod tests {
    use crate::policy::Policy;
    use crate::redis::script::wire::*;
    use crate::request::LimitRequest;

    #[test]
    fn draft_is_compared_without_being_built() {
        let bucket = |capacity: u64| Policy::token_bucket("p").capacity(capacity).rate(1).build();
        let (small, large) = (bucket(5).unwrap(), bucket(6).unwrap());
        let window = Policy::sliding_window("p").limit(5).window("1m").build().unwrap();
        let requests = [
            vec![LimitRequest::new(&small, "a")],
            vec![LimitRequest::new(&small, "a").cost(2)],
            vec![LimitRequest::new(&small, "b")],
            vec![LimitRequest::new(&large, "a")],
            vec![LimitRequest::new(&window, "a")],
            vec![LimitRequest::new(&small, "a"), LimitRequest::new(&window, "a")],
            vec![LimitRequest::new(&window, "a"), LimitRequest::new(&small, "a")],
        ];
        let requests = requests.map(|requests| DecisionRequest::new(requests, Mode::Charge, false).unwrap());
        let namespace = Namespace::new("", "n");
        let operations = [Operation::Check, Operation::Peek, Operation::Reset];
        let drafts = || {
            requests.iter().flat_map(|request| {
                operations.map(|operation| InputDraft::new(request, operation, &namespace))
            })
        };
        for (place, draft) in drafts().enumerate() {
            for (other_place, other) in drafts().enumerate() {
                let is_same = draft.is_same(other.input());
                assert_eq!(is_same, place == other_place, "{draft:?} {other:?}");
            }
            assert!(!draft.is_built());
            let built = draft.input().limits.iter().map(|limit| limit.identity);
            assert!(draft.identities().eq(built));
        }
    }
}
