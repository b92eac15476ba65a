//! Suspensions and blocks of a namespace.
//!
//! The id is a hash of the scope or of the keys and the app, so a second suspension of one scope,
//! or block of the same keys, replaces the first. Tests: `tests/overlays.rs`.

mod blocks;
mod history;
mod suspensions;

use std::future::Future;
use std::sync::{Mutex, PoisonError};

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use limiter_core::registry::PolicyRegistry;
use limiter_core::{ConfigError, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use utoipa::{IntoParams, ToSchema};

use crate::admin::Admin;
use crate::admin::api::caller::{AdminCaller, JsonBody};
use crate::admin::api::other_fields::NoOtherFields;
pub(super) use crate::admin::api::overlays::blocks::{BlockBody, BlockQuery, block, blocks};
pub(super) use crate::admin::api::overlays::suspensions::{SuspensionBody, suspend, suspensions};
use crate::admin::api::problem::AdminProblem;
use crate::admin::edit::{EditError, overlays, save_overlays};
use crate::publish::timestamp;
use crate::store::{Origin, now_micros};

/// The digits of an identity.
const ID_DIGITS: usize = 16;
/// The time after the last one that a text can contain, the end of the year 9999.
const AFTER_LAST: i64 = 253_402_300_800_000_000;

/// The end: a time in microseconds, or a duration from now.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
pub(super) struct End {
    until: Option<i64>,
    for_seconds: Option<u32>,
}

impl End {
    pub(super) fn time(self) -> Result<Option<Timestamp>, AdminProblem> {
        self.time_after(now_micros())
    }

    /// Returns the end, with a duration that begins at a time.
    fn time_after(self, start: i64) -> Result<Option<Timestamp>, AdminProblem> {
        let until = match (self.until, self.for_seconds) {
            (None, None) => return Ok(None),
            (Some(until), None) => until,
            (None, Some(seconds)) => start.saturating_add(i64::from(seconds).saturating_mul(1_000_000)),
            (Some(_), Some(_)) => {
                return Err(AdminProblem::bad_request(
                    "expected one of `until` and `for_seconds`",
                ));
            }
        };
        match until {
            until if until <= now_micros() => Err(unprocessable("the end is not in the future")),
            AFTER_LAST.. => Err(unprocessable(format!(
                "`until` is {until}, expected microseconds since 1970 of a time until the year 9999"
            ))),
            until => Ok(Some(timestamp(until))),
        }
    }

    pub(super) fn required(self) -> Result<Timestamp, AdminProblem> {
        self.required_after(now_micros())
    }

    /// Returns the end, with a duration that begins at a time.
    pub(super) fn required_after(self, start: i64) -> Result<Timestamp, AdminProblem> {
        let missing = || unprocessable("expected `until`, in microseconds, or `for_seconds`");
        self.time_after(start)?.ok_or_else(missing)
    }
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct EndBody {
    #[serde(flatten)]
    end: End,
    #[serde(flatten)]
    #[schema(ignore)]
    _others: NoOtherFields,
}

/// The time for which a list is read.
#[derive(Debug, Deserialize, IntoParams)]
pub(super) struct AtQuery {
    /// Microseconds since the Unix epoch; absent for now.
    at: Option<i64>,
}

/// A suspension or a block.
pub(super) trait Overlay: Clone + Send + Sync + 'static {
    /// The noun in entries of the audit.
    const NOUN: &'static str;

    /// Returns all of a registry.
    fn all(registry: &PolicyRegistry) -> Vec<Self>;

    /// Returns the text that two of one identity share.
    fn identity(&self) -> String;

    /// Returns the object in entries of the audit.
    fn object(&self) -> String;

    /// Returns the representation in answers, without the id.
    fn json(&self, now: Timestamp) -> Value;

    /// Replaces the end.
    fn ending_at(self, end: Timestamp) -> Self;

    /// Adds it to a registry, or replaces the one of the same identity.
    fn put_into(&self, registry: &PolicyRegistry) -> Result<(), ConfigError>;

    /// Removes the one of the same identity from a registry.
    fn remove_from(&self, registry: &PolicyRegistry);

    /// Fails unless the caller may change it.
    fn require_change(
        &self,
        admin: &Admin,
        caller: &AdminCaller,
        namespace: &str,
    ) -> impl Future<Output = Result<(), AdminProblem>> + Send;
}

fn unprocessable(detail: impl Into<String>) -> AdminProblem {
    AdminProblem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
}

fn id_of(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.chars().take(ID_DIGITS).collect()
}

fn id<T: Overlay>(overlay: &T) -> String {
    id_of(&overlay.identity())
}

/// Returns the representation in answers.
fn shown<T: Overlay>(overlay: &T, now: Timestamp) -> Value {
    let mut object = overlay.json(now);
    if let Value::Object(fields) = &mut object {
        fields.insert("id".to_owned(), json!(id(overlay)));
    }
    object
}

/// Saves an overlay, and shows it with its revision.
async fn put<T: Overlay>(
    admin: &Admin,
    caller: &AdminCaller,
    namespace: &str,
    overlay: &T,
    reason: &str,
) -> Result<Json<Value>, AdminProblem> {
    let change = |registry: &PolicyRegistry| Ok(overlay.put_into(registry)?);
    let revision = save(admin, caller, namespace, reason, change).await?;
    Ok(saved(overlay, revision))
}

/// Returns a saved overlay with its revision.
fn saved<T: Overlay>(overlay: &T, revision: i64) -> Json<Value> {
    let mut object = shown(overlay, timestamp(now_micros()));
    if let Value::Object(fields) = &mut object {
        fields.insert("revision".to_owned(), json!(revision));
        fields.insert("state".to_owned(), json!("pending"));
    }
    Json(object)
}

async fn save(
    admin: &Admin,
    caller: &AdminCaller,
    namespace: &str,
    reason: &str,
    change: impl Fn(&PolicyRegistry) -> Result<(), EditError>,
) -> Result<i64, AdminProblem> {
    let revision = save_overlays(
        admin.store(),
        (&caller.0.name, Origin::Api),
        namespace,
        reason,
        change,
    )
    .await?;
    if let Some(publisher) = admin.publisher(namespace) {
        publisher.wake();
    }
    Ok(revision)
}

/// Returns the text of an audit entry.
fn summary(action: &str, object: &str, reason: Option<&str>) -> String {
    match reason {
        Some(reason) => format!("{action} {object}: {reason}"),
        None => format!("{action} {object}"),
    }
}

/// Returns the overlay of an id that the caller may change.
async fn find<T: Overlay>(
    admin: &Admin,
    caller: &AdminCaller,
    namespace: &str,
    wanted: &str,
) -> Result<T, AdminProblem> {
    caller.require_namespace(admin, namespace)?;
    let (registry, _) = overlays(admin.store(), namespace).await?;
    let found: T = find_in(&registry, wanted)?;
    found.require_change(admin, caller, namespace).await?;
    Ok(found)
}

fn find_in<T: Overlay>(registry: &PolicyRegistry, wanted: &str) -> Result<T, EditError> {
    let found = T::all(registry).into_iter().find(|of| id(of) == wanted);
    found.ok_or(EditError::Hidden)
}

/// Changes the end of an overlay. Its other values are those at the time of the save, and one that
/// was ended meanwhile stays ended.
pub(super) async fn extend<T: Overlay>(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, id)): Path<(String, String)>,
    JsonBody(body): JsonBody<EndBody>,
) -> Result<Json<Value>, AdminProblem> {
    let found: T = find(&admin, &caller, &namespace, &id).await?;
    let end = body.end.required()?;
    let action = format!("extend the {} of", T::NOUN);
    let reason = summary(&action, &found.object(), None);
    let extended = Mutex::new(found);
    let change = |registry: &PolicyRegistry| {
        let changed = find_in::<T>(registry, &id)?.ending_at(end);
        changed.put_into(registry)?;
        *extended.lock().unwrap_or_else(PoisonError::into_inner) = changed;
        Ok(())
    };
    let revision = save(&admin, &caller, &namespace, &reason, change).await?;
    let extended = extended.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(saved(&extended, revision))
}

/// Ends an overlay.
pub(super) async fn end<T: Overlay>(
    State(admin): State<Admin>,
    caller: AdminCaller,
    Path((namespace, id)): Path<(String, String)>,
) -> Result<StatusCode, AdminProblem> {
    let found: T = find(&admin, &caller, &namespace, &id).await?;
    let reason = summary(&format!("end the {} of", T::NOUN), &found.object(), None);
    let change = |registry: &PolicyRegistry| {
        found.remove_from(registry);
        Ok(())
    };
    save(&admin, &caller, &namespace, &reason, change).await?;
    Ok(StatusCode::NO_CONTENT)
}
