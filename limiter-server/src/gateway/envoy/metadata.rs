//! The explanation of a denial, as metadata for the access log of the proxy.

use std::collections::BTreeMap;

use limiter_core::Origin;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

use crate::gateway::Gateway;
use crate::gateway::charge::LimitResult;
use crate::gateway::envoy::{Requested, policy_name};
use crate::gateway::explanation::{origin_name, rule_text};
use crate::gateway::rules::RuleSet;
use crate::key_text::joined;

/// Returns the metadata under the name `limiter`: policy, rule, key, origin, reason, revision,
/// node, and whether the policy would deny the request if it were enforced.
pub(super) fn explain(
    gateway: &Gateway,
    rules: &RuleSet,
    requested: &Requested,
    result: Option<&LimitResult>,
) -> Struct {
    let policy = requested.limit.as_ref().map(|limit| &limit.policy);
    let denies = result.is_none_or(|result| !result.allowed);
    let reason = match result {
        None => "not configured",
        Some(result) => reason_of(result),
    };
    let mut fields = BTreeMap::new();
    let mut add = |name: &str, value: Kind| {
        fields.insert(name.to_owned(), Value { kind: Some(value) });
    };
    add("policy", text(policy_name(policy)));
    if let Some(rule) = requested.rule.and_then(|number| rules.rules().get(number)) {
        add("rule", text(&rule_text(rule)));
    }
    if let Some(key) = gateway.shown_key(&joined(&requested.values)) {
        add("key", text(&key));
    }
    let origin = result.map_or("none", |result| origin_name(result.origin));
    add("origin", text(origin));
    add("reason", text(reason));
    add("node", text(gateway.node()));
    // A number of the protocol is a double, so the revision is text.
    add("revision", text(&gateway.revision().to_string()));
    add("would_deny", Kind::BoolValue(true));
    add("denied", Kind::BoolValue(denies));
    let explanation = Value {
        kind: Some(Kind::StructValue(Struct { fields })),
    };
    Struct {
        fields: [("limiter".to_owned(), explanation)].into(),
    }
}

fn reason_of(result: &LimitResult) -> &'static str {
    match result.origin {
        Origin::KeyList => "key list",
        Origin::Suspension => "suspension",
        Origin::Block => "block",
        Origin::FailedClosed => "store unavailable",
        // No other origin excludes a retry.
        _ if !result.can_retry => "cost exceeds the capacity",
        _ => "limit reached",
    }
}

fn text(text: &str) -> Kind {
    Kind::StringValue(text.to_owned())
}
