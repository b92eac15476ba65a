//! Suspensions and blocks of a namespace.
//!
//! The id is a hash of the scope or of the keys and the app, so a second suspension of one scope,
//! or block of the same keys, replaces the first.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use limiter_core::Timestamp;
use limiter_core::registry::{
    Block, BlockTarget, PolicyRegistry, Suspension, SuspensionMode, SuspensionScope,
};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody};
use crate::admin::api::policies::is_readable;
use crate::admin::api::problem::AdminProblem;
use crate::admin::api::subscribers;
use crate::admin::edit::{overlays, save_overlays};
use crate::admin::permissions::{AdminAction, Object, may};
use crate::publish::timestamp;
use crate::store::{DocumentKind, now_micros};

/// The digits of an identity.
const ID_DIGITS: usize = 16;

/// The end: a time in microseconds, or a duration from now.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct End {
    until: Option<i64>,
    for_seconds: Option<u32>,
}

impl End {
    pub(super) fn time(self) -> Result<Option<Timestamp>, AdminProblem> {
        let now = now_micros();
        let until = match (self.until, self.for_seconds) {
            (None, None) => return Ok(None),
            (Some(until), None) => until,
            (None, Some(seconds)) => now.saturating_add(i64::from(seconds).saturating_mul(1_000_000)),
            (Some(_), Some(_)) => {
                return Err(AdminProblem::bad_request(
                    "expected one of `until` and `for_seconds`",
                ));
            }
        };
        match until > now {
            true => Ok(Some(timestamp(until))),
            false => Err(unprocessable("the end is not in the future")),
        }
    }

    pub(super) fn required(self) -> Result<Timestamp, AdminProblem> {
        let missing = || unprocessable("expected `until`, in microseconds, or `for_seconds`");
        self.time()?.ok_or_else(missing)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct SuspensionBody {
    scope: String,
    enforcement: String,
    #[serde(flatten)]
    end: End,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct BlockBody {
    key: Option<String>,
    network: Option<String>,
    part: Option<String>,
    app: Option<String>,
    #[serde(flatten)]
    end: End,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct EndBody {
    #[serde(flatten)]
    end: End,
}

fn unprocessable(detail: impl Into<String>) -> AdminProblem {
    AdminProblem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
}

fn id_of(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.chars().take(ID_DIGITS).collect()
}

fn suspension_id(suspension: &Suspension) -> String {
    id_of(&suspension.scope().to_string())
}

fn block_id(block: &Block) -> String {
    // A target contains no line break, and an app no target.
    id_of(&format!(
        "{}\n{}",
        block.target(),
        block.app().unwrap_or_default()
    ))
}

fn micros(time: Timestamp) -> u64 {
    time.as_micros()
}

fn suspension_json(suspension: &Suspension, now: Timestamp) -> Value {
    json!({
        "id": suspension_id(suspension),
        "scope": suspension.scope().to_string(),
        "enforcement": suspension.mode().to_string(),
        "until": micros(suspension.end()),
        "by": suspension.author(),
        "reason": suspension.reason(),
        "active": suspension.is_active_at(now),
    })
}

fn block_json(block: &Block, now: Timestamp) -> Value {
    json!({
        "id": block_id(block),
        (block.target().field()): block.target().value(),
        "app": block.app(),
        "until": block.end().map(micros),
        "by": block.author(),
        "reason": block.reason(),
        "active": block.is_active_at(now),
    })
}

/// The apps to which a suspension applies; `None` for all.
async fn apps_of(
    admin: &Admin,
    namespace: &str,
    scope: &SuspensionScope,
) -> Result<Option<Vec<String>>, AdminProblem> {
    match scope {
        SuspensionScope::App(app) => Ok(Some(vec![app.clone()])),
        SuspensionScope::Policy(name) => {
            let kind = DocumentKind::Policy;
            let found = admin.store().document(namespace, kind, name).await?;
            Ok(found.and_then(|document| document.apps))
        }
        _ => Ok(None),
    }
}

/// Fails unless the caller may suspend: an owner of all apps of a policy, an owner of an app, an
/// administrator of the namespace for all.
async fn require_suspend(
    admin: &Admin,
    caller: &AdminCaller,
    namespace: &str,
    scope: &SuspensionScope,
) -> Result<(), AdminProblem> {
    if *scope == SuspensionScope::All {
        return caller.require_admin(admin, namespace);
    }
    let apps = apps_of(admin, namespace, scope).await?;
    let apps = apps.as_deref();
    let verdict = may(
        &caller.0,
        AdminAction::EditPolicy,
        Object::Policy { namespace, apps },
    );
    AdminProblem::unless(verdict, "an owner of the apps suspends policies")
}

/// Fails unless the caller may block keys: an editor of the app, or of all apps.
fn require_block(caller: &AdminCaller, namespace: &str, app: Option<&str>) -> Result<(), AdminProblem> {
    let apps = app.map(|app| [app.to_owned()]);
    let apps = apps.as_ref().map(<[String; 1]>::as_slice);
    let verdict = may(
        &caller.0,
        AdminAction::EditNumbers,
        Object::Policy { namespace, apps },
    );
    AdminProblem::unless(
        verdict,
        "an editor of the app blocks keys; without an app, of all apps",
    )
}

async fn save(
    admin: &Admin,
    caller: &AdminCaller,
    namespace: &str,
    reason: &str,
    change: impl Fn(&PolicyRegistry) -> Result<(), limiter_core::ConfigError>,
) -> Result<i64, AdminProblem> {
    let revision = save_overlays(admin.store(), &caller.0.name, namespace, reason, change).await?;
    if let Some(publisher) = admin.publisher(namespace) {
        publisher.wake();
    }
    Ok(revision)
}

fn with_state(mut object: Value, revision: i64) -> Json<Value> {
    if let Value::Object(fields) = &mut object {
        fields.insert("revision".to_owned(), json!(revision));
        fields.insert("state".to_owned(), json!("pending"));
    }
    Json(object)
}

/// The text of an audit entry.
fn summary(action: &str, object: &str, reason: Option<&str>) -> String {
    match reason {
        Some(reason) => format!("{action} {object}: {reason}"),
        None => format!("{action} {object}"),
    }
}

/// The suspensions, and the subscribers that do not obey them; null if these are not known.
pub(super) async fn suspensions(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let (registry, revision) = overlays(admin.store(), &namespace).await?;
    let (now, mut visible) = (timestamp(now_micros()), Vec::new());
    for suspension in registry.suspensions() {
        let apps = apps_of(&admin, &namespace, suspension.scope()).await?;
        if is_readable(&caller.0, &namespace, apps.as_deref()) {
            visible.push(suspension_json(&suspension, now));
        }
    }
    let unsupported = match subscribers::of(&admin, &namespace).await {
        Ok(all) => json!(
            all.iter()
                .filter(|of| !of.supports_overlays())
                .map(subscribers::json)
                .collect::<Vec<_>>()
        ),
        // The suspensions are listed while Redis is unavailable.
        Err(_) => Value::Null,
    };
    Ok(Json(json!({
        "suspensions": visible,
        "revision": revision,
        "unsupported_by": unsupported,
    })))
}

pub(super) async fn suspend(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    JsonBody(body): JsonBody<SuspensionBody>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let invalid = |error: limiter_core::ConfigError| unprocessable(error.to_string());
    let scope: SuspensionScope = body.scope.parse().map_err(invalid)?;
    require_suspend(&admin, &caller, &namespace, &scope).await?;
    let mode: SuspensionMode = body.enforcement.parse().map_err(invalid)?;
    let mut suspension =
        Suspension::new(scope, mode, body.end.required()?).with_author(caller.0.name.clone());
    if let Some(reason) = &body.reason {
        suspension = suspension.with_reason(reason.clone());
    }
    let action = format!("suspend ({mode})");
    let reason = summary(&action, &body.scope, body.reason.as_deref());
    let change = |registry: &PolicyRegistry| registry.suspend(suspension.clone());
    let revision = save(&admin, &caller, &namespace, &reason, change).await?;
    let object = suspension_json(&suspension, timestamp(now_micros()));
    Ok(with_state(object, revision))
}

async fn find_suspension(
    admin: &Admin,
    caller: &AdminCaller,
    namespace: &str,
    id: &str,
) -> Result<Suspension, AdminProblem> {
    caller.require_namespace(admin, namespace)?;
    let (registry, _) = overlays(admin.store(), namespace).await?;
    let mut all = registry.suspensions().into_iter();
    let found = all.find(|of| suspension_id(of) == id);
    let found = found.ok_or_else(AdminProblem::not_found)?;
    require_suspend(admin, caller, namespace, found.scope()).await?;
    Ok(found)
}

pub(super) async fn extend_suspension(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, id)): Path<(String, String)>,
    JsonBody(body): JsonBody<EndBody>,
) -> Result<Json<Value>, AdminProblem> {
    let found = find_suspension(&admin, &caller, &namespace, &id).await?;
    let extended = found.with_end(body.end.required()?);
    let reason = summary("extend the suspension of", &extended.scope().to_string(), None);
    let change = |registry: &PolicyRegistry| registry.suspend(extended.clone());
    let revision = save(&admin, &caller, &namespace, &reason, change).await?;
    let object = suspension_json(&extended, timestamp(now_micros()));
    Ok(with_state(object, revision))
}

pub(super) async fn end_suspension(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, id)): Path<(String, String)>,
) -> Result<StatusCode, AdminProblem> {
    let found = find_suspension(&admin, &caller, &namespace, &id).await?;
    let reason = summary("end the suspension of", &found.scope().to_string(), None);
    let change = |registry: &PolicyRegistry| {
        registry.end_suspension(found.scope());
        Ok(())
    };
    save(&admin, &caller, &namespace, &reason, change).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn blocks(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let (registry, revision) = overlays(admin.store(), &namespace).await?;
    let now = timestamp(now_micros());
    let all = registry.blocks().into_iter();
    let visible = all.filter(|block| {
        let apps = block.app().map(|app| [app.to_owned()]);
        is_readable(&caller.0, &namespace, apps.as_ref().map(<[String; 1]>::as_slice))
    });
    let visible: Vec<Value> = visible.map(|block| block_json(&block, now)).collect();
    Ok(Json(json!({ "blocks": visible, "revision": revision })))
}

fn target_of(body: &BlockBody) -> Result<BlockTarget, AdminProblem> {
    let invalid = |error: limiter_core::ConfigError| unprocessable(error.to_string());
    match (&body.key, &body.network, &body.part) {
        (Some(key), None, None) => Ok(BlockTarget::Key(key.clone())),
        (None, Some(network), None) => Ok(BlockTarget::Network(network.clone())),
        (None, None, Some(part)) => BlockTarget::part(part).map_err(invalid),
        _ => Err(unprocessable(
            "expected exactly one of `key`, `network` and `part`",
        )),
    }
}

pub(super) async fn block(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    JsonBody(body): JsonBody<BlockBody>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    require_block(&caller, &namespace, body.app.as_deref())?;
    let target = target_of(&body)?;
    let mut block = Block::new(target).with_author(caller.0.name.clone());
    if let Some(app) = &body.app {
        block = block.for_app(app.clone());
    }
    if let Some(until) = body.end.time()? {
        block = block.until(until);
    }
    if let Some(reason) = &body.reason {
        block = block.with_reason(reason.clone());
    }
    let reason = summary("block", &block.target().to_string(), body.reason.as_deref());
    let change = |registry: &PolicyRegistry| registry.block(block.clone());
    let revision = save(&admin, &caller, &namespace, &reason, change).await?;
    Ok(with_state(block_json(&block, timestamp(now_micros())), revision))
}

async fn find_block(
    admin: &Admin,
    caller: &AdminCaller,
    namespace: &str,
    id: &str,
) -> Result<Block, AdminProblem> {
    caller.require_namespace(admin, namespace)?;
    let (registry, _) = overlays(admin.store(), namespace).await?;
    let found = registry.blocks().into_iter().find(|of| block_id(of) == id);
    let found = found.ok_or_else(AdminProblem::not_found)?;
    require_block(caller, namespace, found.app())?;
    Ok(found)
}

pub(super) async fn extend_block(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, id)): Path<(String, String)>,
    JsonBody(body): JsonBody<EndBody>,
) -> Result<Json<Value>, AdminProblem> {
    let found = find_block(&admin, &caller, &namespace, &id).await?;
    let extended = found.until(body.end.required()?);
    let reason = summary("extend the block of", &extended.target().to_string(), None);
    let change = |registry: &PolicyRegistry| registry.block(extended.clone());
    let revision = save(&admin, &caller, &namespace, &reason, change).await?;
    Ok(with_state(
        block_json(&extended, timestamp(now_micros())),
        revision,
    ))
}

pub(super) async fn unblock(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, id)): Path<(String, String)>,
) -> Result<StatusCode, AdminProblem> {
    let found = find_block(&admin, &caller, &namespace, &id).await?;
    let reason = summary("end the block of", &found.target().to_string(), None);
    let change = |registry: &PolicyRegistry| {
        registry.unblock(found.target(), found.app());
        Ok(())
    };
    save(&admin, &caller, &namespace, &reason, change).await?;
    Ok(StatusCode::NO_CONTENT)
}
