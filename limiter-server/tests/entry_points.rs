//! One contract for all entry points: check API, Envoy RLS, forward-auth and `CL.THROTTLE`.
//!
//! Each row of [`conditions`] is a policy and the expected answer to each of several calls. The
//! test sends the calls to each entry point with a key of its own and compares the answers.
//! [`EntryPoint::expressed`] lists the answers that a protocol cannot express, with the reason.
//! Afterwards every key must have the usage of the row. The table is verified with limits in the
//! process and with limits in Redis.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use limiter_server::gateway::envoy::messages::{Code, RateLimitResponse};
use prost_types::value::Kind;
use serde_json::Value;
use support::access::{TOKEN, bearer};
use support::calls::{limit, post};
use support::descriptors::{DescriptorExt as _, all_metadata, descriptor, metadata, request};
use support::http::{self, Response};
use support::resp::encode;
use support::rls::RlsClient;
use support::server::Server;
use support::stores::{in_process, on_redis};

/// The quota of every policy in [`conditions`].
const QUOTA: u64 = 2;

/// The contract of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Allowed,
    /// Allowed, with a report that the policy would deny the call if it were enforced.
    WouldDeny,
    /// Denied, with the time of a retry in hours, rounded up.
    Limited(u64),
    /// Denied, and no retry with this cost can succeed.
    NeverFits,
    /// Denied for the key, independently of its permits.
    Forbidden,
    /// Rejected: no policy has the name.
    UnknownPolicy,
}

use Answer::{Allowed, Forbidden, Limited, NeverFits, UnknownPolicy, WouldDeny};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryPoint {
    Check,
    Rls,
    ForwardAuth,
    Throttle,
}

impl EntryPoint {
    const ALL: [Self; 4] = [Self::Check, Self::Rls, Self::ForwardAuth, Self::Throttle];

    /// The key of the calls through this entry point.
    fn key(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Rls => "rls",
            Self::ForwardAuth => "forward-auth",
            Self::Throttle => "throttle",
        }
    }

    /// The form of an answer in the protocol of this entry point.
    fn expressed(self, answer: Answer) -> Answer {
        match (self, answer) {
            // By Envoy's convention, a descriptor without a limit is allowed. Operators change this
            // with `--unmatched deny`.
            (Self::Rls, UnknownPolicy) => Allowed,
            // A proxy reads the status only, and 200 is the status of every allowed request.
            (Self::ForwardAuth, WouldDeny) => Allowed,
            // redis-cell has five integers: none reports the shadow mode.
            (Self::Throttle, WouldDeny) => Allowed,
            // redis-cell has one form for denials that no retry changes: -1 as the time of a retry.
            (Self::Throttle, Forbidden) => NeverFits,
            (_, answer) => answer,
        }
    }
}

/// A policy with its mode, and calls on one key.
struct Condition {
    name: &'static str,
    /// The settings beside the quota; `None` if no policy has the name.
    settings: Option<&'static str>,
    /// The cost of each call and its answer.
    calls: &'static [(u64, Answer)],
    /// The remaining permits after the calls; `None` if the policy decides without permits.
    remaining: Option<u64>,
}

const KEYS: &str = "['check', 'rls', 'forward-auth', 'throttle']";

/// The table. Denials charge nothing, so a call that fits is allowed after one that does not.
fn conditions() -> Vec<Condition> {
    let condition = |name, settings, calls, remaining| Condition {
        name,
        settings,
        calls,
        remaining,
    };
    vec![
        condition(
            "enforced",
            Some(""),
            &[(1, Allowed), (2, Limited(1)), (1, Allowed), (1, Limited(1))],
            Some(0),
        ),
        // The charges of a policy in shadow mode are those of an enforced one.
        condition(
            "shadow",
            Some("enforcement = 'shadow'"),
            &[
                (1, Allowed),
                (2, WouldDeny),
                (1, Allowed),
                (1, WouldDeny),
                (3, WouldDeny),
            ],
            Some(0),
        ),
        condition(
            "off",
            Some("enforcement = 'off'"),
            &[(2, Allowed), (3, Allowed)],
            None,
        ),
        condition(
            "allow_list",
            Some("allow_keys = KEYS"),
            &[(2, Allowed), (3, Allowed)],
            None,
        ),
        condition(
            "deny_list",
            Some("deny_keys = KEYS"),
            &[(1, Forbidden), (3, Forbidden)],
            None,
        ),
        // The denial that completes the number of the penalty begins the block, which denies calls
        // although a permit remains. Its answers are those of the limit, with a longer time.
        condition(
            "penalty",
            Some("penalty = '2 in 1h: 3h'"),
            &[(1, Allowed), (2, Limited(1)), (2, Limited(3)), (1, Limited(3))],
            Some(1),
        ),
        condition(
            "cost_above_quota",
            Some(""),
            &[(3, NeverFits), (1, Allowed), (3, NeverFits)],
            Some(1),
        ),
        condition("unknown_policy", None, &[(1, UnknownPolicy)], None),
    ]
}

/// The policies of the table with a rule for each: the entry of a descriptor names the policy.
fn policies() -> String {
    let mut text = String::new();
    for Condition { name, settings, .. } in conditions() {
        if let Some(settings) = settings {
            let settings = settings.replace("KEYS", KEYS);
            text.push_str(&format!(
                "[policy.{name}]\nalgorithm = 'sliding_window'\nlimit = {QUOTA}\nwindow = '1h'\n\
                 deadline = '30s'\n{settings}\n"
            ));
        }
    }
    for Condition { name, settings, .. } in conditions() {
        if settings.is_some() {
            text.push_str(&format!("[[rule]]\nmatch = ['{name}']\npolicy = '{name}'\n"));
        }
    }
    text
}

fn start(store: &[&str]) -> Server {
    let args = [&["--resp", "127.0.0.1:0"], store].concat();
    Server::with_token(&policies(), &args)
}

/// The clients of all entry points.
struct Clients<'a> {
    server: &'a Server,
    rls: RlsClient,
}

impl Clients<'_> {
    fn call(&self, entry_point: EntryPoint, policy: &str, cost: u64) -> Answer {
        let key = entry_point.key();
        match entry_point {
            EntryPoint::Check => {
                let response = post(self.server, "/v1/check", &limit(policy, key, cost));
                http_answer(&response, would_deny(&response))
            }
            EntryPoint::Rls => {
                let call = request(&[descriptor(policy, key).hits(cost)]);
                rls_answer(&self.rls.decide(&call).unwrap())
            }
            EntryPoint::ForwardAuth => {
                let path = format!("/forward-auth?policy={policy}&key=text:{key}&cost={cost}");
                let token = bearer(TOKEN);
                let headers = [("authorization", token.as_str())];
                let response = http::get(self.server.http(), &path, &headers).unwrap();
                http_answer(&response, false)
            }
            EntryPoint::Throttle => {
                let key = format!("policy:{policy}:{key}");
                throttle_answer(&throttle(self.server, &key, cost))
            }
        }
    }
}

fn would_deny(response: &Response) -> bool {
    response.status == 200 && response.json()["would_deny"] == true
}

/// The answer of the check API or of forward-auth.
fn http_answer(response: &Response, would_deny: bool) -> Answer {
    let retry_after = response
        .header("retry-after")
        .map(|seconds| seconds.parse().unwrap());
    match (response.status, retry_after) {
        (200, None) if would_deny => WouldDeny,
        (200, None) => Allowed,
        (429, Some(seconds)) => limited(seconds),
        (429, None) => NeverFits,
        (403, _) => Forbidden,
        (404, None) => UnknownPolicy,
        other => panic!("{other:?}: {}", response.body),
    }
}

/// A denial with the seconds until a retry succeeds.
fn limited(seconds: u64) -> Answer {
    Limited(seconds.div_ceil(3_600))
}

fn rls_answer(response: &RateLimitResponse) -> Answer {
    let reason = match metadata(response, "reason") {
        Some(Kind::StringValue(reason)) => reason,
        None => String::new(),
        other => panic!("{other:?}"),
    };
    let mut headers = response.response_headers_to_add.iter();
    let retry_after = headers.find(|header| header.key.eq_ignore_ascii_case("retry-after"));
    let retry_after = retry_after.map(|header| header.value.parse().unwrap());
    match (response.overall_code(), reason.as_str(), retry_after) {
        (Code::Ok, "", None) => {
            assert_eq!(all_metadata(response), None);
            Allowed
        }
        (Code::Ok, _, None) => {
            assert_eq!(metadata(response, "would_deny"), Some(Kind::BoolValue(true)));
            WouldDeny
        }
        (Code::OverLimit, "limit reached", Some(seconds)) => limited(seconds),
        (Code::OverLimit, "cost exceeds the capacity", None) => NeverFits,
        (Code::OverLimit, "key list", None) => Forbidden,
        other => panic!("{other:?}: {response:?}"),
    }
}

/// Authenticates, sends the command, and returns the lines of its reply.
fn throttle(server: &Server, key: &str, cost: u64) -> Vec<String> {
    let mut stream = TcpStream::connect(server.resp()).unwrap();
    let command = ["CL.THROTTLE", key, "0", "1", "1", &cost.to_string()];
    let commands = [encode(&["AUTH", TOKEN]), encode(&command)].concat();
    stream.write_all(&commands).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let reply = reply.strip_prefix("+OK\r\n").expect("authenticated");
    reply.lines().map(str::to_owned).collect()
}

fn throttle_answer(reply: &[String]) -> Answer {
    let reply: Vec<&str> = reply.iter().map(String::as_str).collect();
    match reply[..] {
        ["*5", ":0", _, _, ":-1", _] => Allowed,
        ["*5", ":1", _, _, ":-1", _] => NeverFits,
        ["*5", ":1", _, _, seconds, _] => limited(seconds[1..].parse().unwrap()),
        [error] if error.ends_with("expected a configured policy") => UnknownPolicy,
        _ => panic!("{reply:?}"),
    }
}

/// The remaining permits of a key; `None` if the policy decides without permits.
fn remaining(server: &Server, policy: &str, key: &str) -> Option<u64> {
    let peeked = post(server, "/v1/peek", &limit(policy, key, 0));
    let numbers = match peeked.status {
        200 => peeked.json()["limits"][0]["remaining"].clone(),
        403 | 404 => Value::Null,
        _ => panic!("{peeked:?}"),
    };
    numbers.as_u64()
}

fn entry_points_answer_alike(server: &Server) {
    let clients = Clients {
        server,
        rls: RlsClient::connect(server.grpc()).with_token(TOKEN),
    };
    let mut differences = Vec::new();
    for condition in conditions() {
        for entry_point in EntryPoint::ALL {
            let place = format!("{} through {entry_point:?}", condition.name);
            for (number, (cost, answer)) in condition.calls.iter().enumerate() {
                let expected = entry_point.expressed(*answer);
                let actual = clients.call(entry_point, condition.name, *cost);
                if actual != expected {
                    differences.push(format!(
                        "{place}, call {number}: expected {expected:?}, got {actual:?}"
                    ));
                }
            }
            let left = remaining(server, condition.name, entry_point.key());
            if left != condition.remaining {
                let expected = condition.remaining;
                differences.push(format!("{place}: expected {expected:?} remaining, got {left:?}"));
            }
        }
    }
    assert!(
        differences.is_empty(),
        "{}\n{}",
        differences.join("\n"),
        server.log()
    );
}

#[test]
fn entry_points_answer_alike_in_process() {
    in_process(start, entry_points_answer_alike);
}

#[test]
fn entry_points_answer_alike_on_redis() {
    on_redis(start, entry_points_answer_alike);
}
