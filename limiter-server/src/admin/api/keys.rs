//! The state of one key in all policies.
//!
//! The limiter of the gateway answers for the given key. Keys are not listed: the stores are never
//! scanned. Each read and each reset is recorded with the fingerprint of the key. Tests:
//! `tests/http_changes.rs` (`reset_deletes_the_usage_of_one_key`), `tests/pages/truth.rs`.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use limiter_core::registry::{KeyOverride, Rule};
use limiter_core::{Key, LimitRequest, Limiter, Origin};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use crate::admin::api::caller::{AdminCaller, JsonBody};
use crate::admin::api::documents::policy_json;
use crate::admin::api::policies::is_readable;
use crate::admin::api::problem::AdminProblem;
use crate::admin::permissions::{AdminAction, Object, may};
use crate::admin::{Admin, GatewayHandle};
use crate::gateway::explanation::origin_name;
use crate::gateway::rules::key_of;
use crate::key_text::{joined, parts_of};
use crate::publish::timestamp;
use crate::store::{DocumentKind, RecordedAction, StoredDocument, now_micros};

/// The largest number of policies of an answer.
const MAX_POLICIES: usize = 200;

#[derive(Debug, Deserialize, IntoParams)]
pub(super) struct KeyQuery {
    /// The parts of the key, separated by ` / `, with `\/` in place of a slash between spaces in a
    /// part; with `part`, the value of that part.
    #[serde(default)]
    key: String,
    /// The name of one part, as policies declare it.
    part: Option<String>,
}

/// The requested keys.
#[derive(Debug)]
enum RequestedKeys {
    /// The key of these parts.
    Whole(Vec<String>),
    /// All keys with this value of a declared part.
    WithPart { name: String, value: String },
}

impl RequestedKeys {
    fn new(query: KeyQuery) -> Self {
        match query.part {
            Some(name) => Self::WithPart {
                name,
                value: query.key,
            },
            None => Self::Whole(parts_of(&query.key)),
        }
    }

    /// Returns the parts of the key; `None` for all keys with one part.
    fn whole(&self) -> Option<&[String]> {
        match self {
            Self::Whole(parts) => Some(parts),
            Self::WithPart { .. } => None,
        }
    }

    /// Returns the audit's name of the keys.
    fn recorded(&self, admin: &Admin, namespace: &str) -> String {
        let (kind, value) = match self {
            Self::Whole(parts) => ("key".to_owned(), joined(parts)),
            Self::WithPart { name, value } => (format!("keys with the part {name:.120} ="), value.clone()),
        };
        format!("{kind} {}", fingerprint_text(admin, namespace, &value))
    }

    /// Returns whether keys of a policy with these declared parts can be among them.
    fn may_contain_keys_of(&self, declared: &[String]) -> bool {
        match self {
            Self::Whole(_) => true,
            Self::WithPart { name, .. } => declared.contains(name),
        }
    }

    /// Returns the one key of a policy with these declared parts; `None` if the keys have other
    /// parts, or several keys are among them.
    fn single_key_of(&self, declared: &[String]) -> Option<Vec<String>> {
        match (self, declared) {
            (Self::Whole(parts), declared) => {
                (declared.is_empty() || declared.len() == parts.len()).then(|| parts.clone())
            }
            (Self::WithPart { name, value }, [only]) if only == name => Some(vec![value.clone()]),
            (Self::WithPart { .. }, _) => None,
        }
    }
}

/// Returns the names of the parts of keys that a policy declares.
fn declared_parts(document: &StoredDocument) -> Vec<String> {
    let text = document.policy().ok();
    let names = text.iter().flat_map(|text| text.entry().key_parts());
    names.map(str::to_owned).collect()
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ResetBody {
    /// The parts of the key.
    key: Vec<String>,
    reason: Option<String>,
}

/// The state of a key under one policy.
#[derive(Debug)]
pub(super) struct KeyState {
    limit: u64,
    remaining: u64,
    reset_after_ms: u64,
    pub(super) has_quota: bool,
    /// The origin of a denial that does not depend on the usage: a block, a key list, a suspension.
    denied_by: Option<&'static str>,
}

impl KeyState {
    /// Returns the used permits.
    pub(super) fn used(&self) -> u64 {
        self.limit.saturating_sub(self.remaining)
    }
}

/// Returns the gateway of this process.
///
/// # Errors
///
/// 503 when it does not know the limits of the namespace.
pub(super) fn gateway(admin: &Admin, namespace: &str) -> Result<GatewayHandle, AdminProblem> {
    admin.gateway(namespace).cloned().ok_or_else(|| {
        let detail = "this node does not know the state of keys of this namespace: use a node whose gateway \
                      serves it";
        AdminProblem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })
}

/// Returns the keys that these parts can denote under a policy. Without a group, a program can also
/// send one part with a colon, such as `user:7`, as a text, in which the colon is not escaped. The
/// last key is the one whose quota applies to all of them.
pub(in crate::admin) fn keys_under(policy: &str, parts: &[String], rules: &[Rule]) -> Vec<Key<'static>> {
    let key = key_under(policy, parts, rules);
    let text = match parts {
        [text] if text.contains(':') && key == key_of([text.as_str()]) => Some(Key::from(text.as_str())),
        _ => None,
    };
    [Some(key), text.map(Key::into_owned)]
        .into_iter()
        .flatten()
        .collect()
}

/// Returns the key under a policy: in the group of the rule that leads to the policy.
pub(super) fn key_under(policy: &str, parts: &[String], rules: &[Rule]) -> Key<'static> {
    let key = key_of(parts.iter().map(String::as_str));
    let rule = rules.iter().find(|rule| rule.policy() == policy);
    match rule.and_then(Rule::group) {
        Some(group) => key.in_group(Key::from(group).into_owned()),
        None => key,
    }
}

/// Returns the state of a key; of several ones, the state of the one with the largest usage.
async fn peek(limiter: &Limiter, name: &str, keys: &[Key<'static>]) -> Option<KeyState> {
    let mut found: Option<KeyState> = None;
    for key in keys {
        let state = peek_one(limiter, name, key).await;
        found = match (found, state) {
            (Some(first), Some(second)) => {
                let has_quota = first.has_quota || second.has_quota;
                let most_used = if second.used() > first.used() {
                    second
                } else {
                    first
                };
                Some(KeyState {
                    has_quota,
                    ..most_used
                })
            }
            (first, second) => first.or(second),
        };
    }
    found
}

async fn peek_one(limiter: &Limiter, name: &str, key: &Key<'static>) -> Option<KeyState> {
    let policy = limiter.policy(name, key).ok()?;
    let decision = limiter.peek_all([LimitRequest::new(&policy, key)]).await.ok()?;
    let outcome = decision.outcome_at(0)?;
    let overrides = limiter.registry().overrides(name);
    let now = timestamp(now_micros());
    let is_own = |of: &KeyOverride| of.key() == key && of.end().is_none_or(|end| end > now);
    Some(KeyState {
        limit: policy.quota().whole(),
        remaining: outcome.remaining().whole(),
        reset_after_ms: u64::try_from(outcome.reset_after().as_millis()).unwrap_or(u64::MAX),
        has_quota: overrides.iter().any(|of| is_own(of)),
        denied_by: (!decision.is_allowed() && is_of_key(decision.origin()))
            .then(|| origin_name(decision.origin())),
    })
}

/// Returns whether a decision depends on the key and not on its usage.
fn is_of_key(origin: Origin) -> bool {
    matches!(origin, Origin::Block | Origin::KeyList | Origin::Suspension)
}

/// Returns the states of keys under one policy, in order; `None` for those that are not known, as
/// those of blocked keys.
pub(super) async fn states(
    admin: &Admin,
    (namespace, name): (&str, &str),
    keys: Vec<Vec<String>>,
) -> Vec<Option<KeyState>> {
    let Some(GatewayHandle { gateway, runtime, .. }) = admin.gateway(namespace).cloned() else {
        return Vec::new();
    };
    let name = name.to_owned();
    let states = runtime.spawn(async move {
        let limiter = gateway.limiter();
        let rules = limiter.registry().rules();
        let mut states = Vec::with_capacity(keys.len());
        for parts in &keys {
            let state = peek(limiter, &name, &keys_under(&name, parts, &rules)).await;
            states.push(state.filter(|state| state.denied_by.is_none()));
        }
        states
    });
    states.await.unwrap_or_else(|error| {
        tracing::error!(%error, "the task that reads keys failed; the log has its panic");
        Vec::new()
    })
}

/// Returns the fingerprint of a key for the audit.
fn fingerprint_text(admin: &Admin, namespace: &str, key: &str) -> String {
    let fingerprint = admin.key_fingerprint(namespace, key);
    fingerprint.unwrap_or_else(|| "not known".to_owned())
}

/// Records a read of a key.
pub(super) async fn record_read(
    admin: &Admin,
    caller: &AdminCaller,
    namespace: &str,
    parts: &[String],
) -> Result<(), AdminProblem> {
    let keys = RequestedKeys::Whole(parts.to_vec()).recorded(admin, namespace);
    record(admin, caller, namespace, ("key.read", "", None), keys).await
}

/// Records a read or a change of keys.
async fn record(
    admin: &Admin,
    caller: &AdminCaller,
    namespace: &str,
    (action, object, apps): (&str, &str, Option<Vec<String>>),
    detail: String,
) -> Result<(), AdminProblem> {
    let action = RecordedAction {
        namespace: namespace.to_owned(),
        actor: caller.0.name.clone(),
        action: action.to_owned(),
        object: object.to_owned(),
        apps,
        detail: Some(detail),
    };
    admin.store().record_action(&action, now_micros()).await?;
    Ok(())
}

/// Returns the state of a key in the policies that the caller may read. Keys are not searched: a
/// policy whose keys have other parts than the given ones has no state.
pub(super) async fn list(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    Query(query): Query<KeyQuery>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let requested = RequestedKeys::new(query);
    let documents = admin.store().documents(&namespace).await?;
    let readable = |of: &StoredDocument| {
        let is_policy = of.kind == DocumentKind::Policy && !of.is_deleted;
        is_policy && is_readable(&caller.0, &namespace, of.apps.as_deref())
    };
    let documents = documents.into_iter().filter(readable).map(|document| {
        let declared = declared_parts(&document);
        (document, declared)
    });
    let mut documents: Vec<(StoredDocument, Vec<String>)> = documents
        .filter(|(_, declared)| requested.may_contain_keys_of(declared))
        .collect();
    let is_truncated = documents.len() > MAX_POLICIES;
    documents.truncate(MAX_POLICIES);
    let GatewayHandle { gateway, runtime, .. } = gateway(&admin, &namespace)?;
    if !documents.is_empty() {
        let keys = requested.recorded(&admin, &namespace);
        record(&admin, &caller, &namespace, ("key.read", "", None), keys).await?;
    }
    let whole = requested.whole().map(<[String]>::to_vec);
    let peeked = runtime.spawn(async move {
        let limiter = gateway.limiter();
        let rules = limiter.registry().rules();
        let mut policies = Vec::with_capacity(documents.len());
        for (document, declared) in &documents {
            let parts = requested.single_key_of(declared);
            let state = match &parts {
                Some(parts) => {
                    let keys = keys_under(&document.name, parts, &rules);
                    peek(limiter, &document.name, &keys).await
                }
                None => None,
            };
            let mut shown = policy_json(document);
            if let Some(fields) = shown.as_object_mut() {
                let state = state.map(|state| {
                    json!({
                        "limit": state.limit,
                        "remaining": state.remaining,
                        "reset_after_ms": state.reset_after_ms,
                        "has_quota": state.has_quota,
                        "denied_by": state.denied_by,
                    })
                });
                fields.insert("key".to_owned(), state.unwrap_or_default());
                fields.insert("parts".to_owned(), json!(parts));
                fields.insert("declared_parts".to_owned(), json!(declared));
            }
            policies.push(shown);
        }
        policies
    });
    let policies = peeked.await.map_err(|error| {
        tracing::error!(%error, "the task that reads a key failed; the log has its panic");
        AdminProblem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the state of the key cannot be read: see the log of the server",
        )
    })?;
    Ok(Json(json!({
        "key": whole,
        "fingerprint": whole.and_then(|parts| admin.key_fingerprint(&namespace, &joined(parts))),
        "policies": policies,
        "is_truncated": is_truncated,
    })))
}

/// Discards the usage of a key under a policy.
pub(super) async fn reset(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, name)): Path<(String, String)>,
    JsonBody(body): JsonBody<ResetBody>,
) -> Result<StatusCode, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let document = admin.store().document(&namespace, DocumentKind::Policy, &name);
    let document = document.await?.filter(|of| !of.is_deleted);
    let document = document.ok_or_else(AdminProblem::not_found)?;
    let object = Object::Policy {
        namespace: &namespace,
        apps: document.apps.as_deref(),
    };
    let verdict = may(&caller.0, AdminAction::EditNumbers, object);
    AdminProblem::unless(verdict, "this needs the role editor in all apps of the policy")?;
    let GatewayHandle { gateway, runtime, .. } = gateway(&admin, &namespace)?;
    let recorded = ("policy.key_reset", name.as_str(), document.apps.clone());
    let mut detail = RequestedKeys::Whole(body.key.clone()).recorded(&admin, &namespace);
    if let Some(reason) = body.reason {
        detail = format!("{detail}: {reason}");
    }
    record(&admin, &caller, &namespace, recorded, detail).await?;
    let reset = runtime.spawn(async move {
        let limiter = gateway.limiter();
        for key in keys_under(&name, &body.key, &limiter.registry().rules()) {
            let policy = limiter.policy(&name, &key).ok()?;
            limiter.reset(&policy, &key).await.ok()?;
        }
        Some(())
    });
    match reset.await {
        Ok(Some(())) => Ok(StatusCode::NO_CONTENT),
        _ => {
            let detail = "the policy is not in force, or the store of the limits does not answer: try again";
            Err(AdminProblem::new(StatusCode::SERVICE_UNAVAILABLE, detail))
        }
    }
}
