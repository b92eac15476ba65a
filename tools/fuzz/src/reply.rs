//! Replies of a server: arbitrary bytes are decoded or rejected.

use arbitrary::Arbitrary;
use bb8_redis::redis::{Value, parse_redis_value};
use limiter_core::{Decision, Policy, StoreErrorKind, fuzzing};

const SLOTS: usize = 16_384;

/// An answer in the shapes that the decoders look for, with anything in them.
#[derive(Arbitrary, Debug)]
pub enum Answer {
    /// Bytes, as the script answers.
    Script {
        /// All of them.
        bytes: Vec<u8>,
        /// The number of limits and of repetitions of each request.
        questions: Vec<(u8, u8)>,
    },
    /// An answer that is well formed.
    Outcomes {
        /// The moment.
        now: u64,
        /// Repetitions, grants and limit data of each request.
        questions: Vec<(u8, u8, Vec<LimitData>)>,
    },
    /// The map of a cluster.
    Slots(Vec<Range>),
    /// An error.
    Error {
        /// The code, which can be a redirection.
        code: Code,
        /// The data after the code.
        detail: String,
    },
    /// Anything else.
    Any(Tree),
}

/// The data of one limit.
#[derive(Arbitrary, Debug)]
pub enum LimitData {
    /// A level, or a window: a list of numbers.
    Numbers(Vec<u64>),
    /// A level that may have been stored: amount, remainder, parts, how long ago, for how long.
    Level(u32, u16, u16, i32, u32),
    /// No data.
    Nothing,
    /// That it cannot be read.
    Unreadable(u8),
}

/// A range of slots.
#[derive(Arbitrary, Debug)]
pub struct Range {
    first: ReplyNumber,
    last: ReplyNumber,
    nodes: Vec<Node>,
}

/// A bound, mostly of a slot that exists.
#[derive(Arbitrary, Debug)]
pub enum ReplyNumber {
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
    /// A node that does not know its own endpoint.
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
            Self::Script { bytes, questions } => {
                let question = |(limits, times): (u8, u8)| (1 + usize::from(limits) % 16, usize::from(times));
                let questions: Vec<_> = questions.into_iter().map(question).collect();
                check_decisions(&Value::BulkString(bytes), &questions);
            }
            Self::Outcomes { now, questions } => {
                let now = now >> 12;
                let mut bytes = now.to_le_bytes().to_vec();
                for (_, granted, limits) in &questions {
                    write_answer(&mut bytes, now, u16::from(*granted), limits);
                }
                let question = |(times, _, limits): &(u8, u8, Vec<LimitData>)| {
                    (limits.len().clamp(1, 16), usize::from(*times))
                };
                let questions: Vec<_> = questions.iter().map(question).collect();
                check_decisions(&Value::BulkString(bytes), &questions);
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

/// Decodes the values that the client's parser produces from these bytes.
pub fn check_bytes(bytes: &[u8]) {
    if let Ok(value) = parse_redis_value(bytes) {
        check_value(value);
    }
}

fn check_value(value: Value) {
    for questions in [&[(1, 1)][..], &[(2, 1)], &[(1, 3)], &[(1, 1), (2, 2)]] {
        check_decisions(&value, questions);
    }
    check_owners(&value);
    check_redirection(value);
}

fn check_decisions(answer: &Value, questions: &[(usize, usize)]) {
    let bucket = Policy::token_bucket("p").capacity(5).rate(1).build();
    let window = Policy::sliding_window("p").limit(5).window("1s").build();
    for policy in [bucket, window] {
        match fuzzing::decisions(answer, &policy.expect("valid"), questions) {
            Ok(answers) => answers.into_iter().filter_map(Result::ok).for_each(check_answers),
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Protocol, "{error}"),
        }
    }
}

/// Earlier requests are granted first.
fn check_answers(decisions: Vec<Decision>) {
    assert!(
        decisions.is_sorted_by_key(|decision| !decision.is_allowed()),
        "{decisions:?}"
    );
    decisions.into_iter().for_each(check_decision);
}

/// Writes a reply as the script does, if the data of each limit has the right length.
fn write_answer(bytes: &mut Vec<u8>, now: u64, granted: u16, limits: &[LimitData]) {
    let limits = &limits[..limits.len().min(16)];
    bytes.extend(granted.to_le_bytes());
    let found = |data: &LimitData| {
        if let LimitData::Unreadable(found) = data {
            *found
        } else {
            0
        }
    };
    bytes.extend(limits.iter().map(found));
    if limits.iter().any(|data| found(data) != 0) {
        return;
    }
    for data in limits {
        let numbers = match data {
            LimitData::Numbers(numbers) => numbers.clone(),
            LimitData::Level(amount, remainder, parts, age, life) => {
                let at = now.saturating_add_signed(-i64::from(*age));
                let rest = [
                    (*amount).into(),
                    (*remainder).into(),
                    at,
                    at.saturating_add((*life).into()),
                ];
                [u64::from(*parts)].into_iter().chain(rest).collect()
            }
            LimitData::Nothing | LimitData::Unreadable(_) => Vec::new(),
        };
        let head: &[u8] = if numbers.len() == 5 { &[1, 1] } else { &[] };
        bytes.push(u8::try_from(head.len() + 8 * numbers.len()).unwrap_or(u8::MAX));
        bytes.extend(head);
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    }
}

/// A decision's parts agree, and each of them can be shown.
fn check_decision(decision: Decision) {
    let allowed = decision.limits().iter().all(|limit| limit.is_allowed());
    assert_eq!(decision.is_allowed(), allowed, "{decision:?}");
    assert_eq!(decision.retry_after().is_none(), allowed, "{decision:?}");
    // Waiting callers retry after that time.
    assert!(
        decision.retry_after().is_none_or(|retry| !retry.is_zero()),
        "{decision:?}"
    );
    let _whole = (decision.remaining(), decision.reset_after());
    let _moment = std::time::SystemTime::from(decision.decided_at());
    if let Err(rejection) = decision.require() {
        assert_eq!((rejection.http_status(), rejection.is_limited()), (429, true));
        let _shown = (
            rejection.diagnostic().to_string(),
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

impl From<ReplyNumber> for Value {
    fn from(number: ReplyNumber) -> Self {
        match number {
            ReplyNumber::Small(slot) => Self::Int(slot.into()),
            ReplyNumber::Large(number) => Self::Int(number),
            ReplyNumber::Odd(tree) => tree.into(),
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
