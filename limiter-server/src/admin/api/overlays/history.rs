//! The suspensions and blocks of an earlier time.

use limiter_core::Timestamp;
use limiter_core::registry::PolicyRegistry;

use crate::admin::Admin;
use crate::admin::api::problem::AdminProblem;
use crate::admin::edit::{EditError, overlays};
use crate::overlay_text;
use crate::publish::timestamp;
use crate::store::{DocumentKind, OVERLAYS, now_micros};

/// Returns the suspensions and blocks, their revision, and the time. Without `at`, all that are
/// saved; with `at`, those that were active at that time.
pub(super) async fn registry_at(
    admin: &Admin,
    namespace: &str,
    at: Option<i64>,
) -> Result<(PolicyRegistry, i64, Timestamp), AdminProblem> {
    let Some(at) = at else {
        let (registry, revision) = overlays(admin.store(), namespace).await?;
        return Ok((registry, revision, timestamp(now_micros())));
    };
    let time = timestamp(at);
    // A version that another program replaced before its publication was never in force.
    let document = (DocumentKind::Overlays, OVERLAYS);
    let Some(revision) = admin.store().revision_at(namespace, document, at).await? else {
        return Ok((PolicyRegistry::new(), 0, time));
    };
    let registry = overlay_text::parse(&revision.body).map_err(EditError::from)?;
    overlay_text::remove_ended(&registry, time).map_err(|error| EditError::Invalid(error.to_string()))?;
    Ok((registry, revision.number, time))
}
