//! The input of the decision script for one request, with the data that is needed after the caller
//! may have been dropped.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use crate::algorithm::Mode;
use crate::identity::Identity;
use crate::key::Namespace;
use crate::policy::Algorithm;
use crate::request::{DecisionRequest, RequestedLimit};

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
        let name = |limit: &RequestedLimit<'_>| {
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
        use Algorithm::{CounterWindow, SlidingWindow};
        let is_read_alone = match self.limits.as_slice() {
            [limit] => matches!(limit.algorithm, SlidingWindow(_) | CounterWindow(_)),
            limits => limits
                .iter()
                .any(|limit| matches!(limit.algorithm, SlidingWindow(_))),
        };
        self.operation == Operation::Check && !is_read_alone
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
        let is_asked = |(limit, asked): (&RequestedLimit<'_>, &LimitInput)| {
            asked.identity == limit.identity
                && asked.cost == limit.cost
                && asked.algorithm == *limit.policy.algorithm()
                && asked.blocks == limit.blocks.is_some()
        };
        self.operation == input.operation
            && limits.len() == input.limits.len()
            && limits.iter().zip(&input.limits).all(is_asked)
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

impl From<&RequestedLimit<'_>> for LimitInput {
    fn from(limit: &RequestedLimit<'_>) -> Self {
        Self {
            identity: limit.identity,
            algorithm: *limit.policy.algorithm(),
            cost: limit.cost,
            blocks: limit.blocks.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::Policy;
    use crate::redis::script::input::*;
    use crate::request::LimitRequest;

    #[test]
    fn draft_is_compared_without_being_built() {
        let bucket = |capacity: u64| Policy::token_bucket("p").capacity(capacity).rate(1).build();
        let (small, large) = (bucket(5).unwrap(), bucket(6).unwrap());
        let window = Policy::sliding_window("p").limit(5).window("1m").build().unwrap();
        let asks = [
            vec![LimitRequest::new(&small, "a")],
            vec![LimitRequest::new(&small, "a").cost(2)],
            vec![LimitRequest::new(&small, "b")],
            vec![LimitRequest::new(&large, "a")],
            vec![LimitRequest::new(&window, "a")],
            vec![LimitRequest::new(&small, "a"), LimitRequest::new(&window, "a")],
            vec![LimitRequest::new(&window, "a"), LimitRequest::new(&small, "a")],
        ];
        let requests = asks.map(|asks| DecisionRequest::new(asks, Mode::Charge, false).unwrap());
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
