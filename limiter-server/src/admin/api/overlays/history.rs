//! The suspensions and blocks of an earlier time.

use limiter_core::Timestamp;
use limiter_core::registry::PolicyRegistry;

use crate::admin::Admin;
use crate::admin::api::problem::AdminProblem;
use crate::admin::edit::{EditError, overlays};
use crate::overlay_text;
use crate::publish::timestamp;
use crate::store::{DocumentKind, OVERLAYS, StoredRevision, now_micros};

/// The number of revisions that are read at once.
const PAGE: i64 = 100;

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
    let Some(revision) = revision_at(admin, namespace, at).await? else {
        return Ok((PolicyRegistry::new(), 0, time));
    };
    let registry = overlay_text::parse(&revision.body).map_err(EditError::from)?;
    overlay_text::remove_ended(&registry, time).map_err(|error| EditError::Invalid(error.to_string()))?;
    Ok((registry, revision.number, time))
}

/// Returns the newest revision that was saved until a time.
async fn revision_at(
    admin: &Admin,
    namespace: &str,
    at: i64,
) -> Result<Option<StoredRevision>, AdminProblem> {
    let mut before = i64::MAX;
    loop {
        let page = admin
            .store()
            .history(namespace, DocumentKind::Overlays, OVERLAYS, before, PAGE)
            .await?;
        let Some(last) = page.last() else {
            return Ok(None);
        };
        before = last.number;
        if let Some(found) = page.into_iter().find(|of| of.created_at <= at) {
            return Ok(Some(found));
        }
    }
}
