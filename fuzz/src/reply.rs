//! Answers of a server: whatever they are, they are decoded or refused.

use arbitrary::Arbitrary;
use bb8_redis::redis::{Value, parse_redis_value};
use limiter_core::{Decision, Policy, StoreErrorKind, fuzzing};

const SLOTS: usize = 16_384;

/// An answer in the shapes that the decoders look for, with anything in them.
#[derive(Arbitrary, Debug)]
pub enum Answer {
    /// Numbers, as the script answers.
    Script {
        /// The moment, then five numbers for each limit.
        numbers: Vec<i64>,
        /// An element that is something else.
        odd: Option<(u8, Tree)>,
        /// How many limits each decision has.
        limits: Vec<u8>,
    },
    /// A reply that is well formed.
    Outcomes {
        /// The moment.
        now: u64,
        /// What each limit of the one decision answers.
        outcomes: Vec<(u8, [u64; 4])>,
    },
    /// The map of a cluster.
    Slots(Vec<Range>),
    /// An error.
    Error {
        /// Whether it is a redirection.
        code: Code,
        /// What follows the code.
        detail: String,
    },
    /// Anything else.
    Any(Tree),
}

/// A range of slots.
#[derive(Arbitrary, Debug)]
pub struct Range {
    first: Number,
    last: Number,
    nodes: Vec<Node>,
}

/// A bound, mostly of a slot that exists.
#[derive(Arbitrary, Debug)]
pub enum Number {
    /// A slot or a little more.
    Small(u16),
    /// Any number.
    Large(i64),
    /// No number.
    Odd(Tree),
}

/// A node of a range.
#[derive(Arbitrary, Debug)]
pub enum Node {
    /// Host and port.
    Known(Vec<u8>, i64),
    /// One that does not know its own endpoint.
    Unknown(u16),
    /// Anything else.
    Odd(Tree),
}

/// The beginning of an error.
#[derive(Arbitrary, Debug)]
#[expect(missing_docs, reason = "as Redis names them")]
pub enum Code {
    Moved,
    Ask,
    Other(String),
}

/// Any value that a server can send.
#[derive(Arbitrary, Debug)]
#[expect(missing_docs, reason = "as the client names them")]
pub enum Tree {
    Nil,
    Int(i64),
    Bytes(Vec<u8>),
    Text(String),
    Double(f64),
    Boolean(bool),
    Array(Vec<Tree>),
    Map(Vec<(Tree, Tree)>),
}

impl Answer {
    /// Decodes the answer.
    pub fn check(self) {
        match self {
            Self::Script { numbers, odd, limits } => {
                let mut items: Vec<Value> = numbers.into_iter().map(Value::Int).collect();
                if let Some((place, tree)) = odd
                    && let Some(item) = items.get_mut(usize::from(place))
                {
                    *item = tree.into();
                }
                let limits: Vec<usize> = limits
                    .into_iter()
                    .map(|count| 1 + usize::from(count) % 16)
                    .collect();
                check_decisions(&Value::Array(items), &limits);
            }
            Self::Outcomes { now, outcomes } => {
                let number = |number: u64| Value::Int((number >> 1).cast_signed());
                let outcomes = &outcomes[..outcomes.len().min(16)];
                let mut items = vec![number(now)];
                for (fits, numbers) in outcomes {
                    items.push(Value::Int(i64::from(fits % 5)));
                    items.extend(numbers.iter().copied().map(number));
                }
                if !outcomes.is_empty() {
                    check_decisions(&Value::Array(items), &[outcomes.len()]);
                }
            }
            Self::Slots(ranges) => {
                check_owners(&Value::Array(ranges.into_iter().map(Range::value).collect()))
            }
            Self::Error { code, detail } => {
                let code = match code {
                    Code::Moved => "MOVED".to_owned(),
                    Code::Ask => "ASK".to_owned(),
                    Code::Other(code) => code,
                };
                let line = format!("-{code} {detail}").replace(['\r', '\n'], " ");
                if let Ok(value) = parse_redis_value(format!("{line}\r\n").as_bytes()) {
                    check_redirection(value);
                }
            }
            Self::Any(tree) => check_value(tree.into()),
        }
    }
}

/// Decodes whatever the client's parser makes of these bytes.
pub fn check_bytes(bytes: &[u8]) {
    if let Ok(value) = parse_redis_value(bytes) {
        check_value(value);
    }
}

fn check_value(value: Value) {
    for limits in [&[1][..], &[2], &[1, 2]] {
        check_decisions(&value, limits);
    }
    check_owners(&value);
    check_redirection(value);
}

fn check_decisions(reply: &Value, limits: &[usize]) {
    let policy = Policy::token_bucket("p").capacity(5).rate(1).build();
    match fuzzing::decisions(reply, &policy.expect("valid"), limits) {
        Ok(decisions) => decisions
            .into_iter()
            .filter_map(Result::ok)
            .for_each(check_decision),
        Err(error) => assert_eq!(error.kind(), StoreErrorKind::Protocol, "{error}"),
    }
}

/// A decision's parts agree, and each of them can be shown.
fn check_decision(decision: Decision) {
    let allowed = decision.limits().iter().all(|limit| limit.is_allowed());
    assert_eq!(decision.is_allowed(), allowed, "{decision:?}");
    assert_eq!(decision.retry_after().is_none(), allowed, "{decision:?}");
    let _whole = (decision.remaining(), decision.reset_after());
    let _moment = std::time::SystemTime::from(decision.decided_at());
    if let Err(rejection) = decision.require() {
        assert_eq!((rejection.http_status(), rejection.is_limited()), (429, true));
        let _shown = (
            rejection.to_string(),
            rejection.client_message(),
            rejection.retry_after_seconds(),
        );
    }
}

fn check_owners(answer: &Value) {
    if let Ok(owners) = fuzzing::owners(answer, "asked") {
        assert!(owners.len() == SLOTS && owners.iter().any(Option::is_some));
    }
}

fn check_redirection(value: Value) {
    if let Err(error) = value.extract_error()
        && let Ok((host, _)) = fuzzing::redirected(&error, ("asked".to_owned(), 1))
    {
        assert!(!matches!(&*host, "" | "?"), "{error}");
    }
}

impl Range {
    fn value(self) -> Value {
        let mut items = vec![self.first.into(), self.last.into()];
        items.extend(self.nodes.into_iter().map(Value::from));
        Value::Array(items)
    }
}

impl From<Number> for Value {
    fn from(number: Number) -> Self {
        match number {
            Number::Small(slot) => Self::Int(slot.into()),
            Number::Large(number) => Self::Int(number),
            Number::Odd(tree) => tree.into(),
        }
    }
}

impl From<Node> for Value {
    fn from(node: Node) -> Self {
        match node {
            Node::Known(host, port) => Self::Array(vec![Self::BulkString(host), Self::Int(port)]),
            Node::Unknown(port) => Self::Array(vec![Self::Nil, Self::Int(port.into())]),
            Node::Odd(tree) => tree.into(),
        }
    }
}

impl From<Tree> for Value {
    fn from(tree: Tree) -> Self {
        match tree {
            Tree::Nil => Self::Nil,
            Tree::Int(number) => Self::Int(number),
            Tree::Bytes(bytes) => Self::BulkString(bytes),
            Tree::Text(text) => Self::SimpleString(text),
            Tree::Double(number) => Self::Double(number),
            Tree::Boolean(truth) => Self::Boolean(truth),
            Tree::Array(items) => Self::Array(items.into_iter().map(Self::from).collect()),
            Tree::Map(items) => Self::Map(
                items
                    .into_iter()
                    .map(|(key, value)| (key.into(), value.into()))
                    .collect(),
            ),
        }
    }
}
