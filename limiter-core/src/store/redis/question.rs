//! One decision as the script is asked for it: all that is needed of a request once its caller may be gone.

use smallvec::SmallVec;

use crate::algorithm::Mode;
use crate::identity::Identity;
use crate::key::Namespace;
use crate::policy::Algorithm;
use crate::request::Request;

/// What is to be done with the limits of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Check = 0,
    Peek = 1,
    Reset = 2,
}

/// One decision that the script is asked for.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) operation: Operation,
    /// One for each limit; all of them lie in one slot.
    pub(super) keys: SmallVec<[String; 1]>,
    pub(super) limits: SmallVec<[Asked; 1]>,
}

/// One limit of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) identity: Identity,
    pub(super) algorithm: Algorithm,
    /// In the algorithm's own unit.
    pub(super) cost: u64,
}

impl From<Mode> for Operation {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Charge => Self::Check,
            Mode::Peek | Mode::Refuse => Self::Peek,
        }
    }
}

impl Question {
    pub(super) fn new(request: &Request<'_>, operation: Operation, namespace: &Namespace) -> Self {
        let name = |limit: &crate::request::Limit<'_>| {
            let policy = limit.policy;
            namespace.redis_key(
                policy.algorithm().code(),
                policy.escaped_name(),
                limit.group(),
                &limit.key,
            )
        };
        // Nothing is collected for one limit.
        let (keys, limits) = match &*request.limits {
            [limit] => (
                SmallVec::from_buf([name(limit)]),
                SmallVec::from_buf([Asked::from(limit)]),
            ),
            limits => (
                limits.iter().map(name).collect(),
                limits.iter().map(Asked::from).collect(),
            ),
        };
        Self {
            operation,
            keys,
            limits,
        }
    }

    /// Whether it asks the same of other keys, or of the same.
    pub(super) fn is_alike(&self, other: &Self) -> bool {
        let what = |asked: &Asked| (asked.algorithm, asked.cost);
        self.operation == other.operation && self.limits.iter().map(what).eq(other.limits.iter().map(what))
    }

    /// Whether it asks the same of the same limits, so that the two of them are one question, asked twice.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.operation == other.operation && self.limits == other.limits
    }
}

impl From<&crate::request::Limit<'_>> for Asked {
    fn from(limit: &crate::request::Limit<'_>) -> Self {
        Self {
            identity: limit.identity,
            algorithm: *limit.policy.algorithm(),
            cost: limit.cost,
        }
    }
}
