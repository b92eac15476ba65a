//! `/openapi.json`: the description of the routes.
//!
//! The routes are registered by their descriptions, so that a route without a description does not
//! exist. The types here describe JSON that other modules write. Tests: `tests/openapi.rs`.

use std::sync::{Arc, OnceLock};

use axum::Extension;
use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse;
use utoipa::{IntoResponses, OpenApi, ToSchema};

/// Returns the name and the version of the interface; routes are added.
pub(super) fn description() -> utoipa::openapi::OpenApi {
    Description::openapi()
}

// The responses of a derive are not searched for schemas.
#[derive(OpenApi)]
#[openapi(
    info(title = "limiter-server"),
    components(schemas(DecisionDocument, LimitDocument, ProblemDocument, DoneDocument))
)]
struct Description;

/// The text of the description. Cheap to clone; clones share the text.
#[derive(Clone, Debug, Default)]
pub(super) struct Document(Arc<OnceLock<Bytes>>);

impl Document {
    /// Sets the text, when all routes are known.
    pub(super) fn describe(&self, document: &utoipa::openapi::OpenApi) {
        // A description is always JSON.
        self.0
            .get_or_init(|| serde_json::to_vec(document).unwrap_or_default().into());
    }
}

/// Returns the description of all routes.
#[utoipa::path(
    get,
    path = "/openapi.json",
    responses((status = 200, description = "this document", body = Object)),
)]
pub(super) async fn document(Extension(document): Extension<Document>) -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, "application/json")],
        document.0.get().cloned().unwrap_or_default(),
    )
}

/// A decision.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes JSON")]
pub(super) struct DecisionDocument {
    allowed: bool,
    /// True if a policy in shadow mode would deny.
    would_deny: Option<bool>,
    limits: Vec<LimitDocument>,
    /// The time that the caller waits before it proceeds.
    delay_ms: u64,
    /// The place of the decision, such as `redis` or `memory`.
    origin: String,
    revision: u64,
    node: String,
    /// The id of a permit or of a reservation.
    id: Option<String>,
    /// The time at which the id expires, in milliseconds since 1970.
    expires_at: Option<u64>,
}

/// A limit of a decision.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes JSON")]
pub(super) struct LimitDocument {
    policy: String,
    allowed: bool,
    limit: f64,
    remaining: f64,
    /// Null if the cost exceeds the capacity, so that no retry succeeds.
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
}

/// A problem, as RFC 9457 defines it.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes JSON")]
pub(super) struct ProblemDocument {
    r#type: String,
    title: String,
    status: u16,
    detail: Option<String>,
    /// The page that explains the denial.
    instance: Option<String>,
    /// The policy that denied.
    policy: Option<String>,
    /// The key of the limit that denied, or its fingerprint, where configured.
    key: Option<String>,
    limits: Option<Vec<LimitDocument>>,
    /// Of a refund: the number of limits that were refunded before the problem, in their order.
    refunded: Option<u64>,
    /// The place of the decision, such as `redis` or `memory`.
    origin: Option<String>,
    revision: Option<u64>,
    node: Option<String>,
}

/// The responses of calls that decide.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes responses")]
pub(super) enum DecisionResponses {
    /// allowed, with rate limit headers
    #[response(status = 200)]
    Allowed(DecisionDocument),
    /// limited, with Retry-After and rate limit headers
    #[response(status = 429, content_type = "application/problem+json")]
    Limited(ProblemDocument),
    /// invalid request
    #[response(status = 400, content_type = "application/problem+json")]
    Invalid(ProblemDocument),
    /// missing or invalid credentials
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(ProblemDocument),
    /// missing scope, or a key list denies
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(ProblemDocument),
    /// no such policy
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(ProblemDocument),
    /// no decision was possible
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(ProblemDocument),
}

/// The responses of calls that change usage.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes responses")]
pub(super) enum ChangeResponses {
    /// done
    #[response(status = 200)]
    Done(DoneDocument),
    /// invalid request
    #[response(status = 400, content_type = "application/problem+json")]
    Invalid(ProblemDocument),
    /// missing or invalid credentials
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(ProblemDocument),
    /// missing scope
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(ProblemDocument),
    /// no such policy, permit or reservation
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(ProblemDocument),
    /// the store is unavailable
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(ProblemDocument),
}

/// A change of usage.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes JSON")]
pub(super) struct DoneDocument {
    /// Of a release: whether the permit was held.
    released: Option<bool>,
    /// Of a settlement: whether it is the first one.
    settled: Option<bool>,
    /// Of a renewal.
    id: Option<String>,
    /// Of a renewal: when the permit expires, in milliseconds since 1970.
    expires_at: Option<u64>,
}

/// The responses of errors.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "describes responses")]
pub(super) enum ProblemResponses {
    /// invalid request
    #[response(status = 400, content_type = "application/problem+json")]
    Invalid(ProblemDocument),
    /// missing or invalid credentials
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(ProblemDocument),
    /// missing scope, or a key list denies
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(ProblemDocument),
    /// no such policy
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(ProblemDocument),
    /// no decision was possible
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(ProblemDocument),
}
