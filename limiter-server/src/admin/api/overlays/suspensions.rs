//! Suspensions of policies: the routes that list and add them.
//!
//! A suspension has a scope (a policy, an app or all), a mode, an optional start and a required
//! end. It needs the role owner in all apps of its scope, which are all apps for a name without a
//! policy, and for all policies an administrator of the namespace. The list also names the
//! subscribers whose version does not apply suspensions.
//!
//! Tests: `tests/overlays.rs`, and `explanation_states_the_suspension_of_that_time` in
//! `tests/pages/tasks.rs`.

use axum::Json;
use axum::extract::{Path, Query, State};
use limiter_core::registry::{PolicyRegistry, Suspension, SuspensionMode, SuspensionScope};
use limiter_core::{ConfigError, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody};
use crate::admin::api::other_fields::NoOtherFields;
use crate::admin::api::overlays::history::registry_at;
use crate::admin::api::overlays::{AtQuery, End, Overlay, put, shown, summary, unprocessable};
use crate::admin::api::paging::{ListPage, by_field};
use crate::admin::api::policies::is_readable;
use crate::admin::api::problem::AdminProblem;
use crate::admin::api::subscribers;
use crate::admin::permissions::{AdminAction, Object, may};
use crate::publish::timestamp;
use crate::store::{DocumentKind, now_micros};

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::admin::api) struct SuspensionBody {
    scope: String,
    enforcement: String,
    /// The start in microseconds; absent for now. `for_seconds` begins there.
    from: Option<i64>,
    #[serde(flatten)]
    end: End,
    reason: Option<String>,
    #[serde(flatten)]
    #[schema(ignore)]
    _others: NoOtherFields,
}

impl Overlay for Suspension {
    const NOUN: &'static str = "suspension";

    fn all(registry: &PolicyRegistry) -> Vec<Self> {
        registry.suspensions()
    }

    fn identity(&self) -> String {
        self.scope().to_string()
    }

    fn object(&self) -> String {
        self.scope().to_string()
    }

    fn json(&self, now: Timestamp) -> Value {
        json!({
            "scope": self.scope().to_string(),
            "enforcement": self.mode().to_string(),
            "from": self.start().map(Timestamp::as_micros),
            "until": self.end().as_micros(),
            "by": self.author(),
            "reason": self.reason(),
            "active": self.is_active_at(now),
        })
    }

    fn ending_at(self, end: Timestamp) -> Self {
        self.with_end(end)
    }

    fn put_into(&self, registry: &PolicyRegistry) -> Result<(), ConfigError> {
        registry.suspend(self.clone())
    }

    fn remove_from(&self, registry: &PolicyRegistry) {
        registry.end_suspension(self.scope());
    }

    async fn require_change(
        &self,
        admin: &Admin,
        caller: &AdminCaller,
        namespace: &str,
    ) -> Result<(), AdminProblem> {
        require_suspend(admin, caller, namespace, self.scope()).await
    }
}

/// Returns the apps to which a suspension applies; `None` for all.
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

async fn is_deleted(admin: &Admin, namespace: &str, name: &str) -> Result<bool, AdminProblem> {
    let found = admin.store().document(namespace, DocumentKind::Policy, name);
    Ok(found.await?.is_some_and(|document| document.is_deleted))
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
    let apps = match scope {
        // The next policy of the name can be one of any app.
        SuspensionScope::Policy(name) if is_deleted(admin, namespace, name).await? => None,
        scope => apps_of(admin, namespace, scope).await?,
    };
    let apps = apps.as_deref();
    let verdict = may(
        &caller.0,
        AdminAction::EditPolicy,
        Object::Policy { namespace, apps },
    );
    AdminProblem::unless(verdict, "an owner of the apps suspends policies")
}

/// Returns the suspensions, and the subscribers that do not obey them; null if these are not known.
/// With `at`, those that were active at that time.
pub(in crate::admin::api) async fn suspensions(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    Query(query): Query<AtQuery>,
    page: ListPage,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let (registry, revision, now) = registry_at(&admin, &namespace, query.at).await?;
    let mut visible = Vec::new();
    for suspension in registry.suspensions() {
        let apps = apps_of(&admin, &namespace, suspension.scope()).await?;
        if is_readable(&caller.0, &namespace, apps.as_deref()) {
            visible.push(shown(&suspension, now));
        }
    }
    let unsupported = match subscribers::of(&admin, &namespace).await {
        Ok(all) => json!(
            all.iter()
                .filter(|of| !of.supports_overlays())
                .filter(|of| subscribers::is_visible(&caller.0, &namespace, of))
                .map(subscribers::json)
                .collect::<Vec<_>>()
        ),
        // The suspensions are listed while Redis is unavailable.
        Err(_) => Value::Null,
    };
    let (visible, next) = page.select(visible, by_field("id"))?;
    Ok(Json(json!({
        "suspensions": visible,
        "next": next,
        "revision": revision,
        "unsupported_by": unsupported,
    })))
}

pub(in crate::admin::api) async fn suspend(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path(namespace): Path<String>,
    JsonBody(body): JsonBody<SuspensionBody>,
) -> Result<Json<Value>, AdminProblem> {
    caller.require_namespace(&admin, &namespace)?;
    let invalid = |error: ConfigError| unprocessable(error.to_string());
    let scope: SuspensionScope = body.scope.parse().map_err(invalid)?;
    require_suspend(&admin, &caller, &namespace, &scope).await?;
    let mode: SuspensionMode = body.enforcement.parse().map_err(invalid)?;
    let now = now_micros();
    let from = body.from.filter(|from| *from > now);
    let until = body.end.required_after(from.unwrap_or(now))?;
    let mut suspension = Suspension::new(scope, mode, until).with_author(caller.0.name.clone());
    if let Some(from) = from {
        suspension = suspension.with_start(timestamp(from));
    }
    if let Some(reason) = &body.reason {
        suspension = suspension.with_reason(reason.clone());
    }
    let action = format!("suspend ({mode})");
    let reason = summary(&action, &body.scope, body.reason.as_deref());
    put(&admin, &caller, &namespace, &suspension, &reason).await
}
