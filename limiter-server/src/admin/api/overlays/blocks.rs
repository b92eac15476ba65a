//! Blocks of keys: the routes that list and add them.
//!
//! A block names a key, a network or one part of keys, and optionally an app. A block of an app
//! needs the role editor in the app, and a block without an app the role editor in all apps. The
//! list states which blocks contain a given key: the library decides it with the block alone, so
//! that an explanation agrees with the gateway.
//!
//! Tests: `tests/overlays.rs`, and `explanation_names_the_block_of_a_key` in
//! `tests/pages/truth.rs`.

use axum::Json;
use axum::extract::{Path, Query, State};
use ipnet::IpNet;
use limiter_core::registry::{Block, BlockTarget, PolicyEntry, PolicyRegistry};
use limiter_core::{ConfigError, Key, Limiter, ManualClock, Origin, Policy, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody};
use crate::admin::api::other_fields::NoOtherFields;
use crate::admin::api::overlays::history::registry_at;
use crate::admin::api::overlays::{End, Overlay, put, shown, summary, unprocessable};
use crate::admin::api::paging::{ListPage, by_field};
use crate::admin::api::policies::is_readable;
use crate::admin::api::problem::AdminProblem;
use crate::admin::permissions::{AdminAction, Object, may};
use crate::gateway::rules::key_of;
use crate::key_text::parts_of;
use crate::policy_text::PolicyText;
use crate::store::DocumentKind;

#[derive(Debug, Deserialize, IntoParams)]
pub(in crate::admin::api) struct BlockQuery {
    /// Microseconds since the Unix epoch; absent for now.
    at: Option<i64>,
    /// A key; its parts are separated by ` / `.
    key: Option<String>,
    /// The policy of the key, which can declare its parts.
    policy: Option<String>,
}

/// The decision of the library about one block and one key, so that an explanation never differs
/// from the gateway.
struct BlockTest {
    registry: PolicyRegistry,
    limiter: Limiter,
    policy: Policy,
    key: Key<'static>,
}

impl BlockTest {
    /// Creates a test of a key whose policy declares these parts.
    fn new(key: &str, declared: &[String], at: Timestamp) -> Result<Self, ConfigError> {
        let clock = ManualClock::starting_at(at);
        let policy = Policy::token_bucket("block").capacity(1).rate("1/s").build()?;
        let entry = PolicyEntry::new(policy.clone()).with_key_parts(declared)?;
        let registry = PolicyRegistry::new().with(entry);
        Ok(Self {
            limiter: Limiter::in_process().registry(&registry).clock(&clock).build(),
            registry,
            policy,
            key: key_of(parts_of(key).iter().map(String::as_str)),
        })
    }

    /// Returns whether the target of a block contains the key. The app of the block is not
    /// compared.
    async fn matches(&self, block: &Block) -> Result<bool, AdminProblem> {
        let invalid = |error: ConfigError| unprocessable(error.to_string());
        let alone = Block::new(block.target().clone());
        self.registry.set_overlays([], [alone]).map_err(invalid)?;
        let decision = self.limiter.peek(&self.policy, &self.key).await;
        Ok(decision.is_ok_and(|decision| decision.origin() == Origin::Block))
    }
}

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::admin::api) struct BlockBody {
    key: Option<String>,
    network: Option<String>,
    part: Option<String>,
    app: Option<String>,
    #[serde(flatten)]
    end: End,
    reason: Option<String>,
    #[serde(flatten)]
    #[schema(ignore)]
    _others: NoOtherFields,
}

impl Overlay for Block {
    const NOUN: &'static str = "block";

    fn all(registry: &PolicyRegistry) -> Vec<Self> {
        registry.blocks()
    }

    fn identity(&self) -> String {
        // A target contains no line break, and an app no target.
        format!("{}\n{}", self.target(), self.app().unwrap_or_default())
    }

    fn object(&self) -> String {
        self.target().to_string()
    }

    fn json(&self, now: Timestamp) -> Value {
        json!({
            (self.target().field()): self.target().value(),
            "app": self.app(),
            "until": self.end().map(Timestamp::as_micros),
            "by": self.author(),
            "reason": self.reason(),
            "active": self.is_active_at(now),
        })
    }

    fn ending_at(self, end: Timestamp) -> Self {
        self.until(end)
    }

    fn put_into(&self, registry: &PolicyRegistry) -> Result<(), ConfigError> {
        registry.block(self.clone())
    }

    fn remove_from(&self, registry: &PolicyRegistry) {
        registry.unblock(self.target(), self.app());
    }

    async fn require_change(
        &self,
        _: &Admin,
        caller: &AdminCaller,
        namespace: &str,
    ) -> Result<(), AdminProblem> {
        require_block(caller, namespace, self.app())
    }
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

/// Returns the blocks. With `at`, those that were active at that time; with `key`, each states
/// whether it contains the key.
pub(in crate::admin::api) async fn blocks(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    Query(query): Query<BlockQuery>,
    page: ListPage,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let (registry, revision, now) = registry_at(&admin, &namespace, query.at).await?;
    let all = registry.blocks().into_iter();
    let visible = all.filter(|block| {
        let apps = block.app().map(|app| [app.to_owned()]);
        is_readable(&caller.0, &namespace, apps.as_ref().map(<[String; 1]>::as_slice))
    });
    let key = query.key.as_deref().filter(|key| !key.trim().is_empty());
    let declared = match &query.policy {
        Some(policy) => declared_parts(&admin, &namespace, policy, now).await?,
        None => Vec::new(),
    };
    let test = key.map(|key| BlockTest::new(key, &declared, now)).transpose();
    let test = test.map_err(|error| unprocessable(error.to_string()))?;
    let mut listed = Vec::new();
    for block in visible {
        let mut object = shown(&block, now);
        if let (Some(test), Value::Object(fields)) = (&test, &mut object) {
            fields.insert("matches".to_owned(), test.matches(&block).await?.into());
        }
        listed.push(object);
    }
    let (listed, next) = page.select(listed, by_field("id"))?;
    Ok(Json(
        json!({ "blocks": listed, "revision": revision, "next": next }),
    ))
}

/// Returns the names of the parts of keys that a policy declared at a time.
async fn declared_parts(
    admin: &Admin,
    namespace: &str,
    policy: &str,
    at: Timestamp,
) -> Result<Vec<String>, AdminProblem> {
    let at = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
    let document = (DocumentKind::Policy, policy);
    let revision = admin.store().revision_at(namespace, document, at).await?;
    let text = revision.and_then(|revision| PolicyText::parse(policy, &revision.body).ok());
    let parts = text.iter().flat_map(|text| text.entry().key_parts());
    Ok(parts.map(str::to_owned).collect())
}

/// Returns whether a key is the network of all addresses: a client can choose a text as its key.
fn denotes_all_addresses(key: &str) -> bool {
    key.parse::<IpNet>()
        .is_ok_and(|network| network.prefix_len() == 0)
}

fn target_of(body: &BlockBody) -> Result<BlockTarget, AdminProblem> {
    let invalid = |error: limiter_core::ConfigError| unprocessable(error.to_string());
    match (&body.key, &body.network, &body.part) {
        (Some(key), None, None) if denotes_all_addresses(key) => Err(unprocessable(format!(
            "key is `{key}`, which denotes all addresses, expected a key; use `network` or a suspension to deny \
             all of them"
        ))),
        (Some(key), None, None) => Ok(BlockTarget::Key(key.clone())),
        (None, Some(network), None) => Ok(BlockTarget::Network(network.clone())),
        (None, None, Some(part)) => BlockTarget::part(part).map_err(invalid),
        _ => Err(unprocessable(
            "expected exactly one of `key`, `network` and `part`",
        )),
    }
}

pub(in crate::admin::api) async fn block(
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
    put(&admin, &caller, &namespace, &block, &reason).await
}
